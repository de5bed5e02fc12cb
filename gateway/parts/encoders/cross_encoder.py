"""Score pairs of questions with a cross-encoder, which reads the stored question and the new one together.

The one that ships is in `cache/artefacts/cross-encoder`. Any folder that sentence-transformers exports will do; ONNX
Runtime runs it, without torch:

    model.onnx (or onnx/model.onnx)   `input_ids`, with `attention_mask` and `token_type_ids` where the model has them;
                                      its weights may be in files beside it, `model.onnx.data`: that takes less memory
    tokenizer.json                    how it tokenises a pair of texts
    config.json                       its labels, and its maximum number of tokens
    sheet.json                        optional: `strict`, the score from which it is trusted without labels, `sha256` of
                                      the graph and its weights, and what it was trained on. Without it the policy sets
                                      `min_score`.
                                      `scripts`: those it was trained to read, `["Latin", "Han"]`; without them it is
                                      given texts in Latin script only. `languages`: their codes, `["en", "zh"]`;
                                      without them English. `language_offsets`: what is added to the logit of a
                                      pair in a language, so that `strict` holds for each.
                                      `same_answer_strict`: the score from which two statements of answers say the
                                      same (without it `strict`), `other_answer`: the one up to which two in almost the
                                      same words say different things.
                                      `cosine_weights`: the weight of the cosine beside the logit, by the name of the
                                      encoder that the cosine is from (`blend.Blend`); others get none
                                      `files_version`: the version that the files have. A gateway opens a model that
                                      states it once it listens, and checks then that they have
    vectors.json, vectors.npy         optional: vectors of its tokens (`gateway.parts.encoders.token_vectors`)

The score of a model with one logit is its sigmoid; that of a model with several labels is the probability of the label
that means "the same", found by its name. A pair with a token that the tokenizer does not know gets no score.

A model quantized as its inputs come (dynamic int8) scores a pair a little differently beside other pairs: by 0.01 or
so. `pair_queue` calls it for requests that wait.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache.semantic.cross_encoder import ComparedPairs, CrossEncoderError, TextPair
from cache.semantic.decision import UNREAD
from cache.text.languages import language_of
from cache.text.reading import SCRIPTS
from gateway.parts.encoders.token_vectors import TokenVectors, TokenVectorsError, sha256_of
from gateway.parts.encoders.unigram import UnigramTokenizer

if TYPE_CHECKING:
    from onnxruntime import InferenceSession
    from tokenizers import Tokenizer

SHEET: Final = "sheet.json"
"""File name of the data sheet."""
COSINE_WEIGHTS: Final = "cosine_weights"
"""Key of the data sheet: the weight of the cosine beside the logit, by encoder."""
READ_SCRIPTS: Final = "scripts"
"""Key of the data sheet: the scripts that the model was trained to read, by their Unicode name (`Latin`, `Han`)."""
LANGUAGE_OFFSETS: Final = "language_offsets"
"""Key of the data sheet: what is added to the logit of a pair in a language, so that one threshold holds for all."""
READ_LANGUAGES: Final = "languages"
"""Key of the data sheet: the languages that it was trained to read, by their code (`en`, `zh`)."""
SAME_ANSWER: Final = "same_answer_strict"
"""Key of the data sheet: the score from which two statements say the same."""
OTHER_ANSWER: Final = "other_answer"
"""Key of the data sheet: the score up to which two statements or answers surely say different things."""
FILES_VERSION: Final = "files_version"
"""Key of the data sheet: the version over graph, weights, tokenizer and config."""
LABEL_ERRORS: Final = "label_errors"
"""Key of the data sheet: how often an audit that compares answers with the model errs, as `ComparedPairs`."""
SAME: Final = frozenset({"1", "duplicate", "entailment", "equivalent", "is_duplicate", "paraphrase", "same"})
"""Names of the label for "both questions want the same answer"."""
SURELY_OTHER: Final = 0.25
"""`other_answer` of a model whose data sheet does not state it."""
_BARE_SAME: Final = "label_1"  # default name of the second label in models of two labels
_READ_AT_ONCE: Final = 256 << 10
_MODELS: Final = ("onnx/model.onnx", "model.onnx")
_BESIDE: Final = ("tokenizer.json", "config.json")
_INPUTS: Final = frozenset({"input_ids", "attention_mask", "token_type_ids"})
_TYPES: Final = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
_ENGLISH: Final = frozenset({"en"})
_EXPORT: Final = "export it with sentence-transformers: CrossEncoder(NAME, backend='onnx').save_pretrained(FOLDER)"
_UNKNOWN: Final = re.compile(r'"(unk_token|unk_id)":("(?:[^"\\]|\\.)*+"|\d++|null)')
_AFTER_PADDING: Final = frozenset({"camembert", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl"})
"""Models whose positions start after the padding token's id, and which therefore read fewer tokens than positions."""
_LONGEST: Final = 1_000_000
"""Tokenizers without a limit state a larger one."""


