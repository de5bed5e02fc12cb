"""`python -m tests.bench.answers [FILE ...] [--opposites] [--truthfulqa FILE] [--coqa FILE] [--embedding static|minilm]
[--cross-encoder default|none|DIR] [--alike COSINE] [--json]`: how often is an audit's label wrong?

An audit calls a stored answer and a fresh one the same, or different, or gives no label (see the part hit_audits). Here
it compares answers of which that is known. Of the pairs that are the same and of those that differ it says what share
is called same, different and unknown, with 95% intervals. `f` is the share that is the same and called different, `m`
the share that differs and is not.

Without a FILE the pairs are those of tests/fixtures/answers.jsonl, 44 questions written for this: two good answers in
different words, one that is wrong, and the answer to a question nearby. A FILE has rows of JSON lines with `question`,
`answers` (two) and `same_answer`.

--opposites: tests/fixtures/opposite_answers.jsonl, answers to opposite questions in 13 languages, written for this; no
weight, threshold or word is fitted to them. Each row has one answer in two wordings, with `{this|that}` where its
opposite differs, so it makes two pairs that are the same and four that differ, two of them in the same wording. The
pairs of one row are alike, so the intervals are too narrow. Shares are given by language.

Two public sets have several answers to a question, by people; their files are in the PyPI package bigbench, under
bigbench/benchmark_tasks (`truthful_qa/questions.json`, `coqa_conversational_question_answering/coqa.test.json`), and
nothing here is fitted to them:

    TruthfulQA  whole sentences. The best answer and another true one count as the same, which is strict, since several
                true answers to one question may say different things; the best and a false one as different.
    CoQA        a few words each. Two people's answers to one question about a story count as the same, which holds
                unless one of them erred; those to this question and to the next one as different.

To have a model write a FILE, from labelled pairs of questions (`a` is answered, and `b`; whatever it says is taken to
be the same where the questions are):

    python -m tests.bench.answers --ask pairs.jsonl.gz --pairs 170 --out answers.jsonl [--base-url URL --model NAME]

Without --base-url the model that ships answers, at some 30 tokens a second. With --judge that model, or the one at
--base-url (its key in the variable that --key-env names), compares the answers in place of the vectors, as a policy's
`audit_judge` would: how often is it wrong, and how often does it not say?
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import httpx2
import numpy as np

from cache import shipped_cross_encoder
from cache.store.base import NoStore
from gateway.backends.http1_transport import Http1Transport
from gateway.backends.openai import OpenAIBackend
from gateway.chat.usage import Price
from gateway.config.backends import BackendConfig
from gateway.encoders import load_embedder
from gateway.parts.encoders.cross_encoder import CrossEncoder
from gateway.parts.fit.datasets import read_pairs
from gateway.parts.hit_audits.comparison import ALIKE, AnswerComparer, AuditJudge, contradict
from gateway.parts.local.local_model import shipped_model
from gateway.parts.measures.daily_budget import DailyBudget
from gateway.tiers import Endpoint
from policies.caching import AuditJudgeRules as Rule
from routing.embedder import Embedder, EmbedderKind
from tests.bench.command import bench_parser
from tools.cache_stages import Figure, share_shown

WRITTEN = Path(__file__).parents[1] / "fixtures" / "answers.jsonl"
OPPOSITES = WRITTEN.with_name("opposite_answers.jsonl")
_SIDES = re.compile(r"\{([^{}|]*)\|([^{}|]*)\}")
_LONGEST_QUESTION, _LEAST, _TOKENS = 150, 0.6, 64
_LEAST_TURNS = 2
_SAYS_NOTHING = re.compile("no comment", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers, the question that the second one was given to, and whether they come to the same."""

    question: str
    answers: tuple[str, str]
    same: bool


def truthful(path: Path, seed: int = 0) -> Iterator[Pair]:
    """The pairs of TruthfulQA: the best answer with another true one and with a false one, drawn at random."""
    draw = random.Random(seed)
    for row in json.loads(path.read_text("utf-8"))["examples"]:
        best, false = row["Best answer"], row["False answers"]
        true = [text for text in row["True answers"] if text != best and not _SAYS_NOTHING.search(text)]
        if true and false and not _SAYS_NOTHING.search(best):
            yield Pair(row["Question"], (best, draw.choice(true)), True)
            yield Pair(row["Question"], (best, draw.choice(false)), False)


def conversational(path: Path, seed: int = 0) -> Iterator[Pair]:
    """The pairs of CoQA, one question of each story drawn at random; equal texts, which need no audit, are left out."""
    draw = random.Random(seed)
    for story in json.loads(path.read_text("utf-8"))["data"]:
        others = story.get("additional_answers")
        if not others or len(story["questions"]) < _LEAST_TURNS:
            continue
        one, other = ([turn["input_text"] for turn in some] for some in (story["answers"], others[min(others)]))
        at = draw.randrange(len(one) - 1)
        for stored, same in ((one[at], True), (one[at + 1], False)):
            if stored.casefold() != other[at].casefold() and "unknown" not in (stored, other[at]):
                yield Pair(story["questions"][at]["input_text"], (stored, other[at]), same)


