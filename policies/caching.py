"""Define the cache section of a policy: which requests may be answered from the cache, how surely, and which never."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field

from policies.expression import Expression
from policies.quantities import read_number
from policies.validation import Seconds, Section, Share, Whole, knows, rule

CACHE_NAMES: Final = (
    "tools", "images", "temperature", "top_p", "n", "seed", "logprobs", "turns", "tokens_in", "stream", "json",
    "volatile",
)  # fmt: skip
"""Names that a rule of `cache.never` may use.

A request without `temperature` leaves it to the model's provider (1 with OpenAI), and so for `top_p` and `seed`: no
comparison with such a value holds, so `temperature > 1` applies only to requests that set it. `n` is 1 if not set.
`volatile`: the last user message surely asks for what depends on when it is asked: news, weather, prices, what is open;
where that is in doubt, no rule holds and `doubt_ttl` bounds how long the answer is kept.
"""
TAG = re.compile(r"[A-Za-z0-9._:/@+#=-]{1,64}")
"""Format of a tag, the name of a source of answers."""
TAGS_AT_MOST = 16

CacheRule = Annotated[Expression, BeforeValidator(rule), AfterValidator(knows(CACHE_NAMES))]
Tag = Annotated[str, Field(pattern=rf"^{TAG.pattern}$")]
Guard = Literal["negation", "numbers", "entities", "dates"]


class ExactCache(Section):
    """Answers requests with equal keys from the store; `ttl` is the lifetime of an answer in seconds."""

    ttl: Annotated[Seconds, Field(examples=["24h"])]


class CrossEncoderRules(Section):
    """How the deployment's cross-encoder, which reads both questions together, scores neighbours (`verify: default`).

    It is asked where the verifier leaves it open whether both want the same answer: no veto, and a score of `ask_from`
    or more. Below that a neighbour is not served. Its score is then the neighbour's, and labels move the threshold. A
    score that is not there `within` that time (seconds), or a failure, refuses.
    """

    min_score: Share | None = None
    """Threshold until there are enough labels; None for the model's own, from its data sheet."""
    ask_from: Share = 0.01
    within: Annotated[Seconds, Field(gt=0)] = 0.1
    candidates: Annotated[Whole, Field(ge=1, le=5)] = 2
    """Most neighbours of one request that it scores, the likeliest by the verifier."""


class AuditJudgeRules(Section):
    """A model that decides whether a stored and a new answer agree, where the guards see no difference.

    It reads the question and both answers, after the reply is sent and at the operator's expense. `per_hour` bounds its
    calls for the surface by all workers together, and candidates below the threshold to half of that; beyond it the
    answers' vectors are compared. Its calls cost at most `max_usd_per_day` (US dollars; UTC) on the surface.
    """

    backend: Annotated[str, Field(min_length=1)]
    """Name of a backend in the deployment's config."""
    per_hour: Annotated[Whole, Field(ge=1)] = 60
    max_usd_per_day: Annotated[float, BeforeValidator(read_number), Field(ge=0, allow_inf_nan=False)] = 2.0


class SemanticCache(Section):
    """Answers requests with the same meaning from the store, if no guard objects and the score is high enough.

    `max_error`: the share of all requests that may wrongly get another question's answer. `verify` judges a neighbour:
    by `default` the verifier and, where that leaves it open, the deployment's cross-encoder; `fast` the verifier alone;
    `none` the guards alone, which accept hardly any other wording.
    """

    ttl: Annotated[Seconds, Field(examples=["6h"])]
    min_similarity: Annotated[float, Field(ge=0.3, le=1)] = 0.4
    """Minimum cosine of a neighbour to be considered. It bounds the cost; the verifier bounds the error."""
    max_error: Share = 0.01
    audit: Share = 0.02
    """Share of requests that a stored answer would serve but a model answers all the same, to compare the answers."""
    audit_judge: AuditJudgeRules | None = None
    verify: Literal["default", "fast", "none"] = "default"
    cross_encoder: CrossEncoderRules = CrossEncoderRules()
    max_temperature: Annotated[float, Field(ge=0, le=2)] = 0.3
    """A request with a higher temperature is not answered from the cache; one without a temperature is."""
    guards: tuple[Guard, ...] = get_args(Guard)


class CachePolicy(Section):
    """Which requests may be answered from the store, and which never are.

    `coalesce`: where there is an exact cache, concurrent equal requests share one answer.
    """

    exact: ExactCache | None = None
    semantic: SemanticCache | None = None
    never: tuple[CacheRule, ...] = ()
    """Requests for which one of these rules holds are not answered from the store, and their answers are neither stored
    nor shared with concurrent equal requests."""
    doubt_ttl: Seconds = 300.0
    """How long an answer is kept at most where a rule of `never` names `volatile` and would hold, but it is in doubt
    whether the text is; 0 keeps none."""
    store_tool_calls: bool = False
    """Whether answers that call tools are stored: repeating a call may have another effect."""
    coalesce: bool = True
    scope: Literal["tenant", "team"] = "tenant"
    """Who shares answers: each tenant alone, or all tenants of its team (`tenants` in the deployment's config)."""
    tags: Annotated[tuple[Tag, ...], Field(max_length=TAGS_AT_MOST)] = ()
    """Sources of the answers here, in addition to those that a request names: see `cache purge --tag`."""