class CrossEncoder:
    """The cross-encoder. Safe to use from several threads at once."""

    def __init__(self, opens: Callable[[], _Opened], sheet: _Stated, vectors: TokenVectors | None = None) -> None:
        """Take what opens and checks the model, which is called once, and the data sheet.

        `vectors` of its tokens search in other languages than English; None where it has none.
        """
        self.vectors = vectors
        self.strict = sheet.strict
        self.scripts = sheet.scripts
        self.languages = sheet.languages
        self.same_answer = sheet.strict if sheet.same_answer is None else sheet.same_answer
        self.other_answer = sheet.other_answer
        self.label_errors = sheet.label_errors
        self.cosine_weights = sheet.cosine_weights
        self.language_offsets = sheet.language_offsets
        self._version = sheet.files_version
        self._opens = opens
        self._opened: _Opened | None = None
        self.failure = ""
        self._lock = threading.Lock()

    @classmethod
    def load(cls, folder: Path, threads: int = 1, *, later: bool = False) -> CrossEncoder:
        """Open the model in `folder` and score one pair as a check. Raises CrossEncoderError.

        With `later` a model whose data sheet states the version of its files is opened and checked by `open`, or with
        the first pair; the tokenizer and the vectors, which the event loop reads, are loaded here.
        """
        model = next((folder / name for name in _MODELS if (folder / name).is_file()), None)
        if model is None:
            raise CrossEncoderError(f"{folder}: neither {' nor '.join(_MODELS)} is there; {_EXPORT}")
        tokenizer = _read_tokenizer(folder / "tokenizer.json")
        sheet = _stated(folder / SHEET)
        try:
            vectors = TokenVectors.load(folder, tokenizer) if isinstance(tokenizer, UnigramTokenizer) else None
        except TokenVectorsError as error:
            raise CrossEncoderError(str(error)) from None
        made = cls(lambda: _open(folder, model, tokenizer, sheet, vectors, threads), sheet, vectors)
        if not (later and sheet.files_version):
            made.open()
        return made

    @property
    def version(self) -> str:
        """The first digits of the SHA-256 of all that makes the scores."""
        return self._version or self._ready().version

    @property
    def is_open(self) -> bool:
        """Whether it was opened."""
        return self._opened is not None

    def open(self) -> None:
        """Open the model and score one pair as a check, unless that was done. Raises CrossEncoderError."""
        self._ready()

    def _ready(self) -> _Opened:
        if self._opened is None:
            with self._lock:
                if self.failure:
                    raise CrossEncoderError(self.failure)
                if self._opened is None:
                    try:
                        self._opened = self._opens()
                    except Exception as error:
                        self.failure = str(error) or repr(error)
                        raise CrossEncoderError(self.failure) from error
        return self._opened

    def scores(self, pairs: Sequence[TextPair]) -> list[float]:
        """Return the score of each pair. Six MiniLM layers in int8 take 3 to 6 ms for two questions of ten words."""
        opened = self._ready()
        return [
            made if isinstance(made, float) else self._probability(made, pair, opened.same)
            for made, pair in zip(opened.reader.logits(pairs), pairs, strict=True)
        ]

    def _probability(self, logits: NDArray[np.float64], pair: TextPair, same: int | None) -> float:
        if same is None:
            # The language of the pair is not told for sure: the stricter of the two holds.
            offsets = self.language_offsets
            offset = min(offsets.get(language_of(text), 0.0) for text in pair) if offsets else 0.0
            return float(1 / (1 + np.exp(-logits[0] - offset)))
        shares = np.exp(logits - logits.max())
        return float(shares[same] / shares.sum())


class _Opened(NamedTuple):
    """A model that was checked: its reader, the index of the label "the same" (None: it has one logit), its version."""

    reader: _Reader
    same: int | None
    version: str


