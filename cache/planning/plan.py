"""Plan a request: may it be answered from the cache, by which cache, and under which keys? No I/O.

Keys are equal only for requests that must have the same answer. Everything in the body counts, unknown fields too,
except what cannot change the answer (DENIED). The canonical form is JSON with sorted keys and the last user text cut
out; that text follows, length-prefixed. The hash before the text is the semantic partition, the hash after the text the
exact key: one pass gives both. A request that was translated has its own form hashed beside the translation. Of a
conversation that is compared turn by turn, no text of user or assistant is in the partition.

Strings, names of fields too, are compared in Unicode's composed form NFC (UAX #15). Composing takes time that grows
with the square of the number of consecutive marks, so a text with more than 30 of them (UAX #15 calls texts below that
stream-safe), or of more than 64 Ki characters, is hashed as written, as are all texts of a longer request. Numbers are
hashed as written, so 1 and 1.0 differ, which costs a miss and never serves a wrong answer.

Both keys belong to a scope (see `cache.scopes.scope`), so no request of one tenant can find another's entry. All three
are BLAKE2b, keyed with the deployment's secret. With one (TIERLINE_CACHE_SECRET), a key seen in a listing or a slow log
reveals nothing: nobody else can compute the key of a guessed request and compare. Without one, the default, they are
plain hashes: tenants are still separated, but such guesses can be checked. Either way only keys are hidden; entries are
stored in the clear. Parts are length-prefixed, so no text inside a part can move the boundary between two.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import orjson

from cache.entry import NO_DEMANDS, Demands
from cache.planning import eligibility
from cache.planning.volatile import volatile_head
from cache.scopes.scope import DIGEST_BYTES, Scope, Scopes, prefixed
from cache.scopes.tags import Tags
from cache.text.conversation import SEPARATOR, USER, Turn, as_text, assistant_turn, last_of, user_turn
from cache.text.json_pieces import json_pieces
from cache.text.languages import foreign_languages, language_of
from policies.value_type import from_fields

if TYPE_CHECKING:
    from cache.index import Vector
    from policies.caching import CachePolicy
    from policies.model import Policy

DENIED = frozenset(
    {
        "stream", "stream_options", "user", "metadata", "safety_identifier", "store", "service_tier",
        "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options",
    }
)  # fmt: skip
_DENIED_PREFIX = "prompt_cache_"
_COMPOSED_CHARS: Final = 64 << 10
_SLICE_CHARS: Final = 256 << 10
_SURELY_SAFE_CHARS: Final = 256
_MARKS_IN_A_ROW: Final = re.compile(r"[^\w\s\x00-\x7f]{31}")
"""`re` counts no mark as a word character. Rows of emoji and of dashes match too, which costs at most a miss."""
_BY_TURNS: Final = b"turn by turn"


class OwnForm(Protocol):
    """The own form of a request that was translated to a chat completion, see `gateway.dialects.native.Native`."""

    def options(self) -> dict[str, Any]:
        """Return what sets the request apart from others with the same translation, its conversation left out."""

    def conversation(self) -> Any:
        """Return the conversation."""


class Fingerprint(NamedTuple):
    """The keys of one request: of its stored answer (`key`), and of those to compare it with (`partition`).

    `scope` begins both. `question` is the last user text; None without a plain one. For a conversation that is compared
    turn by turn, `question` is all of its turns (`cache.text.conversation`), and `user_turns` those of the user, which
    are embedded in place of the question.
    """

    scope: str
    key: str
    partition: str
    question: str | None
    user_turns: str = ""


_fingerprint: Final = from_fields(Fingerprint)


def counted(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request that can change its answer."""
    return {name: value for name, value in body.items() if name not in DENIED and not name.startswith(_DENIED_PREFIX)}


