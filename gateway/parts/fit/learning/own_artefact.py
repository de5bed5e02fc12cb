"""Write a classifier of one's own: a copy of another's numbers, the heads that correct it, and a data sheet."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.parts.fit.training.sheet import write_artefact
from routing.difficulty.model import FORMAT, NEIGHBOURS_FORMAT, OWN_FORMAT, SHEET_FILE, WEIGHTS_FILE, ArtefactError
from routing.difficulty.own_heads import PREFIX, OwnHeads


def save_own(base: Path, heads: OwnHeads, folder: Path, name: str, sheet: Mapping[str, Any]) -> Path:
    """Write the artefact into `folder`, as `name` and the first digits of its hash; return its path.

    `base` is the folder of the classifier that the heads were fitted on; if that is one's own too, its heads are
    replaced. Raises ArtefactError and OSError.
    """
    from safetensors import safe_open
    from safetensors.numpy import load_file
    from safetensors.numpy import save as serialise

    weights = base / WEIGHTS_FILE
    with safe_open(weights, "numpy") as opened:
        metadata = opened.metadata()
    made = metadata.get(FORMAT) or metadata.get(OWN_FORMAT) or metadata.get(NEIGHBOURS_FORMAT)
    if made is None or int(json.loads(made)["tiers"]) != 2:
        raise ArtefactError(f"{weights} is not a classifier of two tiers, on which own heads could stand")
    tensors = {key: tensor for key, tensor in load_file(weights).items() if not key.startswith(PREFIX)}
    format_ = OWN_FORMAT if heads.stored is None else NEIGHBOURS_FORMAT
    numbers = serialise({**tensors, **heads.tensors()}, metadata={format_: made})
    stated = json.loads((base / SHEET_FILE).read_bytes())
    digest = hashlib.sha256(numbers).hexdigest()
    complete = {
        "format": format_,
        "sha256": digest,
        "embedder": json.loads(made)["embedder"],
        **sheet,
        "base": stated["sha256"],
        "measured": {**sheet.get("measured", {}), "kinds": stated["measured"]["kinds"]},
    }
    written = folder / f"{name}-{digest[:12]}"
    write_artefact(written, {WEIGHTS_FILE: numbers}, SHEET_FILE, complete)
    return written
