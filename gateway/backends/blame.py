"""Say whose fault an error reply is, by its status, code and words: one table for every backend and service.

    blame     whose fault                   next tier       the endpoint             the client gets
    request   the caller's own              no              untouched                its status, the provider's words
    unknown   nobody can tell: a 400 or 422 once            untouched                its status, the provider's words
              in words of its own
    content   what the prompt says          by the policy   untouched                400 content_filter, the words
    unfit     nobody's: this endpoint does  yes             untouched                400, 413, 422 or 429, the words; of
              not take such a request                                                any other status, 502
    model     ours: model or URL is gone    yes             out for 30 s, alarm      502
    key       ours: the key is refused      yes             out for 30 s, alarm      502
    account   ours: no quota or credit      yes             out for 30 s, alarm      502, or 429 insufficient_quota
    pause     nobody's: it is at its limit  yes             paused as long as asked  429 or 503, with Retry-After
    server    the server's                  yes             its breaker counts it    502

`gateway.cascade.attempt` makes an attempt's outcome of it, by which `routing.cascade` takes the next tier.

Words decide only what concerns the one request, for an error may quote what the caller wrote: nobody may take a backend
from others by a prompt. What puts an endpoint out is decided by status, code, and how a message begins.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import orjson

Blame = Literal["request", "unknown", "content", "unfit", "model", "key", "account", "pause", "server"]

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class _Row(NamedTuple):
    """One row of blame.toml, which says what each field means."""

    blame: Blame
    statuses: frozenset[int]
    codes: str = ""
    words: str = ""
    html: bool = False
    waits: bool = False


_DATA: Final = tomllib.loads(Path(__file__).with_name("blame.toml").read_text("utf-8"))
_TABLE: Final = tuple(
    _Row(**{**row, "statuses": frozenset(range(400, 500) if row["statuses"] == "4xx" else row["statuses"])})
    for row in _DATA["row"]
)
_CODES: Final = {row.codes: frozenset(row.codes.split()) for row in _TABLE}
_WORDS: Final = {row.words: re.compile(row.words, re.IGNORECASE | re.DOTALL) for row in _TABLE if row.words}
_STATUS_OF: Final[Mapping[str, int]] = _DATA["status_of"]
_LONGEST: Final = 1000
_READ: Final = 16 << 10
_HTML: Final = re.compile(rb"\A\s*<(?:!doctype|html|\?xml|head|body|center)", re.IGNORECASE)
_NO_WORDS: Final = re.compile(_HTML.pattern + rb"|\A\s*(?:\{|\[\s*[\[{\"])", re.IGNORECASE)
"""How a page of HTML begins, and JSON that was cut off."""
_SECRET: Final = re.compile(r"\b(?:sk|pk|rk|gsk|xai|hf|nvapi|r8|AIza|Bearer)[-_ ][\w*.-]{8,}|\bAIza[\w-]{20,}")
_DEPTH: Final = 4
_CODE_NAMES: Final = ("code", "type", "reason", "__type", "error_code")
_WRAPPED: Final = re.compile(
    r"\A(?:(?:litellm\.)?[A-Za-z]{1,40}(?:Error|Exception)\s*[:-]\s*|the model returned the following errors?: "
    r"|<\d{3}> [\w.]{1,60}: |error from provider[^:]{0,60}: ?|\d{3} (?=[A-Z]))+",
    re.IGNORECASE,
)
"""What proxies and clouds write before the words of the server behind them."""


def blame_for(status: int, body: bytes, error: Mapping[str, Any], *, waits: bool) -> Blame:
    """Return whose fault a reply of this status is. `error` is its error object; `waits`: it has a Retry-After."""
    codes = {str(code).lower() for name in _CODE_NAMES if (code := error.get(name))}
    html = _HTML.match(body) is not None
    message = _WRAPPED.sub("", str(error.get("message") or ""), count=1)
    for row in _TABLE:
        if (
            status in row.statuses
            and (not row.codes or not codes.isdisjoint(_CODES[row.codes]))
            and (not row.words or _WORDS[row.words].search(message) is not None)
            and (html or not row.html)
            and (waits or not row.waits)
        ):
            return row.blame
    return "server"


def status_in(error: object) -> int | None:
    """Return the status that an error object would have come with, by its own code or type; None if it names none."""
    for word in (error.get("code"), error.get("status"), error.get("type")) if isinstance(error, dict) else ():
        if type(word) is int or (isinstance(word, str) and word.isdecimal() and len(word) == 3):
            if 400 <= int(word) < 600:
                return int(word)
        elif isinstance(word, str) and word in _STATUS_OF:
            return _STATUS_OF[word]
    return None


def told_in(body: bytes) -> dict[str, Any]:
    """Return what an error reply says as OpenAI's error object, whatever its form; empty if it says nothing.

    {"error": {"message"}}, {"error": "text"}, {"message"}, {"detail": "text"}, {"detail": [{"loc", "msg"}]}, a list of
    these, {"errors": [...]}, or plain text. The words are cut, and what looks like a key is taken out; a page of HTML
    says nothing. `reason` holds the code of a filter that stands deeper.
    """
    raw = body.removeprefix(BYTE_ORDER_MARK)
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        text = "" if _NO_WORDS.match(raw) else raw[:_READ].decode("utf-8", "replace")
        words = _shown(text)
        return {"message": words} if words else {}
    error = _object_in(value, _DEPTH)
    if "message" in error:
        error["message"] = _shown(error["message"])
    return error


def _object_in(value: Any, depth: int) -> dict[str, Any]:
    """Return the error object in a parsed reply, its message a text."""
    if isinstance(value, str):
        return {"message": value} if value else {}
    if isinstance(value, list):
        parts = [part for item in value[:_DEPTH] if (part := _object_in(item, depth - 1))] if depth else []
        return {**parts[0], "message": "; ".join(part.get("message", "") for part in parts)} if parts else {}
    if not isinstance(value, dict) or not depth:
        return {}
    plain = isinstance(value.get("error"), str) and "message" in value  # Spring, NestJS: the name of the status
    for name in ("message", "errors", "detail") if plain else ("error", "errors", "detail"):
        if (inner := _object_in(value.get(name), depth - 1)) and inner.get("message"):
            return inner
    error = dict(value["error"]) if isinstance(value.get("error"), dict) else dict(value)
    message = next((text for name in ("message", "msg", "detail") if isinstance(text := error.get(name), str)), None)
    error.pop("message", None)
    if message is None:
        return error if "code" in error or "type" in error else {}
    if isinstance(loc := error.pop("loc", None), list):
        message = f"{'.'.join(map(str, loc))}: {message}"
    error["message"] = _with_deeper(error, message, depth)
    return error


def _with_deeper(error: dict[str, Any], message: str, depth: int) -> str:
    """Return the message with that of the server behind; put deeper codes where others have them."""
    for name in ("metadata", "innererror", "inner_error"):
        if isinstance(deeper := error.get(name), dict):
            error["reason"] = (
                "moderation" if deeper.get("reasons") or deeper.get("flagged_input") else deeper.get("code")
            )
            if isinstance(raw := deeper.get("raw"), str) and raw and raw not in message:
                message = f"{message}: {_object_in(_parsed(raw), depth - 1).get('message') or raw}"
    details = error.get("details")
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict) and isinstance(detail.get("reason"), str):  # Google's ErrorInfo
            error["reason"] = detail["reason"]
    if isinstance(kind := error.get("__type"), str):  # AWS writes the type's namespace before it
        error["__type"] = kind.rpartition("#")[2]
    return message


def _parsed(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _shown(words: str) -> str:
    """Return words for a client: printable, at most 1,000 characters, and without what looks like a key."""
    text = "".join(sign if sign.isprintable() else " " for sign in words[:_READ]).strip()
    text = _SECRET.sub("***", text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


_STATUSES: Final = frozenset({400, 413, 422, 500})
"""Statuses of such errors; proxies send 413 too. 429 is not one: it means too many tokens per minute, not too long."""
_SAYS_SO: Final = re.compile(
    rb"context_length_exceeded|exceed_context_size_error|context_window_exceeded|max_prompt_tokens_exceeded"
    rb"|contextwindowexceeded"
    rb"|(?:maximum|max) (?:context|prompt|model|input) (?:length|size|window)"
    rb"|exceeds? the (?:available |model's )?context (?:size|length|window)"
    rb"|context (?:size|length|window) (?:has been )?exceed(?:ed|s)"
    rb"|(?:longer|greater) than the (?:model's )?context length|exceed(?:s|ed)? context limit"
    rb"|context length of only|exceed(?:s|ed)? (?:the )?model(?:'s)? token limit"
    rb"|(?:prompt|input|message)s? (?:is |are )?too long|too many tokens: total"
    rb"|input token count .{0,40}exceeds the maximum"
    rb"|(?:prompt|input)(?: length| token count of)?(?: \d{1,9}| \(\d{1,9} tokens\))? exceeds (?:max|the limit|the max)"
    rb"|range of input length|maximum allowed (?:token size|input)"
    rb"|`inputs` (?:tokens )?.{0,40}must (?:be <=|have less than)"
    rb"|'max_tokens' or 'max_completion_tokens' is too large",
    re.IGNORECASE,
)
"""How servers say that a request exceeds the context length or the longest reply of a model:

    llama.cpp  400  "request (8720 tokens) exceeds the available context size (4096 tokens)", exceed_context_size_error
               500  "Context size has been exceeded.", in the middle of a reply too
    OpenAI     400  "This model's maximum context length is 4097 tokens. However, ...", context_length_exceeded
    vLLM       400  "This model's maximum context length is ..."; "... is longer than the maximum model length of ..."
    SGLang     400  "The input (5000 tokens) is longer than the model's context length (4096 tokens)."
    TGI        422  "`inputs` tokens + `max_new_tokens` must be <= 4096"; "`inputs` must have less than 4096 tokens"
    Ollama     400  "the input length exceeds the context length"; "prompt too long; exceeded max context length by ..."
                    (if configured; by default it cuts off the prompt's beginning without an error)
    LM Studio  400  "... is greater than the context length"; "... loaded with context length of only 4096 tokens"
    Anthropic  400  "prompt is too long: 208310 tokens > 200000 maximum"; "... exceed context limit: ..."
    Gemini     400  "The input token count (1200000) exceeds the maximum number of tokens allowed (1048575)."
    Bedrock    400  "Input is too long for requested model."
    Mistral    400  "Prompt contains 40000 tokens, too large for model with 32768 maximum context length"
    xAI        400  "This model's maximum prompt length is 131072 but the request contains 537812 tokens."
    Kimi       400  "Your request exceeded model token limit: 262144 (requested: 270000)"
    Alibaba    400  "Range of input length should be [1, 129024]"; "Range of max_tokens should be [1, 8192]"
    Copilot    400  "prompt token count of 140000 exceeds the limit of 128000", model_max_prompt_tokens_exceeded

The whole body is searched, because not all of these send OpenAI's error object.
"""
_LOOKED_AT: Final = 4096


def says_too_long(status: int, body: bytes) -> bool:
    """Return whether an error of this status and body means that the request exceeds the model's context length."""
    return status in _STATUSES and _SAYS_SO.search(body, 0, _LOOKED_AT) is not None


def says_most_output(status: int, body: bytes) -> bool:
    """Return whether an error of this status and body names the longest reply of the model."""
    return status in _STATUSES and OUTPUT.search(body, 0, _LOOKED_AT) is not None


OUTPUT: Final = re.compile(
    rb"max_(?:completion_|output_|new_)?tokens: (?:\d{1,9}) > (\d{1,9})"
    rb"|max_(?:completion_)?tokens is too large.{0,80}? at most (\d{1,9})"
    rb"|supports at most (\d{1,9}) (?:completion|output) tokens"
    rb"|maxOutputTokens value of \d{1,9} but the supported range is from 1 \(inclusive\) to (\d{1,9}) \(exclusive\)"
    rb"|max_(?:completion_)?tokens`? must be less than or equal to `?(\d{1,9})"
    rb"|range of max_(?:completion_)?tokens (?:is|should be) \[\d{1,9}, ?(\d{1,9})\]"
    rb"|(?:maximum|max) (?:output )?tokens (?:you )?requested exceeds the model limit of (\d{1,9})",
    re.IGNORECASE | re.DOTALL,
)
"""What names the longest reply of a model."""