def fingerprint(
    body: Mapping[str, Any],
    scope: str,
    secret: bytes,
    model: str | None,
    embedder: str,
    by_turns: int = 0,
    own: OwnForm | None = None,
    *,
    large: bool = False,
) -> Fingerprint:
    """Return the keys of one checked request. `model`, if given (a surface or a pinned tier), replaces the body's.

    `secret` has at most 64 bytes. `embedder` identifies the vectors, so that two encoders never share a partition.
    Conversations are compared turn by turn if their user turns have no more than `by_turns` characters. `own` is the
    form that a backend of the client's dialect may be sent: all of it counts for the exact key, its options for the
    partition. The JSON of a `large` request is hashed in pieces.
    """
    request = counted(body)
    if model is not None:
        request["model"] = model
    request["messages"], question = _cut(body["messages"])
    digest = blake2b(_prefixed_text(scope), digest_size=DIGEST_BYTES, key=secret)
    if large:
        _add(digest, *_canonical_pieces(request))
    else:
        canonical = _canonical(request)
        digest.update(b"%d:%b" % (len(canonical), canonical))
    options = b"" if own is None else prefixed(_canonical(own.options()))
    digest.update(options)
    conversation = b"" if own is None else prefixed(_canonical(own.conversation()))
    if question is None:
        digest.update(conversation)
        return Fingerprint(scope, f"{scope}:x:{digest.hexdigest()}", "", None)
    if not question.isascii() and _composable(question):
        question = unicodedata.normalize("NFC", question)
    partition = digest.copy()
    partition.update(_prefixed_text(embedder))
    # An empty question differs from none: its length prefix is hashed.
    if len(question) <= _SLICE_CHARS:
        encoded = question.encode()
        digest.update(b"%d:%b" % (len(encoded), encoded))
    else:
        _add_long(digest, question)
    digest.update(conversation)
    messages = body["messages"]
    turns = None
    if by_turns and len(messages) > 1:
        turns = conversation_of(messages, eligibility.LONGEST_QUESTION, by_turns)
    if turns is None:
        return _fingerprint(
            (scope, f"{scope}:x:{digest.hexdigest()}", f"{scope}:s:{partition.hexdigest()}", question, "")
        )
    request["messages"] = turns.messages
    partition = blake2b(_prefixed_text(scope), digest_size=DIGEST_BYTES, key=secret)
    partition.update(prefixed(_canonical(request)) + options)
    for part in (embedder.encode(), _BY_TURNS):
        partition.update(prefixed(part))
    text, asked = (
        unicodedata.normalize("NFC", text) if _composable(text) else text for text in (turns.text, turns.user_turns)
    )
    return Fingerprint(scope, f"{scope}:x:{digest.hexdigest()}", f"{scope}:s:{partition.hexdigest()}", text, asked)


@lru_cache(maxsize=4_096)
def _prefixed_text(text: str) -> bytes:
    """Return what `prefixed` does of a text, for the few texts that many requests have in common."""
    return prefixed(text.encode())


def _add(digest: blake2b, *pieces: bytes) -> None:
    """Hash a part, given in pieces, as `prefixed` has it, without a copy: it may be as large as a body."""
    digest.update(b"%d:" % sum(map(len, pieces)))
    for piece in pieces:
        digest.update(piece)


def _add_long(digest: blake2b, text: str) -> None:
    """Hash a long text in the same way, slice by slice, so that no call holds Python's lock for long."""
    starts = range(0, len(text), _SLICE_CHARS)
    size = len(text) if text.isascii() else sum(len(text[at : at + _SLICE_CHARS].encode()) for at in starts)
    digest.update(b"%d:" % size)
    for at in starts:
        digest.update(text[at : at + _SLICE_CHARS].encode())


def _canonical(request: Any) -> bytes:
    """Return JSON with sorted keys and composed strings. Most requests are ASCII, most others composed already."""
    canonical = orjson.dumps(request, option=orjson.OPT_SORT_KEYS)
    if canonical.isascii() or len(canonical) > _COMPOSED_CHARS:
        return canonical
    # JSON escapes never compose with what follows, so a text is composed exactly if its JSON is.
    text = canonical.decode()
    if not _composable(text) or unicodedata.is_normalized("NFC", text):
        return canonical
    return orjson.dumps(_composed(request), option=orjson.OPT_SORT_KEYS)


def _canonical_pieces(request: Mapping[str, Any]) -> Sequence[bytes]:
    """Return what `_canonical` does, in pieces where it is long."""
    pieces = json_pieces(request, orjson.OPT_SORT_KEYS)
    return pieces if sum(map(len, pieces)) > _COMPOSED_CHARS else (_canonical(request),)


