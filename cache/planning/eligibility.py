"""Which requests may be answered from the cache, and by which cache? Rules, no sockets.

exact      where the policy has it, unless one of its `never` rules holds.
semantic   the same, and the request must be one question whose meaning stands alone and does not pass with the
           day: no tools, images, seed, logprobs or n > 1, no temperature above the policy's; no follow-up (`and the
           second one?`); nothing volatile (`cache.text.volatile`: today, latest, price); no text to work on
           (`translate ...`, quotes, code); not too long.

Which answers may be kept is the matter of `cache.answers`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, Protocol

from cache.text import embedded_text as payload
from cache.text import words
from cache.text.volatile import is_volatile
from policies.caching import CachePolicy

LONGEST_QUESTION = 2_000
"""Characters. Longer texts are documents, not questions that somebody else asks too."""

_LEANS = re.compile(
    r"""^\s*(?:
        (?:and|but|or|also|then|so|ok(?:ay)?|yes|no|yeah|sure|thanks?(?:\s+you)?)\b|
        (?:what|how)\s+about\b|
        (?:why|how|when|where|who|what|which|really|continue|go\s+on|more|again|next|elaborate|explain|shorter|longer|
           rephrase|translate|summari[sz]e|rewrite)(?:\s+(?:it|this|that|them|please|so|not|me|more|else))*\W*$
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_VOLATILE = "volatile"
_WORD = re.compile(r"\w+")
_STANDS_ALONE = 2
"""So many words with a meaning of their own let a pronoun refer to something in the same question."""


class RequestFacts(Protocol):
    """What the caller has already read off the request (the gateway's Features are such)."""

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
    """What `cache.never` rules can ask for, but for `volatile`; None where the request does not say."""
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
    """Why neither cache applies, or ''."""
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
    """Why the semantic cache does not apply to a request that `why_not_any` has passed, or ''.

    `longest` is how many characters of a question the vectors are certain to cover.
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
    """Why a question may not be answered by the answer to another one, or ''. `turns` counts the user's messages."""
    return "long" if len(question) > LONGEST_QUESTION else _why_not_asked(question, turns > 1)


@lru_cache(maxsize=1_024)
def _why_not_asked(question: str, in_conversation: bool) -> str:
    """Kept, because one request asks up to three times: before it embeds, before it looks up, before it writes."""
    found = _WORD.findall(question.lower())
    said = frozenset(found)
    own = len(said - words.FAINT)
    if _LEANS.match(question) or own == 0:
        return "follow_up"
    if not said.isdisjoint(words.POINTING_BACK) and (in_conversation or own < _STANDS_ALONE):
        return "follow_up"
    pairs = frozenset(pairwise(found))
    if is_volatile(question):
        return "volatile"
    return "payload" if payload.carried(question, found, said, pairs) else ""
