"""Read features off a request without a model, estimate and bound its tokens, and lay a policy's limits over it.

The features are the inputs of the difficulty classifier and of start rules.

Tokens are counted by a text's UTF-8 bytes by kind, in one or two passes of C: 8,000 characters take between 0.2 us (the
estimate, ASCII) and 50 us (the bound, Chinese). A tokenizer takes milliseconds, and is right for one model only.

The bound: a byte-level tokenizer has no token of less than a byte, so a byte that is not ASCII counts as one token, and
so does an ASCII capital, digit or mark. Lowercase letters and spaces, which make up words, count as 3/7. Measured
with the tokenizer of SmolLM2-135M (llama.cpp's /tokenize), trained almost only on English, on article 1 of the
Universal Declaration of Human Rights and on files of this project: tokens per character, and the bound over them.

    English 0.19 2.3x    German  0.37 1.3x    Russian 0.73 2.3x    Chinese  1.72 1.7x    Python   0.26 1.7x
    Italian 0.35 1.2x    Polish  0.48 1.1x    Arabic  0.90 1.9x    Japanese 1.78 1.7x    JSON     0.24 1.9x
    Swahili 0.42 1.1x    Turkish 0.46 1.2x    Hindi   1.06 2.3x    Korean   2.21 1.0x    numbers  1.00 1.0x
    Zulu    0.42 1.1x    Greek   0.84 2.1x    Thai    1.88 1.6x    Amharic  3.00 1.0x    base64   0.80 0.9x

Random letters exceed the bound (it is 0.7 to 0.95 of their tokens). The room for the reply, which is rarely used up,
covers the difference; where it does not, the backend itself rejects the request as too long.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

import orjson

from policies.value_type import from_fields

if TYPE_CHECKING:
    from policies.model import Output

_SAMPLED: Final = 1 << 16
_WORDS: Final = b"abcdefghijklmnopqrstuvwxyz "
_OF_A_TEMPLATE: Final = 64
"""Tokens that a chat template adds once: 24 in SmolLM2's, with its default system prompt."""
_OF_A_MESSAGE: Final = 8
"""Tokens that a chat template adds to each message: 5 in SmolLM2's."""
_OF_TOOLS: Final = 200
"""Tokens that a chat template adds before the list of tools."""
OF_AN_IMAGE: Final = 1600
"""Tokens that a picture counts as: the most that one of ordinary size takes at the large providers."""
_REPLY: Final = 256
"""Tokens reserved for a reply without a length limit."""
_LONGEST_NEED: Final = 8192
"""Highest limit of a reply, in tokens, that is taken for the length which the client needs."""
_REPLY_LIMITS: Final = ("max_completion_tokens", "max_tokens")
_IMAGES: Final = frozenset({"image_url", "input_image", "image"})
_BESIDE_CONTENT: Final = ("tool_calls", "function_call", "reasoning_content", "name")


def estimated_tokens(text: str) -> float:
    """Estimate a text's tokens: 1/4 per ASCII character, 5/8 per character of two UTF-8 bytes, 1 per one of three.

    Of a text that is not ASCII only the first 65,536 characters are sampled.
    """
    if text.isascii():  # Python stores this flag: no scan
        return len(text) / 4
    some = text[:_SAMPLED]
    more = len(some.encode("utf-8", "surrogatepass")) - len(some)
    return len(text) * (1 / 4 + more / len(some) * 3 / 8)


def most_tokens(text: str) -> int:
    """Return an upper bound of a text's tokens, valid for prose and code; see the module's docstring."""
    data = text.encode("utf-8", "surrogatepass")
    rest = len(data.translate(None, _WORDS))
    return rest + (len(data) - rest) * 3 // 7


def text_of(content: object) -> tuple[str, int]:
    """Return a message's text and its number of images. Content is a string, a list of typed parts, or null."""
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