@dataclass(frozen=True, slots=True)
class Shares:
    """Of pairs of which it is known whether they are the same: what share gets which label."""

    same: Figure
    different: Figure
    unknown: Figure


@dataclass(frozen=True, slots=True)
class Labels:
    """What pairs that come to the same are called, and what those that do not are called."""

    alike: Shares
    apart: Shares


def written(path: Path = WRITTEN) -> Iterator[Pair]:
    """The pairs of our own questions: one that is the same to four that differ."""
    for row in map(json.loads, path.read_text().splitlines()):
        one, other = row["answers"]
        yield Pair(row["question"], (one, other), True)
        for wrong in (row["wrong"], row["near"]["answer"]):
            for good in (one, other):
                yield Pair(row["question"], (wrong, good), False)


def collected(path: Path) -> Iterator[Pair]:
    """The pairs of a file that `--ask` wrote."""
    for row in map(json.loads, path.read_text().splitlines()):
        yield Pair(row["question"], tuple(row["answers"]), row["same_answer"])


def opposites(path: Path = OPPOSITES) -> dict[str, list[Pair]]:
    """The pairs of opposite answers, by language; see the module's docstring."""
    by_language: dict[str, list[Pair]] = {}
    for row in map(json.loads, path.read_text("utf-8").splitlines()):
        ones, others = ([_side(text, side) for side in (0, 1)] for text in row["answers"])
        asked = [_side(row["question"], side) for side in (0, 1)]
        pairs = by_language.setdefault(row["language"], [])
        pairs += [Pair(asked[side], (ones[side], others[side]), True) for side in (0, 1)]
        pairs += [Pair(asked[1], (some[0], more[1]), False) for some in (ones, others) for more in (ones, others)]
    return by_language


def _side(text: str, side: int) -> str:
    return _SIDES.sub(lambda match: match[side + 1], text)


def labels(pairs: Sequence[Pair], comparer: AnswerComparer) -> Labels:
    """What the audit calls these pairs."""
    found = [(pair.same, comparer.compare(*pair.answers, pair.question)) for pair in pairs]

    def shares(same: bool) -> Shares:
        called = [verdict for is_same, verdict in found if is_same is same]
        return Shares(*(share_shown(called.count(word), len(called)) for word in ("same", "different", "unknown")))

    return Labels(shares(True), shares(False))


@dataclass(frozen=True, slots=True)
class Judged:
    """A judge's errors among the pairs of which it said something, beside the guards; `silent`: of all it was asked."""

    judge: str
    f: Figure
    m: Figure
    silent: Figure


