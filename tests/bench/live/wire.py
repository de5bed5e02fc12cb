"""The bytes of a scripted model server's answers; made by hand, since they are made by the thousand."""

from __future__ import annotations

import random
from collections.abc import Sequence

import orjson

from tests.bench.live.behaviour import Script

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
_AROUND = b'{"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1760000000,"model":"bench",'
_SYLLABLES = (b"lo", b"mi", b"ne", b"pu", b"ra", b"so", b"ti")


def _word(number: int) -> bytes:
    """No word comes twice in an answer: it must not look as if it went round in circles."""
    return b" %b%d" % (_SYLLABLES[number % len(_SYLLABLES)], number)


def tokens_of(script: Script) -> list[bytes]:
    """The answer's tokens; the first says whether it is right."""
    return [b"right" if script.right else b"wrong", *(_word(number) for number in range(1, script.tokens))]


def logprobs_of(script: Script, prompt: int) -> list[float]:
    """A log-probability per token: exponentially distributed around the script's, as most tokens are near certain."""
    chance = random.Random(prompt * 31 + 7)
    return [-min(20.0, chance.expovariate(1) * -script.logprob) for _ in range(script.tokens)]


def framed(data: bytes) -> bytes:
    """One event as one chunk."""
    return b"%x\r\ndata: %b\n\n\r\n" % (len(data) + 8, data)


ROLE = framed(
    _AROUND + b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}'
)


def token_event(token: bytes, logprob: float | None) -> bytes:
    """The chunk of one token."""
    told = b"null"
    if logprob is not None:
        told = b'{"content":[{"token":"%b","logprob":%.4f,"bytes":null,"top_logprobs":[]}],"refusal":null}' % (
            token,
            logprob,
        )
    return framed(
        _AROUND
        + b'"choices":[{"index":0,"delta":{"content":"%b"},"logprobs":%b,"finish_reason":null}]}' % (token, told)
    )


def ending(tokens_in: int, tokens_out: int, usage: bool) -> bytes:
    """Finish, totals if they were asked for, [DONE], and the end of the reply."""
    finish = framed(_AROUND + b'"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}')
    totals = framed(_AROUND + b'"choices":[],"usage":%b}' % _usage(tokens_in, tokens_out)) if usage else b""
    return finish + totals + framed(b"[DONE]") + b"0\r\n\r\n"


def completion(tokens: Sequence[bytes], logprobs: Sequence[float] | None, tokens_in: int) -> bytes:
    """A whole reply, head and body."""
    told = b"null"
    if logprobs is not None:
        entries = (
            b'{"token":"%b","logprob":%.4f,"bytes":null,"top_logprobs":[]}' % pair
            for pair in zip(tokens, logprobs, strict=True)
        )
        told = b'{"content":[%b],"refusal":null}' % b",".join(entries)
    body = (
        b'{"id":"chatcmpl-bench","object":"chat.completion","created":1760000000,"model":"bench","choices":[{"index":0,'
        b'"message":{"role":"assistant","content":"%b","refusal":null},"logprobs":%b,"finish_reason":"stop"}],'
        b'"usage":%b}' % (b"".join(tokens), told, _usage(tokens_in, len(tokens)))
    )
    return reply(200, body)


def reply(status: int, body: bytes, more: str = "") -> bytes:
    """Any JSON reply; `more` is further header lines, each with its end."""
    reason = {200: "OK", 404: "Not Found", 500: "Internal Server Error", 503: "Service Unavailable"}[status]
    head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def error(status: int, more: str = "") -> bytes:
    """An error in OpenAI's envelope."""
    told = {"message": "scripted", "type": "server_error", "param": None, "code": None}
    return reply(status, orjson.dumps({"error": told}), more)


def _usage(tokens_in: int, tokens_out: int) -> bytes:
    return b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}' % (
        tokens_in,
        tokens_out,
        tokens_in + tokens_out,
    )
