"""Check the best candidate with a cross-encoder, which reads the stored question and the new one together.

Any folder that sentence-transformers exports will do; ONNX Runtime runs it, without torch:

    onnx/model.onnx (or model.onnx)   `input_ids`, with `attention_mask` and `token_type_ids` where the model has them
    tokenizer.json                    how it tokenises a pair of texts
    config.json                       its labels, and its maximum number of tokens

The score of a model with one logit is its sigmoid; that of a model with several labels is the probability of the label
that means "the same", found by its name. The policy sets where the score applies (`policies.caching.CrossEncoder`).

One pair at a time is scored, on one thread outside the event loop. Fail closed: a pair that is too long, takes too long
or fails is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from cache.semantic.decision import Decide, Verdict
from cache.store.deadline import Deadline

if TYPE_CHECKING:
    from onnxruntime import InferenceSession
    from tokenizers import Tokenizer

    from policies.caching import CrossEncoderRules as Rule

log = logging.getLogger("tierline.cache")

SAME: Final = frozenset({"1", "duplicate", "entailment", "equivalent", "is_duplicate", "paraphrase", "same"})
"""Names of the label for "both questions want the same answer"."""
_BARE_SAME: Final = "label_1"  # default name of the second label in models of two labels
_MODELS: Final = ("onnx/model.onnx", "model.onnx")
_INPUTS: Final = frozenset({"input_ids", "attention_mask", "token_type_ids"})
_TYPES: Final = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
_INSTALL: Final = "pip install 'tierline[minilm]'"
_EXPORT: Final = "export it with sentence-transformers: CrossEncoder(NAME, backend='onnx').save_pretrained(FOLDER)"
_AFTER_PADDING: Final = frozenset({"camembert", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl"})
"""Models whose positions start after the padding token's id, and which therefore read fewer tokens than positions."""
_LONGEST: Final = 1_000_000
"""Tokenizers without a limit state a larger one."""


class CrossEncoderError(ValueError):
    """A folder cannot be loaded as a cross-encoder; the message gives the file, the reason and the remedy."""


class TextPairScorer(Protocol):
    """Score one pair of questions; called on a thread of its own."""

    def score(self, stored: str, asked: str) -> float:
        """Return the probability that both questions want the same answer, 0..1; 0 for a pair that is too long."""


class CrossEncoder:
    """The cross-encoder. Safe to use from several threads at once."""

    def __init__(self, reader: _Reader, same: int | None, version: str) -> None:
        """Take the reader, the index of the label `same` (None for a model of one logit), and the version."""
        self.version = version
        self._reader = reader
        self._same = same

    @classmethod
    def load(cls, folder: Path, threads: int = 1) -> CrossEncoder:
        """Open the model in `folder` and score one pair as a check. Raises CrossEncoderError."""
        model = next((folder / name for name in _MODELS if (folder / name).is_file()), None)
        if model is None:
            raise CrossEncoderError(f"{folder}: neither {' nor '.join(_MODELS)} is there; {_EXPORT}")
        config = _read_json(folder / "config.json")
        tokenizer = _read_tokenizer(folder / "tokenizer.json")
        session = _open_session(model, threads)
        _check_inputs(model, session)
        reader = _Reader(tokenizer, session, _longest(folder, config))
        try:
            logits = reader.logits("a question", "another question")
        except Exception as error:  # noqa: BLE001  (a graph may fail in any way, and the operator must see why)
            raise CrossEncoderError(f"{model}: cannot judge a pair: {error}; {_EXPORT}") from None
        if logits is None or logits.ndim != 1 or not logits.size or not np.isfinite(logits).all():
            raise CrossEncoderError(f"{model}: its first output is not one row of logits for a pair; {_EXPORT}")
        same = None if logits.size == 1 else _label_of_same(folder / "config.json", config, logits.size)
        return cls(reader, same, _version(folder, model))

    def score(self, stored: str, asked: str) -> float:
        """Return the score of a pair. Six MiniLM layers take 10 to 20 ms for two questions of ten words on a thread."""
        logits = self._reader.logits(stored, asked)
        if logits is None:
            return 0.0
        if self._same is None:
            return float(1 / (1 + np.exp(-logits[0])))
        shares = np.exp(logits - logits.max())
        return float(shares[self._same] / shares.sum())