def _open(
    folder: Path,
    model: Path,
    tokenizer: Tokenizer | UnigramTokenizer,
    sheet: _Stated,
    vectors: TokenVectors | None,
    threads: int,
) -> _Opened:
    """Open a model; check that its files are those of its data sheet, and that it scores. Raises CrossEncoderError."""
    config = _read_json(folder / "config.json")
    digest, version = digests_of_files(folder, model)
    if sheet.sha256 not in (None, digest):
        raise CrossEncoderError(
            f"{folder / SHEET}: its sha256 is not that of the graph beside it; install both files again"
        )
    if sheet.files_version not in ("", version):
        raise CrossEncoderError(
            f"{folder / SHEET}: its {FILES_VERSION} is not {version}, which the files beside it have"
        )
    if vectors is not None:
        try:
            vectors.check()
        except TokenVectorsError as error:
            raise CrossEncoderError(str(error)) from None
    session = _open_session(model, threads)
    _check_inputs(model, session)
    reader = _Reader(tokenizer, session, _longest(folder, config))
    try:
        logits = reader.logits([("a question", "another question"), ("a question", "a question")])
    except Exception as error:  # noqa: BLE001  (a graph may fail in any way, and the operator must see why)
        raise CrossEncoderError(f"{model}: cannot judge a pair: {error}; {_EXPORT}") from None
    first = logits[0]
    if isinstance(first, float) or first.ndim != 1 or not first.size or not np.isfinite(first).all():
        raise CrossEncoderError(f"{model}: its first output is not one row of logits for a pair; {_EXPORT}")
    same = None if first.size == 1 else _label_of_same(folder / "config.json", config, first.size)
    return _Opened(reader, same, version)


class _Reader:
    """Turn pairs of texts into logits. `longest` is the maximum number of tokens of a pair."""

    def __init__(self, tokenizer: Tokenizer | UnigramTokenizer, session: InferenceSession, longest: int) -> None:
        self._tokenizer = tokenizer
        self._session = session
        self._longest = longest
        self._unknown = tokenizer.unknown if isinstance(tokenizer, UnigramTokenizer) else _unknown_token(tokenizer)
        self._types = {tensor.name: _TYPES[tensor.type] for tensor in session.get_inputs()}

    def logits(self, pairs: Sequence[TextPair]) -> list[NDArray[np.float64] | float]:
        """Return the logits of each pair, shape (labels,).

        A score in their place: 0 for a pair of more tokens than the model reads, UNREAD for one with an unknown token.
        Each pair is read by itself: an int8 graph scales what it adds up by all that it is given at once, so that a
        score would depend on the pairs beside it (by up to 0.1), and what is read together is padded.
        """
        encoded: Sequence[Any] = self._tokenizer.encode_batch(list(pairs))
        made: list[NDArray[np.float64] | float] = [0.0 if self._unknown not in row.ids else UNREAD for row in encoded]
        for row, encoding in enumerate(encoded):
            if not made[row] and len(encoding.ids) <= self._longest:
                made[row] = np.asarray(self._session.run(None, self._inputs(encoding))[0][0], np.float64)
        return made

    def _inputs(self, encoded: Any) -> dict[str, NDArray[Any]]:
        columns = {
            "input_ids": encoded.ids, "attention_mask": encoded.attention_mask, "token_type_ids": encoded.type_ids,
        }  # fmt: skip
        return {name: np.array([columns[name]], kind) for name, kind in self._types.items()}


def _unknown_token(tokenizer: Tokenizer) -> int | None:
    """Return the id that the tokenizer gives to what it does not know; None where it knows everything."""
    # Only these keys are read: as Python strings all tokens would take many megabytes.
    _, _, model = tokenizer.to_str().partition('"model":')
    stated = {match[1]: json.loads(match[2]) for match in _UNKNOWN.finditer(model)}
    token, number = stated.get("unk_token"), stated.get("unk_id")  # Unigram names it by its number
    return number if token is None else tokenizer.token_to_id(token)


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CrossEncoderError(f"{path}: {error}; {_EXPORT}") from None
    if not isinstance(value, dict):
        raise CrossEncoderError(f"{path}: not an object; {_EXPORT}")
    return value


