"""Choose from which score a cross-encoder's pairs of questions are served, in each language that it reads.

The near-misses are those of the families left out of training (`families`, without families of answers, which are no
questions) and of the labelled pairs whose group begins with a language's code (`pairs/dev-rewordings.jsonl`). A pair
that a guard refuses counts as not served, one that is equal by rule as served.

    pooled share   At a score, the mean over all languages but English of the share of their near-misses that is served.
    shrunk share   A language has few families (5 to 25), and a pair is no independent draw. So what counts for it is
                   half its own share and half the pooled one. English has a hundred, and guards of its own: its own
                   share alone.
    threshold      The lowest score at and above which that share is at most `--most-wrong`, in English 1%; `strict` is
                   the same of the pooled share. What a language's lies below `strict`, in logits, is its entry in
                   `language_offsets`.

Outside English that serves fewer near-misses in all than `--most-wrong`, as a language that is better than the others
gets half of the difference only. `finish` (`tools.cross_encoder_artefact`) sets the first thresholds of new weights.

Scores are those of the graph that ships, each pair read alone, after slips are read, as a lookup does.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from cache.semantic.decision import same_words
from cache.text.languages import ENGLISH, language_of
from gateway.cli.flags import add_json_flag, whole
from gateway.parts.encoders.cross_encoder import LANGUAGE_OFFSETS, SHEET, CrossEncoder
from gateway.parts.encoders.turns import TurnScorer
from gateway.parts.encoders.typos import respelled
from gateway.parts.fit.curves import Flags, Floats
from gateway.parts.fit.datasets import DataError
from gateway.report import OnProgress, Report, table
from tools import command
from tools.cache_stages import pair_scores, share_shown
from tools.cross_encoder_artefact import ENGLISH_ERROR
from tools.cross_encoder_data import is_kept_out, refused
from tools.question_families import FAMILIES, QuestionFamily, add_families_flag, family_pairs, read_families
from tools.question_pairs import QuestionPair, read_questions
from tools.served_shares import served_shares

MOST_WRONG = 0.009
"""Share of the near-misses of a language but English that may be served; of English `ENGLISH_ERROR`."""
REWORDINGS = Path(__file__).with_name("pairs") / "dev-rewordings.jsonl"
_ENGLISH_PAIRS = ("dev-rephrasings.jsonl", "dev-vetoes.jsonl")
_ANSWERS = "answers"
_STEP = 0.01
"""Logits between two thresholds that are tried."""
_HIGHEST, _LOWEST = 8.0, 0.0
_NEVER, _ALWAYS = -math.inf, math.inf
_FEWEST = 100
"""Near-misses of a language below which the pool alone says its threshold."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The thresholds in logits without any offset: of the pool, and of each language."""

    pooled: float
    by_language: Mapping[str, float]

    @property
    def strict(self) -> float:
        """Return the score from which a pair is served where no offset is added."""
        return 1 / (1 + math.exp(-self.pooled))

    @property
    def offsets(self) -> dict[str, float]:
        """Return what is added to the logit of a pair in each language."""
        return {name: round(self.pooled - own, 2) for name, own in sorted(self.by_language.items())}


def labelled_pairs(
    families: Sequence[QuestionFamily], files: Sequence[Path], languages: Sequence[str], count: int
) -> list[QuestionPair]:
    """Return about `count` pairs of the families left out of each language, and those of the files; a pair's `group` is
    its language.

    Raises DataError for a language of which there is no family left out.
    """
    pairs: dict[tuple[str, str], QuestionPair] = {}
    for language in languages:
        aside = [
            family
            for family in families
            if family.language == language and is_kept_out(family.name) and not _of_answers(family)
        ]
        if not aside:
            raise DataError(f"no family of questions in {language!r} is left out of training")
        for pair in family_pairs(aside, count, Random(0)):  # noqa: S311  (no secret)
            pairs[pair.a, pair.b] = QuestionPair(pair.a, pair.b, pair.same_answer, FAMILIES, language)
    for path in files:
        for row in read_questions(path):
            language = row.group.split()[0]
            pairs[row.a, row.b] = replace(row, group=language if language in languages else ENGLISH)
    return list(pairs.values())


def _of_answers(family: QuestionFamily) -> bool:
    return family.name.partition(": ")[0].rpartition("/")[2] == _ANSWERS


def choose(logits: Floats, same: Flags, language: Sequence[str], most_wrong: float) -> Thresholds:
    """Return the thresholds by the rule of the module's docstring. `logits` has -inf for what a guard refuses."""
    names = np.array(language)
    tried = np.arange(_LOWEST, _HIGHEST + _STEP / 2, _STEP)
    wrong, sizes = {}, {}
    for name in sorted(set(language)):
        own = np.sort(logits[(names == name) & ~same])
        sizes[name] = len(own)
        wrong[name] = len(own) - np.searchsorted(own, tried, side="left")
    in_pool = [name for name in wrong if name != ENGLISH and sizes[name]] or list(wrong)
    pooled = np.mean([wrong[name] / max(1, sizes[name]) for name in in_pool], axis=0)
    by_language = {}
    for name, served in wrong.items():
        n = sizes[name]
        own = served / n if n >= _FEWEST else pooled
        if name == ENGLISH:
            by_language[name] = _lowest(tried, own, ENGLISH_ERROR)
        else:
            by_language[name] = _lowest(tried, (own + pooled) / 2, most_wrong)
    return Thresholds(_lowest(tried, pooled, most_wrong), by_language)


def _lowest(tried: Floats, share: Floats, most: float) -> float:
    """Return the lowest threshold from which on at most this share is served wrongly."""
    above = np.flatnonzero(share > most)
    return float(tried[min(len(tried) - 1, above[-1] + 1)]) if len(above) else float(tried[0])


