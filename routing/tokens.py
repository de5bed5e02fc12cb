"""How many tokens a request takes, without a tokenizer: an estimate, and a bound to hold against a model's context.

Both count a text's UTF-8 bytes by kind, in a pass or two of C: 8,000 characters take 0.2 us (the estimate of ASCII) to
50 us (the bound of Chinese). A tokenizer would take milliseconds, and know one model.

The bound: a byte-level tokenizer has no token of less than a byte, so a byte that is not ASCII counts as one token, and
so does an ASCII capital, digit or mark. Lowercase letters and spaces, of which words are made, count as 3/7. Measured
with the tokenizer of SmolLM2-135M (llama.cpp's /tokenize), which knows little but English, on article 1 of the
Universal Declaration of Human Rights and on files of this project: tokens per character, and the bound over them.

    English 0.19 2.3x    German  0.37 1.3x    Russian 0.73 2.3x    Chinese  1.72 1.7x    Python   0.26 1.7x
    Italian 0.35 1.2x    Polish  0.48 1.1x    Arabic  0.90 1.9x    Japanese 1.78 1.7x    JSON     0.24 1.9x
    Swahili 0.42 1.1x    Turkish 0.46 1.2x    Hindi   1.06 2.3x    Korean   2.21 1.0x    numbers  1.00 1.0x
    Zulu    0.42 1.1x    Greek   0.84 2.1x    Thai    1.88 1.6x    Amharic  3.00 1.0x    base64   0.80 0.9x

Letters at random are what it is too low for (0.7 to 0.95); the room for the reply, which is rarely used up, makes up
for that, and where it does not the backend says itself that the request is too long.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

_SAMPLED: Final = 1 << 16
_WORDS: Final = b"abcdefghijklmnopqrstuvwxyz "
_OF_A_TEMPLATE: Final = 64
"""What a chat template adds once: SmolLM2's 24, with its default system prompt."""
_OF_A_MESSAGE: Final = 8
"""What it adds to each message: SmolLM2's 5."""
_OF_TOOLS: Final = 200
"""What it says before the list of tools."""
_OF_AN_IMAGE: Final = 1600
_REPLY: Final = 256
"""The room for a reply whose length nobody limits."""
_REPLY_LIMITS: Final = ("max_completion_tokens", "max_tokens")
_IMAGES: Final = frozenset({"image_url", "input_image", "image"})
_BESIDE_CONTENT: Final = ("tool_calls", "function_call", "reasoning_content", "name")


def estimated_tokens(text: str) -> float:
    """About how many tokens a text has: a quarter of its ASCII characters, 5/8 for two bytes of UTF-8, 1 for three.

    Of a text of more than 65,536 characters, that many are looked at.
    """
    if text.isascii():  # known without a look at it
        return len(text) / 4
    some = text[:_SAMPLED]
    more = len(some.encode("utf-8", "surrogatepass")) - len(some)
    return len(text) * (1 / 4 + more / len(some) * 3 / 8)


def most_tokens(text: str) -> int:
    """How many tokens a text has at most, as prose or code goes; see the module's docstring."""
    data = text.encode("utf-8", "surrogatepass")
    rest = len(data.translate(None, _WORDS))
    return rest + (len(data) - rest) * 3 // 7


def text_of(content: object) -> tuple[str, int]:
    """A message's text, and how many images it holds. Content is a string, a list of typed parts, or null."""
    if isinstance(content, str):
        return content, 0
    if not isinstance(content, list):
        return "", 0
    texts: list[str] = []
    images = 0
    for part in content:
        if isinstance(part, dict):
            if isinstance(part.get("text"), str):
                texts.append(part["text"])
            images += part.get("type") in _IMAGES
    return "\n".join(texts), images


def room_needed(body: Mapping[str, Any], enough: int = sys.maxsize) -> int:
    """How many tokens the prompt of a checked chat-completions body and its reply take together at most.

    More than `enough` (the largest context that is asked about) is not counted to its end: a body of megabytes costs no
    more than one of that many tokens.
    """
    messages: Sequence[Mapping[str, Any]] = body["messages"]
    limits = [limit for key in _REPLY_LIMITS if (limit := body.get(key)) is not None]
    tokens = max(limits, default=_REPLY) + _OF_A_TEMPLATE + _OF_A_MESSAGE * len(messages)
    for message in messages:
        if tokens > enough:
            return tokens
        text, images = text_of(message.get("content"))
        least = len(text) * 3 // 7  # by these rules a text never comes to less
        tokens += (least if tokens + least > enough else most_tokens(text)) + images * _OF_AN_IMAGE
        if len(message) > 2:  # more than a role and content
            tokens += sum(_of_json(message[key]) for key in _BESIDE_CONTENT if message.get(key))
    for key in ("tools", "functions"):
        if body.get(key) and tokens <= enough:
            tokens += _OF_TOOLS + _of_json(body[key])
    wanted = body.get("response_format")
    if isinstance(wanted, dict) and "json_schema" in wanted and tokens <= enough:
        tokens += _of_json(wanted)
    return tokens


def _of_json(value: object) -> int:
    return most_tokens(orjson.dumps(value).decode())
