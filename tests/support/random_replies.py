"""Random replies of providers, made from the schemas that they publish: whole, and as the streams that say the same.

replies = RandomReplies(random.Random(1))
replies.completion(n=2)             # a chat completion
replies.chunks(completion)          # its stream
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

import orjson

from tests.support.published_api import published
from tests.support.schema_values import SchemaValues

Json = dict[str, Any]

ARGUMENTS: Final = ('{"at":"m\u00fcnster"}', "{}", '{"a": [1, 2.5, null]}')
_TRIES: Final = 50
_OPENED: Final[dict[str, Json]] = {
    "message": {"status": "in_progress", "content": []},
    "function_call": {"status": "in_progress", "arguments": ""},
    "reasoning": {"status": "in_progress", "summary": []},
}
"""What items begin with in a stream."""
_DELTA_USAGE: Final = (
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "server_tool_use",
    "output_tokens_details",
)


class RandomReplies:
    """Make replies that are valid by their schemas."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        named = {
            "arguments": lambda rng: rng.choice(ARGUMENTS),
            "input": lambda rng: {"at": "x"},
        }
        self._openai = SchemaValues(rng, published("openai"), named=named)
        self._anthropic = SchemaValues(rng, published("anthropic"), named=named)

    def valid(self, publisher: str, schema: Any, **fixed: Any) -> Any:
        """Return a valid value of a schema, or of that with a name, with these members. Raises ValueError."""
        document = published(publisher)
        values = self._openai if publisher == "openai" else self._anthropic
        if isinstance(schema, str):
            schema = {"$ref": f"#/components/schemas/{schema}"}
        for _ in range(_TRIES):
            value = values.of(schema)
            if isinstance(value, dict):
                value |= fixed
            if document.validator(schema).is_valid(value):
                return value
        raise ValueError(f"no valid value of {str(schema)[:200]} with {fixed}")

    def completion(self, *, n: int = 1, logprobs: bool = False) -> Json:
        """Return a chat completion of `n` choices."""
        tokens = self._rng.randrange(1, 500), self._rng.randrange(1, 500)
        usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
        choices = [self._choice(index, logprobs=logprobs) for index in range(n)]
        return self.valid("openai", "CreateChatCompletionResponse", choices=choices, usage=usage, id=self._id("chat"))

    def _choice(self, index: int, *, logprobs: bool) -> Json:
        rng = self._rng
        message = self.valid("openai", "ChatCompletionResponseMessage", refusal=None)
        message.pop("function_call", None)
        for call in message.get("tool_calls") or ():
            call["id"] = self._id("call")
            call[call["type"]]["name"] = "look"
        calls = bool(message.get("tool_calls"))
        if not calls and message["content"] is None:
            message["content"] = "yes"
        end = "tool_calls" if calls else rng.choice(("stop", "stop", "length", "content_filter"))
        choice: Json = {"index": index, "message": message, "finish_reason": end, "logprobs": None}
        if logprobs:
            token = {"token": "yes", "logprob": -0.1, "bytes": None, "top_logprobs": []}
            choice["logprobs"] = {"content": [token], "refusal": None}
        return choice

    def chunks(self, completion: Json) -> bytes:
        """Return a completion as a stream of chunks, usage last."""
        head = {name: completion[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
        chunks = [head | {"choices": [choice]} for one in completion["choices"] for choice in self._deltas(one)]
        chunks.append(head | {"choices": [], "usage": completion["usage"]})
        return b"".join(b"data: %b\n\n" % orjson.dumps(one) for one in chunks) + b"data: [DONE]\n\n"

    def _deltas(self, choice: Json) -> Iterator[Json]:
        message = choice["message"]
        deltas: list[Json] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": piece} for piece in self._pieces(message["content"] or "")]
        for index, call in enumerate(message.get("tool_calls") or ()):
            member = "function" if call["type"] == "function" else "custom"
            text = "arguments" if call["type"] == "function" else "input"
            begun = {"index": index, "id": call["id"], "type": call["type"], member: {**call[member], text: ""}}
            deltas.append({"tool_calls": [begun]})
            pieces = self._pieces(str(call[member][text]))
            deltas += [{"tool_calls": [{"index": index, member: {text: piece}}]} for piece in pieces]
        for number, delta in enumerate(deltas):
            said = {"logprobs": choice["logprobs"]} if number == 1 and choice["logprobs"] else {}
            yield {"index": choice["index"], "delta": delta, "finish_reason": None, **said}
        yield {"index": choice["index"], "delta": {}, "finish_reason": choice["finish_reason"]}

    def response(self) -> Json:
        """Return a reply of the Responses API with items of any types, complete or cut at a limit."""
        rng = self._rng
        items = [self._item() for _ in range(rng.randrange(4))]
        text = {"type": "output_text", "text": "yes", "annotations": [], "logprobs": []}
        items.append(
            {"id": self._id("msg"), "type": "message", "role": "assistant", "status": "completed", "content": [text]}
        )
        ends: Json = {"status": "completed", "incomplete_details": None, "error": None}
        if rng.random() < 0.2:
            ends |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        tokens = rng.randrange(1, 500), rng.randrange(1, 500)
        usage: Json = {"input_tokens": tokens[0], "output_tokens": tokens[1], "total_tokens": sum(tokens)}
        usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        fixed: Json = {"id": self._id("resp"), "object": "response", "created_at": 1, "background": False}
        return self.valid("openai", "Response", output=items, usage=usage, **ends, **fixed)

    def _item(self) -> Json:
        """Return an item of any type, completed if it has a status."""
        while True:
            item: Json = self.valid("openai", "OutputItem", id=self._id("item"))
            if item.get("status", "completed") == "completed":
                return item

    def response_events(self, response: Json) -> bytes:
        """Return a reply of the Responses API as its events."""
        begun = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
        events: list[Json] = [{"type": f"response.{name}", "response": begun} for name in ("created", "in_progress")]
        for index, item in enumerate(response["output"]):
            events += self._item_events(index, item)
        events.append({"type": f"response.{response['status']}", "response": response})
        return _events({**event, "sequence_number": number} for number, event in enumerate(events))

    def _item_events(self, index: int, item: Json) -> Iterator[Json]:
        at = {"output_index": index}
        place = {**at, "item_id": item["id"]}
        kind = item["type"]
        opened = {**item, **_OPENED.get(kind, {})}
        yield {"type": "response.output_item.added", **at, "item": opened}
        if kind == "function_call":
            for piece in self._pieces(item["arguments"]):
                yield {"type": "response.function_call_arguments.delta", **place, "delta": piece}
            yield {
                "type": "response.function_call_arguments.done",
                **place,
                "name": item["name"],
                "arguments": item["arguments"],
            }
        elif kind == "reasoning":
            for number, part in enumerate(item["summary"]):
                part_at = {**place, "summary_index": number}
                yield {"type": "response.reasoning_summary_part.added", **part_at, "part": {**part, "text": ""}}
                for piece in self._pieces(part["text"]):
                    yield {"type": "response.reasoning_summary_text.delta", **part_at, "delta": piece}
                yield {"type": "response.reasoning_summary_text.done", **part_at, "text": part["text"]}
                yield {"type": "response.reasoning_summary_part.done", **part_at, "part": part}
        elif kind == "message":
            for number, part in enumerate(item["content"]):
                yield from self._part_events({**place, "content_index": number}, part)
        yield {"type": "response.output_item.done", **at, "item": item}

    def _part_events(self, at: Json, part: Json) -> Iterator[Json]:
        name = "text" if part["type"] == "output_text" else "refusal"
        said = {"logprobs": []} if name == "text" else {}
        yield {"type": "response.content_part.added", **at, "part": {**part, name: ""}}
        for piece in self._pieces(part[name]):
            yield {"type": f"response.{part['type']}.delta", **at, "delta": piece, **said}
        yield {"type": f"response.{part['type']}.done", **at, name: part[name], **said}
        yield {"type": "response.content_part.done", **at, "part": part}

    def message(self) -> Json:
        """Return a reply of the Messages API with blocks of any types."""
        rng = self._rng
        blocks = [self.valid("anthropic", "ContentBlock") for _ in range(rng.randrange(4))]
        blocks.append({"type": "text", "text": "yes"})
        calls = False
        for block in blocks:
            if block["type"] == "tool_use":
                block["id"], calls = self._id("toolu"), True
        end = "tool_use" if calls else rng.choice(("end_turn", "end_turn", "max_tokens", "stop_sequence", "refusal"))
        stop = "END" if end == "stop_sequence" else None
        return self.valid(
            "anthropic", "Message", content=blocks, stop_reason=end, stop_sequence=stop, id=self._id("msg")
        )

    def message_events(self, message: Json) -> bytes:
        """Return a reply of the Messages API as its events."""
        begun = {**message, "content": [], "stop_reason": None, "stop_sequence": None}
        events: list[Json] = [{"type": "message_start", "message": begun}, {"type": "ping"}]
        for index, block in enumerate(message["content"]):
            opened, deltas = self._block_deltas(block)
            events.append({"type": "content_block_start", "index": index, "content_block": opened})
            events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
            events.append({"type": "content_block_stop", "index": index})
        ends = {name: message[name] for name in ("stop_reason", "stop_sequence", "stop_details", "container")
                if name in message}  # fmt: skip
        usage = {name: value for name, value in message["usage"].items() if name in _DELTA_USAGE}
        events += [{"type": "message_delta", "delta": ends, "usage": usage}, {"type": "message_stop"}]
        return _events(iter(events))

    def _block_deltas(self, block: Json) -> tuple[Json, list[Json]]:
        kind = block["type"]
        if kind == "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": one} for one in self._pieces(block["text"])]
        if kind == "thinking":
            deltas: list[Json] = [
                {"type": "thinking_delta", "thinking": one} for one in self._pieces(block["thinking"])
            ]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
            return {**block, "thinking": "", "signature": ""}, deltas
        if kind in ("tool_use", "server_tool_use"):
            pieces = self._pieces(orjson.dumps(block["input"]).decode())
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": one} for one in pieces]
        return block, []

    def _pieces(self, text: str) -> list[str]:
        """Return a text in one to three pieces."""
        cuts = sorted(self._rng.randrange(len(text) + 1) for _ in range(self._rng.randrange(3)))
        pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        return [piece for piece in pieces if piece] or [text]

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{self._rng.getrandbits(48):x}"


def _events(events: Iterator[Json]) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (one["type"].encode(), orjson.dumps(one)) for one in events)
