"""Collect a stream's tokens, text, usage and state in one pass over each of its chunks.

`add` takes each chunk once; no other module counts tokens, joins the text or decides whether the answer is complete. If
the stream has a client, each chunk is then sent through `outgoing` once: it sets the id, model and time to those of the
first chunk, and removes what the client did not ask for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

import orjson

from gateway.chat.completions import (
    LOGPROB,
    Assembler,
    function_pieces,
    new_completion_id,
    says_more_than_text,
    told_entries,
    top_logprobs,
)
from gateway.chat.usage import BEGUN, Usage, hide_cache, usage_of, without_cache
from routing.confidence.calls import NOTHING_OFFERED, CallRules, call_fault
from routing.confidence.judge import Evidence, is_loop

LOOP_CHECK_TOKENS: Final = 32
"""Tokens of text between two checks for a loop."""
_OBJECT: Final = "chat.completion.chunk"
_PLAIN_CHOICE: Final = frozenset(("index", "delta", "finish_reason", "logprobs"))
_TAIL_BLOCKS: Final = 8
_TAIL_CHARACTERS: Final = 2048
_LOOKS: Final = 3

FitChunk = Callable[[dict[str, Any]], bool]
"""Adapt a chunk of a second backend to the text before it, in place; return False if nothing of it remains."""


class StreamState:
    """Collect one backend's stream. Call `add` for every chunk; the other members are views of the stream."""

    __slots__ = (
        "_alternatives",
        "_answer",
        "_blocks",
        "_call_rules",
        "_created",
        "_done",
        "_entries",
        "_fingerprint",
        "_fit",
        "_functions",
        "_id",
        "_joined",
        "_judged",
        "_keeps_calls",
        "_looks",
        "_looks_for_loops",
        "_model",
        "_odd_content",
        "_open",
        "_strip",
        "_tops_asked",
        "finish_reason",
        "finished",
        "has_logprobs",
        "has_other_output",
        "hides_cache",
        "last",
        "miscounted",
        "prompt_usage",
        "refused",
        "reported",
        "thought",
        "tokens",
        "unchecked",
        "usage",
    )

    def __init__(
        self,
        *,
        judged: bool = False,
        alternatives: int = 0,
        tops_asked: bool = False,
        looks_for_loops: bool = False,
        call_rules: CallRules | None = None,
    ) -> None:
        """Create the state of a stream that has no chunks yet.

        `judged`: keep evidence for the judge until `commit`, with this many `alternatives` per token.
        `tops_asked`: whether any alternatives were asked for. `looks_for_loops`: let `is_looping` check the text.
        `call_rules`: keep the calls, too, for `call_fault`.
        """
        self.tokens = 0
        """Tokens generated so far: the number of log-probabilities if the backend sends them, else of chunks."""
        self.finished = False
        """Whether the answer is complete: at least one choice has come, and every choice has its finish reason."""
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        """The usage that the backend reported; None if it reported none or an invalid one."""
        self.prompt_usage: Usage | None = None
        """The usage of the prompt, and of what had come by then, that the stream began with (`BEGUN`); None without."""
        self.reported: dict[str, Any] | None = None
        """The usage object for the client: as the backend sent it, but for what `hides_cache` leaves out."""
        self.hides_cache = False
        """Whether the client is not told of the backend's prompt cache, which it shares with others."""
        self.miscounted = False
        """Whether the backend reported an invalid usage."""
        self.thought = False
        """Whether the model has streamed reasoning, separate from its answer."""
        self.has_logprobs = False
        """Whether the backend has sent log-probabilities."""
        self.has_other_output = False
        """Whether the model has called a tool or produced audio."""
        self.refused = False
        self.unchecked: list[str] = []
        """The pieces of text since the last check for a loop."""
        self.last: dict[str, Any] = {}
        """The last chunk sent to the client."""
        self._open: set[int | None] = set()
        self._done: set[int | None] = set()
        self._odd_content = False
        self._blocks: list[str] = []
        self._joined = 0
        self._looks = 0
        self._looks_for_loops = looks_for_loops
        self._judged = judged
        self._call_rules = call_rules
        self._keeps_calls = judged or call_rules is not None
        self._alternatives = alternatives
        self._tops_asked = tops_asked
        self._entries: list[Any] = []
        """For the judge: the entries of log-probabilities, and pieces of text that came without one."""
        self._functions: dict[tuple[object, object], tuple[str, str]] = {}
        self._strip = False
        self._id: str | None = None
        self._model: str | None = None
        self._created: int | None = None
        self._fingerprint: str | None = None
        self._fit: FitChunk | None = None
        self._answer: Assembler | None = None

    def add(self, chunk: dict[str, Any]) -> None:
        """Add one chunk as the backend sent it, without changing it."""
        if chunk.get("usage") is not None:
            self._add_usage(chunk)
        for choice in chunk["choices"]:
            index = choice.get("index")
            if finish_reason := choice.get("finish_reason"):
                self.finish_reason = finish_reason
                self._done.add(index)
                self._open.discard(index)
                self.finished = not self._open
            elif index not in self._open and index not in self._done:
                self._open.add(index)
                self.finished = False
            tokens = 0
            kept: Any = ()
            if delta := choice.get("delta"):
                content = delta.get("content")
                if content:
                    tokens, kept = 1, (content,)
                    if type(content) is not str:
                        self._odd_content = True
                    elif not index:
                        self.unchecked.append(content)
                if len(delta) > 1 or content is None:
                    tokens = self._add_more(index, delta) or tokens
            if logprobs := choice.get("logprobs"):
                entries = logprobs.get("content") if type(logprobs) is dict else None
                if entries and type(entries) is list:
                    self.has_logprobs = True
                    tokens, kept = len(entries), entries
            self._entries += kept if self._judged else ()
            self.tokens += tokens

    def _add_usage(self, chunk: dict[str, Any]) -> None:
        usage = usage_of(chunk)
        if usage is not None and chunk["usage"].get(BEGUN):
            self.prompt_usage = usage
            return
        if usage is None:
            self.miscounted = True
        else:
            reported = chunk["usage"]
            if "timings" in chunk and self.usage is not None and self.choices > 1:
                # llama.cpp tells the usage of each choice when that ends, and never their sum.
                out = self.usage.tokens_out + usage.tokens_out
                usage = replace(usage, tokens_out=out)
                reported = {**reported, "completion_tokens": out, "total_tokens": usage.tokens_in + out}
            self.usage, self.reported = usage, reported
            self.miscounted = self.miscounted or usage.incomplete
            if self.hides_cache:
                self.reported = without_cache(reported)

    def _add_more(self, index: object, delta: dict[str, Any]) -> bool:
        """Record what a delta holds beside its content; return whether any of it was generated by the model."""
        thought = bool(delta.get("reasoning_content") or delta.get("reasoning"))
        refused = bool(delta.get("refusal"))
        other_output = says_more_than_text(delta)
        self.thought = self.thought or thought
        self.refused = self.refused or refused
        self.has_other_output = self.has_other_output or other_output
        if other_output and self._keeps_calls:
            for which, name, arguments in function_pieces(delta):
                name_so_far, arguments_so_far = self._functions.get((index, which), ("", ""))
                whole = name_so_far if name == name_so_far else name_so_far + name
                # Rules are of names: once nothing is judged, growing arguments would be copied with each delta.
                self._functions[index, which] = whole, arguments_so_far + arguments if self._judged else ""
        return thought or refused or other_output

    # --- views of what has come ---------------------------------------------------------------------------------------

    @property
    def has_choice(self) -> bool:
        """Whether any chunk had a choice, even one with only a role."""
        return bool(self._open or self._done)

    @property
    def choices(self) -> int:
        """The number of choices that have begun."""
        return len(self._open) + len(self._done)

    @property
    def requires_call(self) -> bool:
        """Whether the request requires a call of a tool."""
        return self._call_rules is not None and self._call_rules.required

    @property
    def text(self) -> str:
        """The text of the first choice so far."""
        return "".join(self._blocks) + "".join(self.unchecked)

    @property
    def text_tokens(self) -> int:
        """Tokens in `text`: the number of its chunks, or one per eight characters if that is more."""
        return max(self._joined + len(self.unchecked), len(self.text) // 8)

    @property
    def more_than_text(self) -> bool:
        """Whether a tool call, audio or a refusal has begun, which another model cannot continue."""
        return self.has_other_output or self.refused or self._odd_content

    def told(self) -> list[dict[str, Any]]:
        """Return what `told_entries` does of the tokens so far; none once nothing is judged any more."""
        if not self.has_logprobs:
            return []
        alone = self.choices == 1 and not self.has_other_output and not self.thought
        return told_entries(self._entries, self.text if alone else "", tops_asked=self._tops_asked)

    def evidence(self, *, wants_json: bool, own_limit: bool, complete: bool) -> Evidence:
        """Return the evidence for the judge so far; `complete` says whether the stream has finished."""
        told = self.told()
        return Evidence(
            text=self.text,
            logprobs=list(map(float, map(LOGPROB, told))) or None,
            top_logprobs=(top_logprobs(told, self._alternatives) if self._alternatives else None) or None,
            finish_reason=self.finish_reason,
            tool_names=[name for name, _ in self._functions.values()],
            tool_arguments=[arguments for _, arguments in self._functions.values()],
            has_other_output=self.has_other_output,
            refused=self.refused,
            wants_json=wants_json,
            own_limit=own_limit,
            complete=complete,
            call_rules=self._call_rules,
        )

    def call_fault(self) -> str:
        """Return the call so far that the request does not allow, in a few words; empty if there is none."""
        rules = self._call_rules
        if rules is None or (rules is NOTHING_OFFERED and not self._functions):
            return ""
        names = [name for name, _ in self._functions.values()]
        return call_fault(rules, names, self.text, self.finish_reason, complete=self.finished)

    def is_looping(self) -> bool:
        """Return whether the text repeats itself: three checks in a row of its last 256 tokens found a loop.

        Call this whenever `unchecked` holds LOOP_CHECK_TOKENS pieces. A looping model repeats a few words up to its
        limit, while a table row or a run of zeros ends before the third check.
        """
        self._joined += len(self.unchecked)
        self._blocks.append("".join(self.unchecked))
        self.unchecked.clear()
        if not self._looks_for_loops:
            return False
        # A token may end inside a word, so the last word is left out.
        tail = "".join(self._blocks[-_TAIL_BLOCKS:])[-_TAIL_CHARACTERS:].rpartition(" ")[0]
        self._looks = self._looks + 1 if is_loop(tail) else 0
        return self._looks >= _LOOKS

    # --- the way out --------------------------------------------------------------------------------------------------

    def commit(self, chunks: Iterable[dict[str, Any]], model: str, *, strip_logprobs: bool) -> None:
        """Fix the members that `outgoing` writes into every chunk. Call this once, before the first chunk is sent.

        Each of id, model and time is the first non-empty one in `chunks`, those held back so far (Azure's first chunk
        has an empty id and model). Missing ones are generated; a missing model is `model`. The judge's evidence is
        dropped.
        """
        for chunk in chunks:
            self._id = self._id or chunk.get("id")
            self._model = self._model or chunk.get("model")
            self._created = self._created or chunk.get("created")
            self._fingerprint = self._fingerprint or chunk.get("system_fingerprint")
            if self._id and self._model and self._created:
                break
        self._id = self._id or new_completion_id()
        self._model = self._model or model
        self._created = self._created or int(time.time())
        self._strip = strip_logprobs
        self._drop_evidence()

    def follow(self, broken: StreamState, fit: FitChunk) -> None:
        """Continue a broken stream: keep its id, model, time and fingerprint; `fit` adapts each chunk to its text."""
        self._id, self._model, self._created = broken._id, broken._model, broken._created
        self._fingerprint = broken._fingerprint
        self.last = broken.last
        self._fit = fit
        self._drop_evidence()

    def outgoing(self, chunk: dict[str, Any], data: bytes) -> bytes:
        """Return the event that carries a chunk to the client; b'' if the client must not get it.

        `data` is the chunk as the backend sent it, and is passed on unless something must change; then `chunk` is
        changed too.
        """
        choices = chunk["choices"]
        changed = False
        if chunk.get("usage") is not None:
            if not choices:
                return b""
            # Some backends send the usage with the finish: clients get it in a separate chunk, and only on request.
            chunk["usage"] = None
            changed = True
        if self.hides_cache:
            changed = hide_cache(chunk) or changed
        if (
            chunk.get("id") != self._id
            or chunk.get("model") != self._model
            or chunk.get("created") != self._created
            or chunk.get("object") != _OBJECT
        ):
            chunk["id"], chunk["model"], chunk["created"] = self._id, self._model, self._created
            chunk["object"] = _OBJECT
            changed = True
        if self._strip:
            for choice in choices:
                if choice.get("logprobs") is not None:
                    choice["logprobs"] = None
                    changed = True
        if self._fit is not None:
            chunk.pop("system_fingerprint", None)
            if self._fingerprint is not None:
                chunk["system_fingerprint"] = self._fingerprint
            changed = True
            if not self._fit(chunk):
                return b""
        self.last = chunk
        if self._answer is not None:
            self.assemble(chunk)
        return b"data: " + (orjson.dumps(chunk) if changed else data) + b"\n\n"

    def _drop_evidence(self) -> None:
        self._judged = False
        self._entries = []
        if self._call_rules is None:
            self._keeps_calls, self._functions = False, {}

    # --- the whole answer ---------------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Keep the chunks' contents for `completion`. Call this before the first chunk is sent."""
        self._answer = Assembler()

    def assemble(self, chunk: dict[str, Any]) -> None:
        """Add a chunk to the answer that `completion` returns, after `add`; `outgoing` calls this after `collect`."""
        answer = self._answer
        if answer is None:
            raise AssertionError("nothing is collected")
        if self.hides_cache:
            hide_cache(chunk)
        answer.add_head(chunk)
        for choice in chunk["choices"]:
            delta = choice.get("delta")
            if (
                delta
                and len(delta) == 1
                and "content" in delta
                and not choice.get("index")
                and not choice.get("finish_reason")
                and not choice.get("logprobs")
                and choice.keys() <= _PLAIN_CHOICE
                and 0 in answer.choices
                and type(delta["content"]) is str
            ):
                continue  # only text of the first choice, which `add` has kept
            answer.add_choice(choice)

    def completion(self) -> dict[str, Any]:
        """Return the completion joined from the collected chunks, with the usage if the backend reported one."""
        answer = self._answer
        if answer is None:
            raise AssertionError("nothing is collected")
        completion = answer.completion()
        text = self.text
        for choice in completion["choices"] if text else ():
            message = choice["message"]
            if choice["index"] == 0 and (message["content"] is None or isinstance(message["content"], str)):
                message["content"] = text
        if self.reported is not None:
            completion["usage"] = self.reported
        return completion
