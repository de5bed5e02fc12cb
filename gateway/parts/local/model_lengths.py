"""Read the context lengths that a server of open models tells: in its list of models, or by llama.cpp's `/props`.

vLLM, SGLang        max_model_len
LM Studio, others   context_length, context_window, max_context_length
llama.cpp           meta.n_ctx, or default_generation_settings.n_ctx of /props: of one slot
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

_NAMES: Final = ("max_model_len", "loaded_context_length", "context_length", "context_window", "max_context_length")
_LEAST: Final = 256
_MOST: Final = 10**9


def contexts_in(models: Iterable[Any]) -> dict[str, int]:
    """Return the context length of each model in a server's list that has one, by its id."""
    contexts = {}
    for model in models:
        meta = model.get("meta")
        told = [_length(model.get(name)) for name in _NAMES]
        told.append(_length(meta.get("n_ctx")) if isinstance(meta, Mapping) else None)
        context = next((length for length in told if length is not None), None)
        if context is not None:
            contexts[str(model["id"])] = context
    return contexts


def context_in_props(props: Any) -> int | None:
    """Return the context length of a slot in llama.cpp's `/props`; None if it tells none."""
    settings = props.get("default_generation_settings") if isinstance(props, Mapping) else None
    return _length(settings.get("n_ctx")) if isinstance(settings, Mapping) else None


def _length(value: Any) -> int | None:
    """Return a value that is a likely number of tokens; None for any other."""
    return value if type(value) is int and _LEAST <= value <= _MOST else None