def read_logits(
    model: CrossEncoder, pairs: Sequence[QuestionPair], kept: Path | None, on_progress: OnProgress
) -> Floats:
    """Return the logit of each pair without the offset of its language; -inf where a guard refuses or the model cannot
    read it, inf where both are equal by rule.

    `kept`: a file of logits that were computed before by the same model, which is read and then written.
    """
    sheet = json.loads(kept.read_bytes()) if kept is not None and kept.is_file() else {}
    known: dict[str, float] = sheet.get(model.version, {})
    offsets = model.language_offsets
    texts = [respelled(pair.a, pair.b) for pair in pairs]
    key = "\n".join
    scored = pair_scores(TurnScorer(model), [pair for pair in texts if key(pair) not in known], on_progress)
    for pair, score in scored.items():
        known[key(pair)] = round(_logit(score) - min(offsets.get(language_of(text), 0.0) for text in pair), 4)
    if kept is not None and scored:
        kept.write_text(json.dumps({model.version: known}, ensure_ascii=False), encoding="utf-8")
    return np.array([_decided(pair, known[key(pair)]) for pair in texts])


def _decided(pair: tuple[str, str], logit: float) -> float:
    if same_words(*pair):
        return _ALWAYS
    return _NEVER if refused(*pair) else logit


def _logit(score: float) -> float:
    return math.log(score / (1 - score)) if 0 < score < 1 else _ALWAYS if score >= 1 else -_HIGHEST


def offset_of(offsets: Mapping[str, float], pair: tuple[str, str]) -> float:
    """Return what is added to the logit of a pair: the least of the two languages that its texts are told to be in."""
    return min(offsets.get(language_of(text), 0.0) for text in pair)


def main(argv: Sequence[str] | None = None) -> int:
    """Choose the thresholds, write them into the data sheet and print what they serve."""
    parser = command.parser("choose_thresholds")
    parser.add_argument("--cross-encoder", type=Path, required=True, metavar="DIR")
    add_families_flag(parser)
    pairs = [REWORDINGS, *(REWORDINGS.with_name(name) for name in _ENGLISH_PAIRS)]
    parser.add_argument("--pairs", type=Path, nargs="*", default=pairs, metavar="FILE")
    parser.add_argument("--of-families", type=whole(1), default=2_500, metavar="N")
    parser.add_argument("--most-wrong", type=float, default=MOST_WRONG, metavar="SHARE")
    parser.add_argument("--scores", type=Path, metavar="FILE")
    parser.add_argument("--dry-run", action="store_true")
    add_json_flag(parser, "a table")
    return command.run(parser, _report, argv)


def _report(args: argparse.Namespace, on_progress: OnProgress) -> Report:
    if not 0 <= args.most_wrong < 1:
        raise DataError(f"--most-wrong is {args.most_wrong}; it must be a share, 0 to 1")
    sheet, model = args.cross_encoder / SHEET, CrossEncoder.load(args.cross_encoder)
    languages = sorted(model.languages)
    pairs = labelled_pairs(read_families(args.families), args.pairs, languages, args.of_families)
    logits = read_logits(model, pairs, args.scores, on_progress)
    same = np.array([pair.same_answer for pair in pairs], np.bool_)
    language = [pair.group for pair in pairs]
    chosen = choose(logits, same, language, args.most_wrong)
    offsets = chosen.offsets
    added = np.array([offset_of(offsets, respelled(pair.a, pair.b)) for pair in pairs])
    served = logits + added >= chosen.pooled
    figures, shown = _figures(pairs, served, same)
    values: dict[str, Any] = {
        "strict": chosen.strict,
        LANGUAGE_OFFSETS: offsets,
        "thresholds": {
            "command": "python -m tools.choose_thresholds",
            "most_wrong": args.most_wrong,
            "pairs": len(pairs),
            "model": model.version,
        },
    }
    if not args.dry_run:
        facts: dict[str, Any] = json.loads(sheet.read_bytes())
        facts |= values
        facts["figures"] = {**facts.get("figures", {}), "left_out": figures}
        sheet.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    done = "nothing written" if args.dry_run else f"written to {sheet}"
    of_offsets = table("language", "offset")
    for name, offset in offsets.items():
        of_offsets.add_row(name, f"{offset:+.2f}")
    return Report(
        {**values, "figures": figures}, [f"strict {chosen.strict:.4f}", of_offsets, "", shown], title="thresholds",
        done=[done],
    )  # fmt: skip


def _figures(pairs: Sequence[QuestionPair], served: Flags, same: Flags) -> tuple[dict[str, Any], Any]:
    """Return the shares served by source and language, as values and as a table."""
    names = np.array([f"{pair.dataset}: {pair.group}" for pair in pairs])
    sources = np.array([pair.dataset for pair in pairs])
    others = np.array([pair.group != ENGLISH for pair in pairs])
    shown = table("pairs of", "n", "served", "wrong", left=1)
    values: dict[str, Any] = {}
    parts: list[tuple[str, Flags]] = [(str(name), names == name) for name in np.unique(names)]
    parts += [
        (f"{name}: all but {ENGLISH}", rows)
        for name in np.unique(sources)
        if (rows := (sources == name) & others).any()
    ]
    for name, rows in parts:
        values[name] = served_shares(served[rows], same[rows], np.full(int(rows.sum()), ""))
        own, good = served[rows], same[rows]
        shown.add_row(
            name, f"{rows.sum():,}", str(share_shown(int((own & good).sum()), int(good.sum()))),
            str(share_shown(int((own & ~good).sum()), int((~good).sum()))),
        )  # fmt: skip
    return values, shown


if __name__ == "__main__":
    sys.exit(main())