def room_needed(body: Mapping[str, Any], enough: int = sys.maxsize, *, own_limit: bool = True) -> int:
    """Return an upper bound of the tokens that a checked chat-completions body and its reply take together.

    Counting stops above `enough` (the largest context under consideration), so that a body of megabytes costs no more
    time than one of that many tokens. Unless the limit of the reply is the client's own, room for an ordinary one is
    enough: the limit then says what the reply may not exceed, not what it needs.
    """
    messages: Sequence[Mapping[str, Any]] = body["messages"]
    limits = [limit for key in _REPLY_LIMITS if (limit := body.get(key)) is not None]
    reply = max(limits, default=_REPLY)
    tokens = (reply if own_limit else min(reply, _REPLY)) + _OF_A_TEMPLATE + _OF_A_MESSAGE * len(messages)
    for message in messages:
        if tokens > enough:
            return tokens
        text, images = text_of(message.get("content"))
        least = len(text) * 3 // 7  # the smallest bound that any text of this length can have
        tokens += (least if tokens + least > enough else most_tokens(text)) + images * OF_AN_IMAGE
        if len(message) > 2:  # has keys other than role and content
            tokens += sum(_of_json(message[key]) for key in _BESIDE_CONTENT if message.get(key))
    for key in ("tools", "functions"):
        if body.get(key) and tokens <= enough:
            tokens += _OF_TOOLS + _of_json(body[key])
    wanted = body.get("response_format")
    if isinstance(wanted, dict) and "json_schema" in wanted and tokens <= enough:
        tokens += _of_json(wanted)
    return tokens


def room_wanted(body: Mapping[str, Any], enough: int, *, own_limit: bool) -> int:
    """Return an upper bound of the tokens that a tier must hold to be of use to a request.

    A limit of the client's own counts as the room that its reply needs, up to _LONGEST_NEED tokens. A higher one is a
    ceiling, as agents set it for every step: it is lowered to what the tier has beside the prompt.
    """
    limit = max([limit for key in _REPLY_LIMITS if (limit := body.get(key)) is not None], default=0)
    return room_needed(body, enough, own_limit=own_limit and limit <= _LONGEST_NEED)


def _of_json(value: object) -> int:
    return most_tokens(orjson.dumps(value).decode())


_AUDIO: Final = frozenset({"input_audio", "audio"})
_FILES: Final = frozenset({"file", "input_file", "document"})
_FETCHED: Final = ("https://", "http://")
_SPECIAL_FIELDS: Final = frozenset({"audio", "modalities", "web_search_options", "n", "background", "service_tier"})
_NOTHING_FURTHER: Final[frozenset[str]] = frozenset()
Capability = Literal[
    "tools", "vision", "json", "audio", "files", "web_search", "hosted_tools", "n", "background", "store",
    "prompt_cache_key",
]  # fmt: skip
"""What a backend can do, as its config lists it."""
ServiceTier = Literal["flex", "priority", "other"]
"""A service tier that a backend may honour: `other` is any further value that its API has, such as `scale`."""
SERVICE_TIERS: Final[tuple[ServiceTier, ...]] = get_args(ServiceTier)
Further = Literal[
    "audio", "files", "web_search", "hosted_tools", "n", "background", "service_tier_flex", "service_tier_priority",
    "service_tier_other", "responses_hosted_tools", "messages_hosted_tools", "messages_web_search", "file_urls",
]  # fmt: skip
FURTHER: Final[tuple[Further, ...]] = get_args(Further)
"""Capabilities that few requests need, besides tools, vision and JSON; new ones are added at the end.

`n` is more than one choice. Hosted tools are run by the provider, and each API has its own, so that clients of the
Responses API and of the Messages API need those of a backend of the same kind. (`hosted_tools` is the need of both in
older records of decisions.) `file_urls` is a file that the provider must fetch, `files` is any other. What changes no
answer is not needed: whether the provider keeps it (`store`), and which prompt cache it uses (`prompt_cache_key`).
"""
PROVIDERS_TOOLS: Final = frozenset({"responses_hosted_tools", "messages_hosted_tools", "messages_web_search"})
"""The needs of requests with tools that chat completions cannot list."""
_FIELD_OF: Final[Mapping[str, str]] = {
    "n": "n",
    "background": "background",
    **{f"service_tier_{name}": "service_tier" for name in SERVICE_TIERS},
    "web_search": "web_search_options",
    "responses_hosted_tools": "tools",
    "messages_hosted_tools": "tools",
    "messages_web_search": "tools",
    "tools": "tools",
    "json": "response_format",
}
"""The field of a chat-completions body that needs a capability, where it is not the messages."""
_ORDINARY: Final = frozenset({"auto", "default", "standard_only"})
"""Service tiers that every backend honours: the ordinary one, by its names in all APIs."""
_SERVICE_TIER_NAMED: Final = {"flex": "flex", "priority": "priority", "fast": "priority"}
"""The service tier of each value that is known; OpenAI's API has two names for one."""
_JSON_FORMATS = frozenset({"json_object", "json_schema"})


