"""What a policy says of the cache: what may be answered from the store, how surely, and what never is."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from policies.expression import Expression
from policies.ranges import COUNT, FLAG, SHARE, Range, Ranges
from policies.values import Seconds, Section, Share, Whole, knows, rule

CACHE_VALUES: Final[Ranges] = {
    "tools": FLAG,
    "images": FLAG,
    "temperature": Range(0.0, optional=True),
    "top_p": replace(SHARE, optional=True),
    "n": Range(1.0, whole=True),
    "seed": Range(whole=True, optional=True),
    "logprobs": FLAG,
    "turns": COUNT,
    "tokens_in": COUNT,
    "stream": FLAG,
    "json": FLAG,
    "volatile": FLAG,
}
"""What a rule of `cache.never` may ask about, and the values it can have.

A request that does not say what its `temperature` is leaves it to the model's provider (1 with OpenAI), and so do
`top_p` and `seed`: no comparison with such a value holds, so `temperature > 1` is about those that say so. `n` is then
1. `volatile`: the last user message asks for what depends on when it is asked (today, now, latest, news, price).
"""
TAG = re.compile(r"[A-Za-z0-9._:/@+#=-]{1,64}")
"""What the name of a source that answers are drawn from looks like."""
TAGS_AT_MOST = 16

CacheRule = Annotated[Expression, BeforeValidator(rule), AfterValidator(knows(CACHE_VALUES))]
Tag = Annotated[str, Field(pattern=rf"^{TAG.pattern}$")]
Guard = Literal["negation", "numbers", "entities", "dates"]


class ExactCache(Section):
    """Byte-equal requests are answered from the store."""

    ttl: Seconds


class CrossEncoderRules(Section):
    """A second opinion on the best neighbour, by the model that reads both questions together (the deployment's).

    It is asked where no veto has spoken and the score is `ask_from` at least: under even odds the wait is not worth it,
    and the neighbour is not served. (Of Quora's questions one in twelve then waits for it.) As a `veto` it refuses what
    it scores below `min_score`, and nothing else changes. As the `score` it takes the place of the other score: the
    threshold starts from `min_score`, and labels move it. An opinion that is not there `within` that time, or that
    fails, refuses.
    """

    min_score: Share
    """What is enough depends on what the model was trained for; `tierline eval cache` tells."""
    decides: Literal["veto", "score"] = "veto"
    ask_from: Share = 0.5
    within: Annotated[Seconds, Field(gt=0)] = 0.1


class AuditJudgeRules(Section):
    """A model that says whether a stored answer and a fresh one come to the same, where the guards see no difference.

    It reads the question and both answers, after the reply is out and at our own expense. `per_hour` bounds its calls
    for the surface, those of all workers together, and near misses to half of that; beyond it the answers' vectors are
    compared.
    """

    backend: Annotated[str, Field(min_length=1)]
    """The name of a backend of the deployment's config."""
    per_hour: Annotated[Whole, Field(ge=1)] = 60


class SemanticCache(Section):
    """Requests that mean the same are answered from the store, when past every guard and surely enough the same.

    `max_error`: the share of all requests that may get another question's answer wrongly. `verify`: what judges a
    neighbour: the `default` verifier allows other wording, `none` leaves the guards alone, which allow hardly any.
    """

    ttl: Seconds
    min_similarity: Annotated[float, Field(ge=0.5, le=1)] = 0.5
    """The cosine from which on a neighbour is looked at at all. It bounds the cost; the verifier bounds the error."""
    max_error: Share = 0.01
    audit: Share = 0.02
    """Of the requests that a stored answer would serve, the share that is answered afresh all the same, to compare."""
    audit_judge: AuditJudgeRules | None = None
    verify: Literal["default", "none"] = "default"
    cross_encoder: CrossEncoderRules | None = None
    max_temperature: Annotated[float, Field(ge=0, le=2)] = 0.3
    """A request that asks for more than this wants an answer of its own. One that does not say is not refused."""
    guards: tuple[Guard, ...] = ("negation", "numbers", "entities", "dates")


class CachePolicy(Section):
    """What may be answered from the store, and what never is.

    `coalesce`: where there is an exact cache, equal requests that come while one of them is being answered share its
    answer.
    """

    exact: ExactCache | None = None
    semantic: SemanticCache | None = None
    never: tuple[CacheRule, ...] = ()
    """Requests of which one of these rules holds are neither answered from the store, nor are their answers kept or
    shared with equal requests under way."""
    store_tool_calls: bool = False
    """Whether answers that call tools are kept: what a call does may not be what it did before."""
    replay: Literal["at_once", "paced"] = "at_once"
    """How a stored answer is streamed: as one piece, or at the pace at which it came first."""
    coalesce: bool = True
    scope: Literal["tenant", "team"] = "tenant"
    """Who shares answers: each tenant by itself, or all of its team (`tenants` in the deployment's config)."""
    tags: Annotated[tuple[Tag, ...], Field(max_length=TAGS_AT_MOST)] = ()
    """The sources that answers here are drawn from, beside those that a request names: see `cache purge --tag`."""
