"""Decide which requests may be answered from the cache, and by which cache. Rules only, no I/O.

exact      where the policy has it, unless one of its `never` rules holds.
semantic   the same, and the request must be one question that is complete in itself and whose answer does not change
           by the day: no tools, images, seed, logprobs or n > 1, no temperature above the policy's; no follow-up (`and
           the second one?`); nothing volatile (`cache.text.volatile`: today, latest, price); no text to work on
           (`translate ...`, quotes, code); not too long.

`cache.answers` decides which answers may be stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, Protocol

from cache.text import embedded_text as payload
from cache.text.reading import FAINT, LISTS, word_set
from cache.text.volatile import is_volatile
from policies.caching import CachePolicy

LONGEST_QUESTION = 2_000
"""Maximum characters: longer texts are documents, not questions that somebody else asks too."""

_LEANS = re.compile(
    r"""^\s*(?:
        (?:and|but|or|also|then|so|ok(?:ay)?|yes|no|yeah|sure|thanks?(?:\s+you)?)\b|
        (?:what|how)\s+about\b|
        (?:why|how|when|where|who|what|which|really|continue|go\s+on|more|again|next|elaborate|explain|shorter|longer|
           rephrase|translate|summari[sz]e|rewrite)(?:\s+(?:it|this|that|them|please|so|not|me|more|else))*\W*$
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_POINTING_BACK = word_set(LISTS["pointing_back"])
_VOLATILE = "volatile"
_WORD = re.compile(r"\w+")
_STANDS_ALONE = 2
"""With this many words of its own, a question may contain what its pronoun refers to."""


class RequestFacts(Protocol):
    """What the caller has already read off the request (the gateway's Features implement it)."""

    @property
    def text(self) -> str: ...
    @property
    def turns(self) -> int: ...
    @property
    def approx_tokens(self) -> int: ...
    @property
    def has_tools(self) -> bool: ...
    @property
    def has_images(self) -> bool: ...
    @property
    def wants_json(self) -> bool: ...
    @property
    def stream(self) -> bool: ...


def rule_values(body: Mapping[str, Any], facts: RequestFacts) -> dict[str, Any]:
    """Return the values for `cache.never` rules, except `volatile`; None where the request does not set one."""
    return {
        "tools": facts.has_tools,
        "images": facts.has_images,
        "json": facts.wants_json,
        "stream": facts.stream,
        "turns": facts.turns,
        "tokens_in": facts.approx_tokens,
        "temperature": body.get("temperature"),
        "top_p": body.get("top_p"),
        "n": 1 if body.get("n") is None else body["n"],
        "seed": body.get("seed"),
        "logprobs": bool(body.get("logprobs")),
    }


def why_not_any(policy: CachePolicy, body: Mapping[str, Any], facts: RequestFacts) -> str:
    """Return why neither cache applies, or ''."""
    if policy.exact is None and policy.semantic is None:
        return "policy"
    if policy.never:
        values = rule_values(body, facts)
        for rule in policy.never:
            if _VOLATILE in rule.names and _VOLATILE not in values:
                values[_VOLATILE] = is_volatile(facts.text)
            if rule.holds(values):
                return f"never: {rule.source}"
    return ""


def why_not_semantic(
    policy: CachePolicy,
    body: Mapping[str, Any],
    facts: RequestFacts,
    question: str | None,
    longest: int = LONGEST_QUESTION,
) -> str:
    """Return why the semantic cache does not apply to a request that `why_not_any` has passed, or ''.

    `longest` is the number of characters of a question that its vector certainly covers.
    """
    if policy.semantic is None:
        return "policy"
    if facts.has_tools:
        return "tools"
    if facts.has_images:
        return "images"
    if body.get("seed") is not None:
        return "seed"
    if body.get("logprobs"):
        return "logprobs"
    if (body.get("n") or 1) != 1:
        return "n"
    if (body.get("temperature") or 0) > policy.semantic.max_temperature:
        return "temperature"
    if question is None:
        return "no_text"
    return "long" if len(question) > longest else why_not_the_question(question, facts.turns)


def why_not_the_question(question: str, turns: int) -> str:
    """Return why no other question's answer may be served, or ''. `turns` is the number of user messages."""
    return "long" if len(question) > LONGEST_QUESTION else _why_not_asked(question, turns > 1)


@lru_cache(maxsize=1_024)
def _why_not_asked(question: str, in_conversation: bool) -> str:
    """Return the reason as above; cached, because a request needs it before embedding, lookup and write."""
    tokens = _WORD.findall(question.lower())
    seen = frozenset(tokens)
    own = len(seen - FAINT)
    if _LEANS.match(question) or own == 0:
        return "follow_up"
    if not seen.isdisjoint(_POINTING_BACK) and (in_conversation or own < _STANDS_ALONE):
        return "follow_up"
    pairs = frozenset(pairwise(tokens))
    if is_volatile(question):
        return "volatile"
    return "payload" if payload.carried(question, tokens, seen, pairs) else ""