_SHORT: Final = 24
"""Width up to which a message in a conversation hangs on what was said before: `yes`, `go on`, `why?`."""
_REFERS: Final = 160
"""Characters up to which a message that refers to what was said before hangs on it; a longer one says enough itself."""
_BACK: Final = 16
"""Most user messages that are looked through for the one that the last one hangs on."""
SPACELESS: Final = r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
"""Thai, Japanese, Chinese and Korean: words follow each other, or take endings, without a space."""


def _word_lists() -> dict[str, str]:
    """Return each list of `follow_ups.toml` as alternatives of a regular expression.

    They are grouped by the first letter, which halves the time of a search, the longest first.
    """
    alternatives = {}
    for name, words in tomllib.loads((Path(__file__).parent / "follow_ups.toml").read_text("utf-8")).items():
        groups: dict[str, list[str]] = {}
        for word in sorted(words, key=len, reverse=True):
            end = "" if re.match(SPACELESS, word[-1]) else r"\b"
            groups.setdefault(word[0], []).append(re.escape(word[1:]) + end)
        alternatives[name] = "|".join(f"{first}(?:{'|'.join(rest)})" for first, rest in groups.items())
    return alternatives


_WORD_LISTS: Final = _word_lists()
_ASKS_NOTHING: Final = re.compile(r"(?:\W*(?:{asks_nothing}))+\W*".format_map(_WORD_LISTS))
_INTERJECTIONS: Final = re.compile(r"\W*(?:(?:{interjections})\W*)*".format_map(_WORD_LISTS))
_OPENING: Final = re.compile(r"(?P<refers>{openers})|{new_topic}".format_map(_WORD_LISTS))
_REFERRING: Final = re.compile(
    rf"(?:\b|(?<={SPACELESS}))"
    r"(?:{referring}|(?:{pronouns})(?=\W*$|[?.!,;。?!,؟،])|(?:{ordinals}) (?:{parts})|step \d)".format_map(_WORD_LISTS)
)


def hangs(text: str) -> bool:
    """Return whether a message in a conversation says too little by itself: a short one, or one that refers back.

    Interjections in front of what it says do not count: `ok, now what is the capital of Peru?` says enough.
    """
    if len(text) > _REFERS:
        return False
    lower = text.lower()
    interjections = _INTERJECTIONS.match(lower)
    start = interjections.end() if interjections else 0
    opening = _OPENING.match(lower, start)
    if (opening and opening["refers"]) or _REFERRING.search(lower, start):
        return True
    return not opening and _width(lower) - start <= _SHORT and not _ASKS_NOTHING.fullmatch(lower)


def _width(text: str) -> int:
    """Return a text's length, with 3 for each character where most are Chinese, Japanese, Korean or the like."""
    size = len(text.encode("utf-8", "surrogatepass"))
    return size if size > 2 * len(text) else len(text)


def text_in_context(turns: Sequence[str]) -> str:
    """Return the text whose difficulty is that of the last of these user messages; '' where that is its own.

    A message that hangs on what was said before is as hard as what it hangs on: the latest message before it that says
    enough itself, or else the longest, at most _BACK messages back, is rated in its place. (Joined, they are like no
    text that the classifier was fitted to.) What was asked before that has no part in it.
    """
    if not hangs(turns[-1]):
        return ""
    earlier = turns[-2 : -_BACK - 2 : -1]
    before = next((turn for turn in earlier if not hangs(turn)), max(earlier, key=len, default=""))
    return before if _width(before) > _SHORT else ""


