"""Stand for a provider that bills every request that it was sent, whether or not its client waits for the answer."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from policies.quantities import NANO

PRICE: Final = {"input": 1.0, "output": 40.0}
LONG_OVER: Final = 4_000
LONG_PRICE: Final = {"input": 2.0, "output": 80.0}
"""The price of calls whose prompt has more tokens than `LONG_OVER`, at the tier that has one."""
SOURCES_PRICE: Final = {"input": 10.0, "output": 60.0}
"""The price of the model for which two sources state another."""
IMAGE_USD: Final = 0.004
EMBED_PRICE: Final = 20.0
LEFT_ANSWER_S: Final = 0.5
"""Seconds that an answer takes whose client, or gateway, leaves before it."""
_SLOW: Final = ("left", "deadline", "workers")
"""Words in the names of ways whose answers take that long."""
_ANSWER: Final = 50
_PROMPT: Final = 100
_FILE_TOKENS: Final = 100_000
_LONG_PROMPT: Final = 5_000
_HOUR_WRITES: Final = 2_000
"""Prompt tokens that a stream of Claude writes to its cache for an hour, at twice the prompt's price."""


class CountingProvider:
    """A provider that bills every request that it was sent, to the way named in it."""

    def __init__(self) -> None:
        self.billed: Counter[str] = Counter()
        """Nanodollars by way."""
        self.dearest: Counter[str] = Counter()
        self.arrived: dict[str, float] = {}
        """When a request was here, in monotonic seconds, by the number in it."""
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self) -> None:
                with suppress(OSError):  # the gateway's connection ended between two requests
                    super().handle()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length") or 0))
                with suppress(OSError):
                    provider.answer(self, raw)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> CountingProvider:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, asked: BaseHTTPRequestHandler, raw: bytes) -> None:
        """Bill a request, and answer it after as long as the way says."""
        way = raw.partition(b"way:")[2].partition(b";")[0].decode()
        is_json = asked.headers.get("content-type", "").startswith("application/json")
        body = json.loads(raw) if is_json else {}
        if asked.path.endswith("/messages"):
            self._cut_stream(asked, way)
            return
        price, tokens_in = PRICE, _PROMPT
        if "long context" in way:
            price, tokens_in = LONG_PRICE, _LONG_PROMPT
        elif "price sources" in way:
            price = SOURCES_PRICE
        elif b"file_id" in raw or "dense" in way:
            tokens_in = _FILE_TOKENS if b"file_id" in raw else len(raw)
        is_judge = body.get("model") == "judge"
        answer = 1 if is_judge else _ANSWER * int(body.get("n") or 1)
        usage = {"prompt_tokens": tokens_in, "completion_tokens": answer}
        usage["total_tokens"] = sum(usage.values())
        if way.startswith("judge") and not is_judge:
            way = ""  # the answers are no part of what the judge costs
        if asked.path.endswith("/images/generations"):
            usd, value = IMAGE_USD * int(body.get("n") or 1), {"created": 1, "data": []}
        elif asked.path.endswith("/audio/transcriptions"):  # a minute of sound is about a MiB
            usd, value = IMAGE_USD * len(raw) / (1 << 20), {"text": "words"}
        elif asked.path.endswith("/embeddings"):
            words = len(body["input"]) // 4
            usd = words * EMBED_PRICE / 1e6
            value = {
                "object": "list", "model": "e", "data": [{"object": "embedding", "index": 0, "embedding": [0.1, 0.2]}],
                "usage": {"prompt_tokens": words, "total_tokens": words},
            }  # fmt: skip
        else:
            usd = (tokens_in * price["input"] + usage["completion_tokens"] * price["output"]) / 1e6
            message = {"role": "assistant", "content": "word " * 10}
            choices = [{"index": i, "message": message, "finish_reason": "stop"} for i in range(body.get("n") or 1)]
            value = {
                "id": "c", "object": "chat.completion", "created": 1, "model": "m", "usage": usage,
                "choices": choices,
            }  # fmt: skip
            if is_judge:
                message["content"] = "yes"
                token = {"token": "yes", "logprob": -0.1}
                choices[0]["logprobs"] = {"content": [{**token, "top_logprobs": [token]}]}
            if "llama.cpp" in way:  # it counts the tokens of one choice
                usage |= {"completion_tokens": _ANSWER, "total_tokens": tokens_in + _ANSWER}
                value["timings"] = {"predicted_n": _ANSWER}
        self.billed[way] += round(usd * NANO)
        self.dearest[way] = max(self.dearest[way], round(usd * NANO))
        self.arrived[raw.partition(b"number:")[2].partition(b";")[0].decode()] = time.monotonic()
        time.sleep(LEFT_ANSWER_S if any(word in way for word in _SLOW) else 0.05)
        data, kind = json.dumps(value).encode(), "application/json"
        if body.get("stream"):
            kind = "text/event-stream"
            chunk = {**value, "object": "chat.completion.chunk", "usage": None}
            chunk["choices"] = [{"index": 0, "delta": {"content": "word " * 10}, "finish_reason": "stop"}]
            last = {**chunk, "choices": [], "usage": usage}
            data = b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in (chunk, last)) + b"data: [DONE]\n\n"
        asked.send_response(200)
        asked.send_header("content-type", kind)
        asked.send_header("content-length", str(len(data)))
        asked.end_headers()
        asked.wfile.write(data)

    def _cut_stream(self, asked: BaseHTTPRequestHandler, way: str) -> None:
        """Bill a stream of Claude, and end it after its first words."""
        usage = {
            "input_tokens": _PROMPT, "output_tokens": 1, "cache_creation_input_tokens": _HOUR_WRITES,
            "cache_creation": {"ephemeral_1h_input_tokens": _HOUR_WRITES, "ephemeral_5m_input_tokens": 0},
        }  # fmt: skip
        message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "word " * 10}}
        usd = ((_PROMPT + 2 * _HOUR_WRITES) * PRICE["input"] + 10 * PRICE["output"]) / 1e6
        self.billed[way] += round(usd * NANO)
        self.dearest[way] = max(self.dearest[way], round(usd * NANO))
        asked.send_response(200)
        asked.send_header("content-type", "text/event-stream")
        asked.send_header("content-length", "100000")
        asked.end_headers()
        for event in ({"type": "message_start", "message": message}, block, delta):
            asked.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        asked.close_connection = True