async def judged(pairs: Sequence[Pair], url: str, model: str, key: str | None = None) -> Judged:
    """What the audit would say of the pairs with that model as its judge."""
    config = BackendConfig(name=model, base_url=url, model=model, price=Price())
    transport = Http1Transport(
        f"{url}/chat/completions", max_in_flight=2, connect_timeout_s=5.0, max_reply=config.max_reply
    )
    endpoint = Endpoint(config, OpenAIBackend(transport, model=model, key=key))
    judge, rule = AuditJudge({model: endpoint}, lambda *_: None, DailyBudget(NoStore()), 120.0), Rule(backend=model)
    said: list[tuple[bool, bool | None, bool]] = []
    try:
        for pair in pairs:
            if contradict(*pair.answers, pair.question) == "different":
                said.append((pair.same, False, False))
            else:
                said.append((pair.same, await judge("bench", rule, pair.question, *pair.answers), True))
    finally:
        await endpoint.aclose()

    def wrongly(same: bool) -> Figure:
        of = [word for is_same, word, _ in said if is_same is same and word is not None]
        return share_shown(sum(word is not same for word in of), len(of))

    asked = [word for _, word, was_asked in said if was_asked]
    return Judged(model, wrongly(True), wrongly(False), share_shown(sum(word is None for word in asked), len(asked)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the errors, or has a model answer."""
    asked = _parse(arguments)
    embedder = load_embedder(asked.embedding, asked.state)
    if asked.ask is not None:
        asyncio.run(_collect(asked, embedder))
        return 0
    sets: dict[str, Sequence[Pair]] = {str(file): list(collected(file)) for file in asked.files}
    if asked.truthfulqa is not None:
        sets["TruthfulQA"] = list(truthful(asked.truthfulqa, asked.seed))
    if asked.coqa is not None:
        sets["CoQA"] = list(conversational(asked.coqa, asked.seed))
    if asked.opposites:
        sets |= (by_language := opposites())
        sets["opposites"] = [pair for pairs in by_language.values() for pair in pairs]
    sets = sets or {"our own": list(written())}
    if asked.judge:
        by = asyncio.run(_with_judge(asked, [pair for pairs in sets.values() for pair in pairs]))
        line = f"judge {by.judge}  f {_shown(by.f)}   m {_shown(by.m)}   silent {_shown(by.silent)}"
        print(json.dumps(asdict(by)) if asked.json else line)
        return 0
    alike = ALIKE[asked.embedding] if asked.alike is None else asked.alike
    scorer = _cross_encoder(asked.cross_encoder)
    comparer = AnswerComparer(embedder.embed, scorer, alike=alike)
    found = {name: labels(pairs, comparer) for name, pairs in sets.items()}
    if asked.json:
        shown = {name: asdict(one) for name, one in found.items()}
        print(json.dumps({"embedding": asked.embedding, "alike": alike, "sets": shown}))
        return 0
    print(f"{embedder.name}, cosine {alike:.2f}, cross-encoder {'none' if scorer is None else scorer.version}")
    for name, one in found.items():
        for what, of in (("the same", one.alike), ("other", one.apart)):
            parts = {"same": of.same, "different": of.different, "unknown": of.unknown}
            line = "   ".join(f"{part} {_shown(figure)}" for part, figure in parts.items())
            print(f"{name:<12} {what:<8} {of.same.n:>4}   {line}")
    return 0


def _cross_encoder(named: str) -> CrossEncoder | None:
    if named == "none":
        return None
    return CrossEncoder.load(shipped_cross_encoder() if named == "default" else Path(named))


def _shown(figure: Figure) -> str:
    return "none" if figure.value is None else f"{figure.value:5.1%} [{figure.lo:5.1%}, {figure.hi:5.1%}]"


async def _with_judge(asked: argparse.Namespace, pairs: Sequence[Pair]) -> Judged:
    key = os.environ[asked.key_env] if asked.key_env else None
    async with _model(asked) as (url, name):
        return await judged(pairs, url, name, key)


async def _collect(asked: argparse.Namespace, embedder: Embedder) -> None:
    """Half of the pairs want the same answer, and half do not although they are near enough to be looked at."""
    rows = [row for row in read_pairs(asked.ask) if _short(row.a) and _short(row.b)]
    order = np.random.default_rng(asked.seed).permutation(len(rows))
    left = {True: asked.pairs // 2, False: asked.pairs - asked.pairs // 2}
    async with _model(asked) as (url, name), httpx2.AsyncClient(timeout=300) as client:
        with asked.out.open("w") as out:
            for row in (rows[i] for i in order):
                vectors = embedder.embed((str(row.a), str(row.b)))
                if not left[row.same_answer] or float(vectors[0] @ vectors[1]) < _LEAST:
                    continue
                left[row.same_answer] -= 1
                answers = [await _answer(client, url, name, str(text)) for text in (row.a, row.b)]
                said = {"question": row.b, "answers": answers, "same_answer": row.same_answer}
                out.write(json.dumps(said, ensure_ascii=False) + "\n")


def _short(text: object) -> bool:
    return isinstance(text, str) and len(text) <= _LONGEST_QUESTION


@contextlib.asynccontextmanager
async def _model(asked: argparse.Namespace) -> AsyncIterator[tuple[str, str]]:
    if asked.base_url:
        yield asked.base_url, asked.model
        return
    async with shipped_model(lambda line: print(line, file=sys.stderr)) as served:
        yield served


async def _answer(client: httpx2.AsyncClient, url: str, model: str, question: str) -> str:
    messages = [{"role": "user", "content": question}]
    body = {"model": model, "temperature": 0, "max_tokens": _TOKENS, "messages": messages}
    reply: dict[str, Any] = (await client.post(f"{url}/chat/completions", json=body)).raise_for_status().json()
    return str(reply["choices"][0]["message"]["content"] or "")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("answers", __doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="answers that --ask wrote")
    parser.add_argument("--truthfulqa", type=Path, metavar="FILE", help="questions.json of TruthfulQA")
    parser.add_argument("--coqa", type=Path, metavar="FILE", help="coqa.test.json of CoQA")
    parser.add_argument("--embedding", choices=get_args(EmbedderKind), default="static", help="default: static")
    parser.add_argument("--state", type=Path, default=Path(".state"), metavar="DIR", help="where the encoder is kept")
    parser.add_argument("--opposites", action="store_true", help="answers to opposite questions, by language")
    parser.add_argument("--alike", type=float, metavar="COSINE", help="below which answers differ (default: in force)")
    parser.add_argument("--cross-encoder", default="default", metavar="WHICH", help="default, none, or a folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--ask", type=Path, metavar="FILE", help="have a model answer these pairs of questions")
    parser.add_argument("--pairs", type=int, default=170, metavar="N", help="so many (default: 170)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the draw (default: 0)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the answers go")
    parser.add_argument("--judge", action="store_true", help="have a model compare, in place of the vectors")
    parser.add_argument("--base-url", metavar="URL", help="an OpenAI-compatible server (default: the local model)")
    parser.add_argument("--model", metavar="NAME", help="its model")
    parser.add_argument("--key-env", metavar="NAME", help="the variable with its key, for --judge")
    asked = parser.parse_args(arguments)
    if asked.ask is not None and asked.out is None:
        parser.error("--ask needs --out")
    return asked


if __name__ == "__main__":
    sys.exit(main())