class Features(NamedTuple):
    """The features of one request. `text` is the last user message's; `approx_tokens` estimates all messages.

    `tools` is the number of tools, `parallel_tools` whether the request asks for calls of several at once. `further`
    are the capabilities of FURTHER that it needs.
    """

    text: str
    turns: int
    approx_tokens: int
    has_tools: bool = False
    wants_json: bool = False
    has_images: bool = False
    stream: bool = False
    tools: int = 0
    parallel_tools: bool = False
    further: frozenset[str] = _NOTHING_FURTHER
    reasoning_above: bool = False
    """Whether its messages hold signed reasoning of a tier above the cheapest, which that one could not be sent."""
    in_context: str = ""
    """The text that is rated in place of `text`: see `text_in_context`; '' for `text` itself."""
    earlier: tuple[str, ...] = ()
    """The user's messages before the last, the latest first, at most _BACK of them."""
    before: float | None = None
    """How hard the earlier turns make this one, 0..1; None where nothing estimates it."""
    last_tier: int = 0
    """Place on its surface's ladder, from 1, of the tier that gave the answer before; 0 where it is not known."""

    @property
    def rated_text(self) -> str:
        """The text that the classifier reads, and whose vector it is given."""
        return self.in_context or self.text

    @property
    def as_rated(self) -> Features:
        """The features with `rated_text` as their text, as the classifier reads them."""
        return self._replace(text=self.in_context, in_context="") if self.in_context else self


_features: Final = from_fields(Features)


def features_of_text(text: str) -> Features:
    """Return the features of a request that consists of this one message, as labelled prompts do."""
    return Features(text=text, turns=1, approx_tokens=int(estimated_tokens(text)) + 4)


def features_of(body: Mapping[str, Any]) -> Features:
    """Return the features of a checked chat-completions body (`messages` is a list of objects with a `role` each)."""
    messages: Sequence[Mapping[str, Any]] = body["messages"]
    tokens, images = 0.0, 0
    asked: list[str] = []
    special = False
    for message in messages:
        content = message.get("content")
        special = special or type(content) is list or "audio" in message
        part, shown = (content, 0) if type(content) is str else text_of(content)
        tokens += estimated_tokens(part)
        images += shown
        if message["role"] == "user":
            asked.append(part)
    response_format = body.get("response_format")
    tools = body.get("tools") or body.get("functions") or ()
    several = len(asked) > 1
    return _features(
        (
            asked[-1] if asked else "",
            len(asked),
            int(tokens) + 4 * len(messages),
            bool(tools),
            isinstance(response_format, dict) and response_format.get("type") in _JSON_FORMATS,
            images > 0,
            bool(body.get("stream")),
            len(tools),
            bool(tools) and body.get("parallel_tool_calls") is True,
            _further(body) if special or not _SPECIAL_FIELDS.isdisjoint(body) else _NOTHING_FURTHER,
            False,
            text_in_context(asked) if several else "",
            tuple(asked[-2 : -_BACK - 2 : -1]) if several else (),
            None,
            0,
        )
    )


def _further(body: Mapping[str, Any]) -> frozenset[str]:
    """Return the capabilities of FURTHER that a chat-completions body needs: by its messages, and by what it asks."""
    messages: Sequence[Mapping[str, Any]] = body["messages"]
    contents = [content for message in messages if isinstance(content := message.get("content"), list)]
    parts = [part for content in contents for part in content if isinstance(part, dict)]
    kinds = {part.get("type") for part in parts}
    fetched = [url_of_file(part.get("file")) is not None for part in parts if part.get("type") in _FILES]
    modalities = body.get("modalities")
    speaks = isinstance(modalities, list) and "audio" in modalities
    spoke = any(message.get("audio") for message in messages)
    needed = {
        "audio": speaks or spoke or body.get("audio") is not None or not kinds.isdisjoint(_AUDIO),
        "files": False in fetched,
        "file_urls": True in fetched,
        "web_search": body.get("web_search_options") is not None,
        "n": (body.get("n") or 1) > 1,
        "background": bool(body.get("background")),
    }
    names = [name for name, is_needed in needed.items() if is_needed]
    tier = body.get("service_tier")
    if isinstance(tier, str) and tier not in _ORDINARY:
        names.append(f"service_tier_{_SERVICE_TIER_NAMED.get(tier, 'other')}")
    return frozenset(names)