def _read_tokenizer(path: Path) -> Tokenizer | UnigramTokenizer:
    # A single pair does not need a thread pool.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer

    try:
        unigram = UnigramTokenizer.of(path.read_bytes())
        if unigram is not None:
            return unigram
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001  (the library raises bare Exceptions)
        raise CrossEncoderError(f"{path}: {error}; {_EXPORT}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _open_session(model: Path, threads: int) -> InferenceSession:
    import onnxruntime  # here: it takes longer to import than the rest of the cache

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    # A thread that spins while it waits for work takes the core from those that have some.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001  (as above)
        raise CrossEncoderError(f"{model}: {error}; {_EXPORT}") from None


def _check_inputs(model: Path, session: InferenceSession) -> None:
    inputs = {tensor.name: tensor.type for tensor in session.get_inputs()}
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
    limits = [length for length in (positions, limit) if length is not None and 2 < length < _LONGEST]
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


def digests_of_files(folder: Path, model: Path) -> tuple[str, str]:
    """Return the SHA-256 of the graph's file and the files of its weights, as if they were one; and the version: the
    first digits of one over all that makes the scores. Raises OSError.
    """
    graph, every = hashlib.sha256(), hashlib.sha256()
    buffer = memoryview(bytearray(_READ_AT_ONCE))  # whole, the weights would take 45 MB
    for path in (model, *weights_beside(model)):
        own = hashlib.sha256()
        with path.open("rb", buffering=0) as file:
            while size := file.readinto(buffer):
                graph.update(buffer[:size])
                own.update(buffer[:size])
        every.update(own.digest())
    for name in _BESIDE:
        every.update(bytes.fromhex(sha256_of(folder / name)))
    return graph.hexdigest(), every.hexdigest()[:12]


def weights_beside(model: Path) -> list[Path]:
    """Return the files with a graph's weights, named as the graph's file with something after it; ONNX Runtime maps
    them instead of copying them, so that the processes of a machine share what they read of them.
    """
    return sorted(set(model.parent.glob(f"{model.name}*")) - {model})


class _Stated(NamedTuple):
    """What a data sheet states: thresholds, weights of the cosine by encoder, scripts and languages; the SHA-256 of the
    graph (None without a sheet), and the version of the files, or ''.
    """

    strict: float | None = None
    cosine_weights: Mapping[str, float] = MappingProxyType({})
    scripts: Collection[str] = SCRIPTS
    languages: Collection[str] = _ENGLISH
    same_answer: float | None = None
    other_answer: float = SURELY_OTHER
    language_offsets: Mapping[str, float] = MappingProxyType({})
    label_errors: ComparedPairs = ComparedPairs()
    sha256: str | None = None
    files_version: str = ""


def _stated(sheet: Path) -> _Stated:
    """Return what a data sheet states; nothing but the default without a sheet."""
    if not sheet.is_file():
        return _Stated()
    facts = _read_json(sheet)
    strict, weights = facts.get("strict"), facts.get(COSINE_WEIGHTS, {})
    scores: dict[str, Any] = {SAME_ANSWER: strict, OTHER_ANSWER: SURELY_OTHER, **facts, "strict": strict}
    for name in ("strict", SAME_ANSWER, OTHER_ANSWER):
        score = scores[name]
        if not isinstance(score, int | float) or not 0 <= score <= 1:
            raise CrossEncoderError(f"{sheet}: {name} is {score!r}; it must be a score from 0 to 1")
    numbers = weights.values() if isinstance(weights, dict) else [None]
    if not all(isinstance(number, int | float) and 0 <= number < math.inf for number in numbers):
        raise CrossEncoderError(f"{sheet}: {COSINE_WEIGHTS} is {weights!r}; it must map encoders to numbers from 0")
    return _Stated(
        float(scores["strict"]),
        {str(name): float(number) for name, number in weights.items()},
        _names_in(sheet, facts, READ_SCRIPTS, SCRIPTS, "Latin and Han"),
        _names_in(sheet, facts, READ_LANGUAGES, _ENGLISH, "en and zh"),
        float(scores[SAME_ANSWER]),
        float(scores[OTHER_ANSWER]),
        _offsets_in(sheet, facts),
        _label_errors_in(sheet, facts),
        str(facts.get("sha256")),
        str(facts.get(FILES_VERSION, "")),
    )


def _label_errors_in(sheet: Path, facts: Mapping[str, Any]) -> ComparedPairs:
    """Return how often audits err that compare answers with the model, as a data sheet states it."""
    counts = facts.get(LABEL_ERRORS, {})
    try:
        return ComparedPairs(**counts)
    except (TypeError, ValueError) as error:
        raise CrossEncoderError(f"{sheet}: {LABEL_ERRORS}: {error}; run tools.choose_answer_thresholds again") from None


def _offsets_in(sheet: Path, facts: Mapping[str, Any]) -> dict[str, float]:
    """Return the offsets of the logit by language that a data sheet states."""
    offsets = facts.get(LANGUAGE_OFFSETS, {})
    numbers = offsets.values() if isinstance(offsets, dict) else [None]
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        raise CrossEncoderError(f"{sheet}: {LANGUAGE_OFFSETS} is {offsets!r}; it must map languages to numbers")
    return {str(name): float(number) for name, number in offsets.items()}


def _names_in(
    sheet: Path, facts: Mapping[str, Any], key: str, default: Collection[str], such_as: str
) -> frozenset[str]:
    """Return the names that a data sheet lists under a key."""
    names = facts.get(key, sorted(default))
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise CrossEncoderError(f"{sheet}: {key} is {names!r}; it must list names such as {such_as}")
    return frozenset(names)