def _composable(text: str) -> bool:
    """Return whether composing the text takes about linear time."""
    if len(text) <= _SURELY_SAFE_CHARS:
        return True
    return len(text) <= _COMPOSED_CHARS and _MARKS_IN_A_ROW.search(text) is None


def _composed(value: Any) -> Any:
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, dict):
        composed = {unicodedata.normalize("NFC", name): _composed(part) for name, part in value.items()}
        # Two names may become equal when composed: the names then stay as written, so that neither is lost.
        return composed if len(composed) == len(value) else {name: _composed(part) for name, part in value.items()}
    return [_composed(part) for part in value] if isinstance(value, list) else value


def _cut(messages: list[Any]) -> tuple[list[Any], str | None]:
    """Return the messages without the last user text, and that text; unchanged messages if it is not plain text."""
    last = messages[-1]
    if last["role"] != "user":
        return messages, None
    content = last.get("content")
    if isinstance(content, str):
        return [*messages[:-1], {**last, "content": None}], content
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        part = content[0]
        if part.get("type") == "text" and isinstance(part.get("text"), str):
            return [*messages[:-1], {**last, "content": [{**part, "text": None}]}], part["text"]
    return messages, None


_SECRET_BYTES = 64


@dataclass(slots=True)
class CachePlan:
    """What the cache may do for one request. `reason` is why it may do nothing; '' if it may."""

    policy: CachePolicy
    surface: str
    label: str
    body: Mapping[str, Any]
    facts: eligibility.RequestFacts
    reason: str
    read: bool = True
    write: bool = True
    keys: Fingerprint | None = None
    longest: int = eligibility.LONGEST_QUESTION
    tiers: tuple[str, ...] = ()
    demands: Demands = NO_DEMANDS
    scope: Scope | None = None
    """The scope of the keys; set wherever `keys` is."""
    owner: str = ""
    """The tenant or team whose scope it is."""
    tags: Tags | None = None
    """The sources of the answer; None if none are named."""
    drawn: list[Any] = field(default_factory=list)
    """Samples of a `HitBound` to compare the new answer with: added by the lookup, used when the answer is stored."""
    own_vector: Vector | None = None
    """The vector of the keys' `user_turns`, or of a last message that is rated in context; set by the caller."""
    same_as: str = ""
    """The stored question that differs from this one in spaces alone, where one was found without a vector."""
    _why_not_semantic: str | None = field(default=None, init=False, repr=False, compare=False)
    _language: str | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def language(self) -> str:
        """The language of the question, as far as it can be told; computed on demand, once."""
        if self._language is None:
            question = None if self.keys is None else self.keys.question
            self._language = "" if question is None else language_of(self.same_as or question)
        return self._language

    def outranks(self, tier: str, other: str) -> bool:
        """Return whether `tier` is the stronger of the two, by their places on the ladder."""
        tiers = self.tiers
        return tier in tiers and (other not in tiers or tiers.index(tier) > tiers.index(other))

    def why_not_semantic(self) -> str:
        """Return why no neighbour's answer may be served, or '' if one may; only then embed the question.

        Computed on demand, once: a request with an exact hit does not need it.
        """
        if self._why_not_semantic is None:
            self._why_not_semantic = self.reason
            if self.keys is not None:
                question = self.keys.question
                by_turns = bool(self.keys.user_turns)
                if by_turns and question is not None:
                    question = last_of(question)
                self._why_not_semantic = eligibility.why_not_semantic(
                    self.policy, self.body, self.facts, question, self.longest, in_context=by_turns
                )
        return self._why_not_semantic

    def vector_of(self, question: Vector | None) -> Vector | None:
        """Return the vector to look up and to store: for a conversation that of its user turns, once that is set."""
        if self.own_vector is not None or (self.keys is not None and self.keys.user_turns):
            return self.own_vector
        return question