def url_of_file(file: object) -> str | None:
    """Return the URL that the file of a part names in place of its data (as OpenRouter has it) or id (as LiteLLM)."""
    if not isinstance(file, Mapping):
        return None
    named = (file.get("file_data"), file.get("file_id"))
    return next((value for value in named if isinstance(value, str) and value.startswith(_FETCHED)), None)


def field_needing(capability: str, body: Mapping[str, Any]) -> str:
    """Return the path of what needs a capability in a chat-completions body: a field, or the first part of its kind."""
    kinds = {"audio": _AUDIO, "files": _FILES, "file_urls": _FILES, "vision": _IMAGES}.get(capability, ())
    of_files = {"files": False, "file_urls": True}.get(capability)
    for i, message in enumerate(body["messages"]):
        content = message.get("content")
        for j, part in enumerate(content if isinstance(content, list) else ()):
            if not isinstance(part, dict) or part.get("type") not in kinds:
                continue
            if of_files is None or of_files is (url_of_file(part.get("file")) is not None):
                return f"messages[{i}].content[{j}]"
        if capability == "audio" and message.get("audio"):
            return f"messages[{i}].audio"
    if capability == "audio":
        return "modalities" if body.get("modalities") is not None else "audio"
    if capability == "tools" and not body.get("tools"):
        return "functions"
    return _FIELD_OF.get(capability, "messages")


_TOKEN_LIMITS: Final = ("max_completion_tokens", "max_tokens")
"""Token limits of a request: OpenAI's API prefers the first; many other servers support only the second."""


def effective_body(body: dict[str, Any], output: Output) -> tuple[Mapping[str, Any], bool]:
    """Return the body to send, and whether its token limit is the client's own rather than the policy's."""
    limited = not body.keys().isdisjoint(_TOKEN_LIMITS)
    given = {key: body[key] for key in _TOKEN_LIMITS if body.get(key) is not None} if limited else {}
    cap = output.max_tokens
    # Backends differ in which of two limits they use, so both are capped; the smaller is taken as the client's.
    own_limit = bool(given) and (cap is None or min(given.values()) <= cap)
    changes: dict[str, Any] = {}
    if cap is not None:
        changes = {key: cap for key, limit in given.items() if limit > cap} if given else {_TOKEN_LIMITS[0]: cap}
    if output.stop:
        changes["stop"] = [*_listed(body.get("stop")), *output.stop]
    return ({**body, **changes} if changes else body), own_limit


def within(body: Mapping[str, Any], most: int) -> Mapping[str, Any]:
    """Return the body with its token limits lowered to `most`; the body itself if none is above it."""
    lowered = {key: most for key in _TOKEN_LIMITS if (limit := body.get(key)) is not None and limit > most}
    return {**body, **lowered} if lowered else body


def limit_of(body: Mapping[str, Any]) -> int | None:
    """Return the token limit of a body, the smaller of two; None if it has none."""
    return min([limit for key in _TOKEN_LIMITS if (limit := body.get(key)) is not None], default=None)


def limited(body: Mapping[str, Any], most: int) -> Mapping[str, Any]:
    """Return the body with a token limit of at most `most`, added where it has none."""
    return within(body, most) if limit_of(body) is not None else {**body, _TOKEN_LIMITS[0]: most}


def _listed(stop: object) -> list[Any]:
    if stop is None:
        return []
    return list(stop) if isinstance(stop, list) else [stop]
