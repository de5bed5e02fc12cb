"""The request that has a backend go on with a text which another began, by what that backend can do.

prefill                 the text is an assistant message at the end, and the model takes it as its own beginning
                        (llama.cpp's server, Anthropic's API)
continue_final_message  the same, and vLLM is told so by two fields of its own
prompt                  the text is an assistant message, and a user message asks for the rest
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from routing.confidence.judge import loop_period

Way = Literal["prefill", "continue_final_message", "prompt"]

GO_ON: Final = (
    "Your answer broke off there. Go on from exactly where it stopped, in the middle of a word if need be. "
    "Write only what comes next: repeat nothing, and say nothing about the interruption."
)
_WORD: Final = re.compile(r"\S+")
_LIMITS: Final = ("max_tokens", "max_completion_tokens")


def handed_over(body: Mapping[str, Any], text: str, tokens: int, way: Way) -> dict[str, Any]:
    """The request for the rest of an answer of which `text`, so many tokens, has been said."""
    changed = dict(body)
    for name in _LIMITS:
        if type(limit := body.get(name)) is int:
            changed[name] = max(1, limit - tokens)
    if way == "prompt":
        changed["messages"] = [*_with_beginning(body["messages"], text), {"role": "user", "content": GO_ON}]
        return changed
    # White space at the end is refused by some (Anthropic), trimmed by chat templates, and a poor start for a token.
    changed["messages"] = _with_beginning(body["messages"], text.rstrip())
    if way == "continue_final_message":
        changed |= {"add_generation_prompt": False, "continue_final_message": True}
        # vLLM's grammar would ask for the first bracket once more; llama.cpp leads its own through the beginning.
        changed.pop("response_format", None)
    return changed


def _with_beginning(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """The conversation with the beginning of the answer; where the client began it itself, the two are one message."""
    last = messages[-1]
    if last.get("role") == "assistant" and isinstance(last.get("content"), str):
        return [*messages[:-1], {**last, "content": last["content"] + text}]
    return [*messages, {"role": "assistant", "content": text}]


def without_loop(text: str) -> str:
    """A text that ends in a loop, up to the end of its first round: who is to go on with it must not go on so."""
    found = list(_WORD.finditer(text))
    words = [match.group() for match in found]
    for end in (len(words), len(words) - 1):  # the last word may not be whole
        if period := loop_period(words[:end]):
            at = end - period
            while at > 0 and words[at - 1] == words[at - 1 + period]:
                at -= 1
            return text[: found[at + period - 1].end()]
    return text