class Planner:
    """Make plans. `secret` may have any length; `embedder` identifies the vectors.

    `longest` is the number of characters that they certainly cover. `teams`, `generation`: see `Scopes`. With
    `by_turns`, conversations are compared turn by turn, where the policy lets the verifier and a cross-encoder decide.
    """

    def __init__(
        self,
        secret: bytes,
        embedder: str,
        longest: int,
        teams: Mapping[str, str],
        generation: Callable[[str, str], int],
        *,
        by_turns: bool = False,
    ) -> None:
        self.secret = secret if len(secret) <= _SECRET_BYTES else blake2b(secret).digest()
        self.scopes = Scopes(self.secret, teams, generation)
        # Their files are read now rather than by the first request.
        volatile_head()
        if (foreign := foreign_languages()) is not None:
            foreign.load()
        self._embedder = embedder
        self._longest = longest
        self._by_turns = min(longest, eligibility.LONGEST_QUESTION) if by_turns else 0

    def plan(
        self,
        body: Mapping[str, Any],
        policy: Policy,
        tenant: str,
        facts: eligibility.RequestFacts,
        *,
        model: str | None = None,
        read: bool = True,
        write: bool = True,
        demands: Demands = NO_DEMANDS,
        tags: Sequence[str] = (),
        own: OwnForm | None = None,
        large: bool = False,
    ) -> CachePlan:
        """Return what the cache may do for one checked request. `model`, if given, replaces the body's in the keys.

        `read` False is a client's no-cache, `write` False its no-store; `tags` are the sources of its answer. `own` is
        the form of a request that was translated; one that is `large` is hashed in pieces.
        """
        reason = eligibility.why_not_any(policy.cache, body, facts)
        if not reason and not read and not write:
            reason = "no-cache"
        if reason:
            return CachePlan(policy.cache, policy.surface, policy.label, body, facts, reason)
        scope = self.scopes.of(tenant, policy)
        semantic = policy.cache.semantic
        by_turns = self._by_turns if semantic is not None and semantic.verify == "default" else 0
        keys = fingerprint(body, scope.prefix, self.secret, model, self._embedder, by_turns, own, large=large)
        named = (*policy.cache.tags, *tags)
        return CachePlan(
            policy.cache,
            policy.surface,
            policy.label,
            body,
            facts,
            "",
            read,
            write,
            keys,
            self._longest,
            policy.ladder,
            demands,
            scope,
            scope.owner,
            Tags(named) if named else None,
        )


_AROUND: Final = frozenset({"system", "developer"})
_MOST_TURNS: Final = 12
_MOST_CHARS: Final = 8_000
"""Longer conversations hardly recur, and reading them would hold the event loop."""
_END: Final = "\0"
"""The index ends a key with it."""


class Conversation(NamedTuple):
    """The turns as one text, the messages without these texts, and the user's turns, a line each, to embed.

    A follow-up (`how long does it take?`) means something only after what was said before it. Two conversations want
    the same answer if each of their turns does, so the semantic cache takes the turns apart: what stands around the
    texts of user and assistant (system messages, roles, names, the number of turns) must be equal, and goes into the
    partition; the texts are compared pair by pair (`cache.semantic.cross_encoder.TurnByTurn`).
    """

    text: str
    messages: list[Any]
    user_turns: str


def conversation_of(messages: Sequence[Mapping[str, Any]], longest: int, longest_embedded: int) -> Conversation | None:
    """Return the conversation in checked messages; None for a single question, and where it must not be taken apart:

    a message that is not plain text of user, assistant or, before all others, system; a call of a tool; more than 12
    turns or 8,000 characters; a text of more than `longest` characters, or user turns of more than `longest_embedded`.
    """
    begin = next((at for at, message in enumerate(messages) if message.get("role") not in _AROUND), len(messages))
    if not 1 < len(messages) - begin <= _MOST_TURNS or messages[-1].get("role") != "user":
        return None
    turns: list[Turn] = []
    rest: list[Any] = list(messages[:begin])
    chars = 0
    for message in messages[begin:]:
        role, content = message.get("role"), message.get("content")
        if role not in ("user", "assistant") or not isinstance(content, str) or message.get("tool_calls"):
            return None
        chars += len(content)
        if chars > _MOST_CHARS or SEPARATOR in content or _END in content:
            return None
        turns.append(user_turn(content) if role == "user" else assistant_turn(content))
        rest.append({**message, "content": None})
    text = as_text(turns)
    asked = "\n".join(turn.text for turn in turns if turn.speaker == USER)
    if len(text) > longest or len(asked) > longest_embedded:
        return None
    return Conversation(text, rest, asked)