class _Reader:
    """Turn a pair of texts into logits. `longest` is the maximum number of tokens of a pair."""

    def __init__(self, tokenizer: Tokenizer, session: InferenceSession, longest: int) -> None:
        self._tokenizer = tokenizer
        self._session = session
        self._longest = longest
        self._types = {one.name: _TYPES[one.type] for one in session.get_inputs()}

    def logits(self, stored: str, asked: str) -> NDArray[np.float64] | None:
        """Return the logits of one pair, shape (labels,); None for a pair of more tokens than the model reads."""
        encoded = self._tokenizer.encode(stored, asked)
        if len(encoded.ids) > self._longest:
            return None
        values = {
            "input_ids": encoded.ids,
            "attention_mask": encoded.attention_mask,
            "token_type_ids": encoded.type_ids,
        }
        inputs = {name: np.array([values[name]], kind) for name, kind in self._types.items()}
        logits: NDArray[np.float64] = np.asarray(self._session.run(None, inputs)[0], np.float64)[0]
        return logits


class SecondOpinion:
    """Run a cross-encoder outside the event loop, one pair at a time. Close it after use."""

    def __init__(self, scorer: TextPairScorer) -> None:
        self._scorer = scorer
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tierline-cross-encoder")
        self._given_up: Future[float] | None = None

    async def on(self, rule: Rule, stored: str, asked: str, verdict: Verdict, left_s: float) -> Verdict:
        """Return the verdict on a candidate after the cross-encoder. `left_s` is the request's time left in seconds."""
        settled = _settled(rule, stored, asked, verdict)
        if settled is not None:
            return settled
        try:
            score = await self._asked(stored, asked, min(rule.within, left_s))
        except TimeoutError:
            return Verdict(verdict.score, "cross_encoder_late")
        except Exception:
            log.exception("the cross-encoder failed")
            return Verdict(verdict.score, "cross_encoder_failed")
        return weighed(rule, verdict, score)

    def close(self) -> None:
        """Stop the thread and cancel queued calls."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _asked(self, stored: str, asked: str, limit_s: float) -> float:
        if limit_s <= 0 or (self._given_up is not None and not self._given_up.done()):
            # The thread is still busy with a call that timed out, so this one would time out too.
            raise TimeoutError
        working = self._thread.submit(self._scorer.score, stored, asked)
        future = asyncio.wrap_future(working)
        try:
            with Deadline(limit_s):
                return await asyncio.shield(future)
        except (TimeoutError, asyncio.CancelledError):
            if not working.cancel():
                self._given_up = working
                future.add_done_callback(_heard)
            raise


async def second(
    opinion: SecondOpinion | None, rule: Rule, stored: str, asked: str, verdict: Verdict, left_s: float
) -> Verdict:
    """Return the verdict of `opinion`; without one, a candidate that the policy wants checked is refused."""
    if opinion is None:
        return verdict if verdict.refused else Verdict(verdict.score, "cross_encoder_absent")
    return await opinion.on(rule, stored, asked, verdict, left_s)


def _heard(future: asyncio.Future[float]) -> None:
    """Retrieve the exception of a call that timed out, so that asyncio does not report it as never retrieved."""
    if not future.cancelled():
        future.exception()


def consulting(decide: Decide, rule: Rule, scorer: TextPairScorer) -> Decide:
    """Return `decide` extended by a synchronous call of the cross-encoder without a time limit: for evaluation."""

    def decided(stored: str, asked: str, cosine: float) -> Verdict:
        verdict = decide(stored, asked, cosine)
        settled = _settled(rule, stored, asked, verdict)
        return weighed(rule, verdict, scorer.score(stored, asked)) if settled is None else settled

    return decided


def _settled(rule: Rule, stored: str, asked: str, verdict: Verdict) -> Verdict | None:
    """Return the verdict if the cross-encoder is not needed; None if it is."""
    if verdict.refused or stored == asked:
        return verdict
    return Verdict(verdict.score, "similarity") if verdict.score < rule.ask_from else None


def weighed(rule: Rule, verdict: Verdict, score: float) -> Verdict:
    """Combine a verdict without a veto with the cross-encoder's score, under the policy's rule."""
    if rule.decides == "score":
        return Verdict(score)
    return verdict if score >= rule.min_score else Verdict(verdict.score, f"cross_encoder: {score:.3f}")


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CrossEncoderError(f"{path}: {error}; {_EXPORT}") from None
    if not isinstance(value, dict):
        raise CrossEncoderError(f"{path}: not an object; {_EXPORT}")
    return value


def _read_tokenizer(path: Path) -> Tokenizer:
    # A single pair does not need a thread pool.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001  (the library raises bare Exceptions)
        raise CrossEncoderError(f"{path}: {error}; {_EXPORT}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _open_session(model: Path, threads: int) -> InferenceSession:
    try:
        import onnxruntime
    except ImportError:
        raise CrossEncoderError(f"{model.parent}: a cross-encoder needs ONNX Runtime; run: {_INSTALL}") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001  (as above)
        raise CrossEncoderError(f"{model}: {error}; {_EXPORT}") from None


def _check_inputs(model: Path, session: InferenceSession) -> None:
    inputs = {one.name: one.type for one in session.get_inputs()}
    strange = sorted(name for name, kind in inputs.items() if name not in _INPUTS or kind not in _TYPES)
    if strange or "input_ids" not in inputs:
        what = ", ".join(f"{name} ({kind})" for name, kind in inputs.items())
        raise CrossEncoderError(
            f"{model}: its inputs are {what}; supported are {', '.join(sorted(_INPUTS))}; {_EXPORT}"
        )


def _longest(folder: Path, config: Mapping[str, Any]) -> int:
    """Return the maximum number of tokens of a pair: the lowest limit in the model's files."""
    beside = folder / "tokenizer_config.json"
    positions = _number(config.get("max_position_embeddings"))
    if positions is not None and config.get("model_type") in _AFTER_PADDING:
        positions -= (_number(config.get("pad_token_id")) or 1) + 1
    limit = _number(_read_json(beside).get("model_max_length")) if beside.is_file() else None
    limits = [one for one in (positions, limit) if one is not None and 2 < one < _LONGEST]
    if not limits:
        raise CrossEncoderError(f"{folder / 'config.json'}: no max_position_embeddings; {_EXPORT}")
    return min(limits)


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) else None


def _label_of_same(path: Path, config: Mapping[str, Any], count: int) -> int:
    """Return the index of the label that means "the same", of `count` labels."""
    labels = config.get("id2label")
    named = {int(key): str(name) for key, name in labels.items()} if isinstance(labels, dict) else {}
    if not named and count == 2:
        named = {0: "LABEL_0", 1: "LABEL_1"}
    matches = [place for place, name in named.items() if _means_same(name, count) and 0 <= place < count]
    if len(named) != count or len(matches) != 1:
        have = ", ".join(named[place] for place in sorted(named)) or "none"
        raise CrossEncoderError(
            f"{path}: {count} logits and the labels {have}: which of them means that both questions want the same "
            f"answer? name it in id2label, as one of {', '.join(sorted(SAME))}"
        )
    return matches[0]


def _means_same(name: str, count: int) -> bool:
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    return plain in SAME or (count == 2 and plain == _BARE_SAME)


def _version(folder: Path, model: Path) -> str:
    """Return the first digits of the SHA-256 of everything that determines the scores, external weights included."""
    digest = hashlib.sha256()
    for path in (*sorted(model.parent.glob(f"{model.name}*")), folder / "tokenizer.json", folder / "config.json"):
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()[:12]
