"""A policy: the rules of one surface, as its YAML file states them, checked and frozen.

Durations are written `400ms`, `6s`, `24h` and held in seconds; shares are written `1%` or `0.01` and held as 0..1.
Unknown keys are errors. Rules (`route.start`, `cache.never`) are expressions, see `policies.expression`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from policies.errors import did_you_mean
from policies.expression import OTHERWISE, Expression
from policies.validation import Finding, raise_findings

ROUTE_VALUES = frozenset(
    {
        "p_adequate",
        "difficulty",
        "in_domain",
        "tokens_in",
        "turns",
        "has_tools",
        "wants_json",
        "has_images",
        "stream",
        "budget_ms",
    }
)
"""What a rule of `route.start` may ask about."""
CACHE_VALUES = frozenset(
    {"tools", "images", "temperature", "top_p", "n", "seed", "logprobs", "turns", "tokens_in", "stream", "json"}
)
"""What a rule of `cache.never` may ask about."""
SURFACE_HEADER = "x-tierline-surface"
RESERVED_NAMES = frozenset({"auto"})
"""Names for `model` that mean something of their own, as does every one that starts with `tier:`."""

UNCALIBRATED_BELOW = 0.8
"""The threshold for a mean token probability that nothing has been fitted to. Of the answers of Llama 3 models of 1B to
8B that reach it, 80 to 87% are right on MMLU and 69 to 84% on MedMCQA; of all their answers, 35 to 63% (measured on
mzelling/rational-llm-cascades). It lets through too little rather than too much."""

TAG = re.compile(r"[A-Za-z0-9._:/@+#=-]{1,64}")
"""What the name of a source that answers are drawn from looks like."""
TAGS_AT_MOST = 16

_DURATION = re.compile(r"^(\d+(?:\.\d+)?)(ms|s|m|h|d)$")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _seconds(value: object) -> float:
    match = _DURATION.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a duration; write a number with its unit, such as 400ms, 6s, 5m or 24h")
    return float(match[1]) * _UNIT_SECONDS[match[2]]


def _quantile_or_seconds(value: object) -> object:
    if value in ("p50", "p90", "p95", "p99"):
        return value
    try:
        return _seconds(value)
    except ValueError:
        raise ValueError(f"{value!r} is neither p50, p90, p95 or p99 nor a duration such as 300ms") from None


def _rule(value: object) -> Expression:
    if isinstance(value, Expression):
        return value
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a rule; write an expression such as 'tokens_in < 3000', or 'otherwise'")
    return Expression.parse(value)


def _share(value: object) -> object:
    if isinstance(value, str) and value.endswith("%"):
        try:
            return float(value[:-1]) / 100
        except ValueError:
            raise ValueError(f"{value!r} is not a share; write 1% or 0.01") from None
    return _not_a_flag(value)


def _not_a_flag(value: object) -> object:
    """Python would read true as 1."""
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a number")
    return value


def _knows(values: frozenset[str]) -> Callable[[Expression], Expression]:
    def check(rule: Expression) -> Expression:
        unknown = sorted(rule.names - values)
        if unknown:
            named = ", ".join(f"{name!r}{did_you_mean(name, values)}" for name in unknown)
            raise ValueError(f"{rule.source!r} asks for {named}; a rule here knows {', '.join(sorted(values))}")
        return rule

    return check


Seconds = Annotated[float, BeforeValidator(_seconds), Field(ge=0)]
Share = Annotated[float, BeforeValidator(_share), Field(ge=0, le=1, allow_inf_nan=False)]
Whole = Annotated[int, BeforeValidator(_not_a_flag)]
RouteRule = Annotated[Expression, BeforeValidator(_rule), AfterValidator(_knows(ROUTE_VALUES))]
CacheRule = Annotated[Expression, BeforeValidator(_rule), AfterValidator(_knows(CACHE_VALUES))]
HedgeQuantile = Literal["p50", "p90", "p95", "p99"]
Priority = Literal["interactive", "batch"]
Tag = Annotated[str, Field(pattern=rf"^{TAG.pattern}$")]
Guard = Literal["negation", "numbers", "entities", "dates"]


class Section(BaseModel):
    """A part of a policy file: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class Match(Section):
    """Which requests are this surface's: the names `model` may have, or a header's value."""

    models: tuple[str, ...] = ()
    header: Mapping[str, str] = {}
    """Only `x-tierline-surface` is looked at."""

    @field_validator("models")
    @classmethod
    def _names_are_free(cls, models: tuple[str, ...]) -> tuple[str, ...]:
        for name in models:
            if not name or name in RESERVED_NAMES or name.startswith("tier:"):
                raise ValueError(f"{name!r} cannot be an alias; 'auto' and 'tier:...' have meanings of their own")
        return models

    @field_validator("header")
    @classmethod
    def _one_header(cls, header: Mapping[str, str]) -> Mapping[str, str]:
        lowered = {name.lower(): value for name, value in header.items()}
        if lowered.keys() - {SURFACE_HEADER}:
            raise ValueError(f"only the header {SURFACE_HEADER} can choose a surface")
        return lowered


class Quantiles(Section):
    """Latency objectives, in seconds."""

    p50: Seconds | None = None
    p95: Seconds | None = None
    p99: Seconds | None = None


class Slo(Section):
    """What people of this surface wait for, and what happens when it cannot be kept."""

    ttft: Quantiles = Quantiles()
    total: Quantiles = Quantiles()
    deadline: Seconds
    on_miss: Literal["serve_best", "fail"] = "serve_best"


class Route(Section):
    """Where a request starts. `start` is read in order; the first tier whose rule holds is taken.

    Whatever the rules say, a request for tools, images or JSON only goes to tiers that have that capability.

    Out of its domain the classifier says nothing: `in_domain` is false, and no comparison with `p_adequate` or
    `difficulty` holds. `(p_adequate >= 0.7 or not in_domain)` starts such requests where easy ones start.
    """

    classifier: Literal["default", "none"] = "default"
    start: Annotated[Mapping[str, RouteRule], Field(min_length=1)]


class When(Section):
    """What makes an answer not good enough.

    `confidence_below` is held against the calibrated probability that the answer is right, which only a backend's
    confidence head gives. `uncalibrated_below` is held against what is merely a score: the mean probability of the
    tokens where there is no head, or how far a second sample agrees. Left out, it is UNCALIBRATED_BELOW wherever
    `confidence_below` asks for anything at all.
    """

    confidence_below: Share = 0.0
    uncalibrated_below: Share | None = None
    invalid: frozenset[Literal["json", "json_schema", "tool_args"]] = frozenset()
    finish: frozenset[Literal["length", "content_filter"]] = frozenset()
    repetition: bool = True
    refusal: bool = True

    def threshold(self, *, calibrated: bool) -> float:
        """What a confidence must reach, 0..1; 0 asks for nothing."""
        if calibrated:
            return self.confidence_below
        if self.uncalibrated_below is not None:
            return self.uncalibrated_below
        return UNCALIBRATED_BELOW if self.confidence_below else 0.0

    @property
    def asks_for_confidence(self) -> bool:
        """Whether any answer is held against a threshold."""
        return bool(self.confidence_below or self.uncalibrated_below)


class Agreement(Section):
    """Evidence where a backend gives no log-probabilities: whether it says the same when it is asked once more.

    So many further samples are drawn, at this temperature or the request's own if that is higher, and paid for. They
    are drawn beside the answer, so only where the config says beforehand that there will be no log-probabilities
    (`logprobs: false`). Streams, requests with tools or images, and answers that nothing could replace are not sampled.
    """

    samples: Annotated[Whole, Field(ge=1, le=4)] = 1
    temperature: Annotated[float, BeforeValidator(_not_a_flag), Field(gt=0, le=2, allow_inf_nan=False)] = 0.7


class StreamRules(Section):
    """How a stream is held, kept alive, and mended.

    So many tokens, or so long from the first, are held back and judged, whichever is less. `alive` is what may go out
    before that, so that the connection feels alive: nothing, comments, or the role chunk too; the reply's head then
    goes out before it is known who answers. `on_break` is what becomes of a committed stream that breaks off or goes
    round in circles: the next tier goes on with it where its backend can, else it ends with the error event (`error`
    does so at once); or the next tier's own answer is appended, marked as a correction.
    """

    hold_tokens: Annotated[Whole, Field(ge=1, le=256)] = 24
    hold_max: Seconds = 0.25
    alive: Literal["none", "comments", "role"] = "none"
    on_break: Literal["continue", "correct", "error"] = "continue"


class Hedge(Section):
    """A second attempt beside one that is slow; the first adequate first token wins.

    `after` is a quantile of the time that the tier's first token takes for prompts of that length (for JSON: of its
    whole answers), or a time. What hedging costs beyond the answers themselves stays under this share of the surface's
    spending.
    """

    after: Annotated[HedgeQuantile | float, BeforeValidator(_quantile_or_seconds)] = "p95"
    max_extra_spend: Share = 0.03


class Speculate(Section):
    """Attempts that start before it is known whether they are needed.

    `both`: requests for which the start tier and the next one are asked at once. `during_lookup`: a start tier that
    costs nothing begins while the semantic cache is still asked.
    """

    both: RouteRule | None = None
    during_lookup: bool = False


class Escalate(Section):
    """When the next tier takes over."""

    when: When = When()
    no_signal: Literal["escalate", "accept"] = "escalate"
    agreement: Agreement | None = None
    stream: StreamRules = StreamRules()
    hedge: Hedge | None = None
    speculate: Speculate = Speculate()
    max_attempts: Annotated[Whole, Field(ge=1, le=3)] = 3


class ExactCache(Section):
    """Byte-equal requests are answered from the store."""

    ttl: Seconds


class CrossEncoder(Section):
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


class AuditJudge(Section):
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
    audit_judge: AuditJudge | None = None
    verify: Literal["default", "none"] = "default"
    cross_encoder: CrossEncoder | None = None
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
    store_tool_calls: bool = False
    """Whether answers that call tools are kept: what a call does may not be what it did before."""
    replay: Literal["at_once", "paced"] = "at_once"
    """How a stored answer is streamed: as one piece, or at the pace at which it came first."""
    coalesce: bool = True
    scope: Literal["tenant", "team"] = "tenant"
    """Who shares answers: each tenant by itself, or all of its team (`tenants` in the deployment's config)."""
    tags: Annotated[tuple[Tag, ...], Field(max_length=TAGS_AT_MOST)] = ()
    """The sources that answers here are drawn from, beside those that a request names: see `cache purge --tag`."""


class Output(Section):
    """Limits on what a model may produce here."""

    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    stop: tuple[str, ...] = ()


class Load(Section):
    """How this surface stands in line when backends are full.

    Interactive requests go ahead of batch ones, which keep a floor of one place in twenty. Nobody waits for longer than
    `max_wait`, and no more than `max_waiting` requests of the surface do so in one worker: the others are shed at once.
    """

    priority: Priority = "interactive"
    max_wait: Seconds = 2.0
    max_waiting: Annotated[Whole, Field(ge=0)] = 256


class Rules(Section):
    """All that a policy file says."""

    surface: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
    description: str = ""
    match: Match = Match()
    slo: Slo
    tiers: Annotated[tuple[str, ...], Field(min_length=1)]
    route: Route
    escalate: Escalate = Escalate()
    cache: CachePolicy = CachePolicy()
    output: Output = Output()
    load: Load = Load()
    holdout: Share = 0.01
    """The share of requests that go to the strongest tier whatever their difficulty, to measure the others against."""

    @field_validator("surface")
    @classmethod
    def _surface_is_free(cls, surface: str) -> str:
        if surface in RESERVED_NAMES:
            raise ValueError(f"{surface!r} has a meaning of its own; choose another name")
        return surface

    @model_validator(mode="after")
    def _tiers_agree(self) -> Self:
        findings: list[Finding] = [
            (("tiers", i), f"tier {name!r} is named twice")
            for i, name in enumerate(self.tiers)
            if name in self.tiers[:i]
        ]
        named: list[tuple[tuple[str, ...], str]] = [(("route", "start", name), name) for name in self.route.start]
        findings += [
            (path, f"tier {name!r} is not among this policy's tiers {list(self.tiers)}{did_you_mean(name, self.tiers)}")
            for path, name in named
            if name not in self.tiers
        ]
        if not any(rule.source == OTHERWISE for rule in self.route.start.values()):
            message = "one tier must say 'otherwise', or some requests would have nowhere to go"
            findings.append((("route", "start"), message))
        raise_findings(findings or self._unreachable())
        return self

    def _unreachable(self) -> list[Finding]:
        """Escalation only goes up, so a tier cheaper than every start is never asked."""
        starts = {self.tiers.index(name) for name in self.route.start}
        return [
            (("tiers", i), f"tier {name!r} can never be reached: no request starts there or below it")
            for i, name in enumerate(self.tiers[: min(starts)])
        ]


class Policy(Rules):
    """The rules of one surface. `version` is the hash of the file's content, so equal rules have equal versions."""

    version: Annotated[str, Field(pattern=r"^[0-9a-f]{7,64}$")]
    """Set by the loader; never written in a file."""

    @property
    def label(self) -> str:
        """`surface@version`, short enough for a header."""
        return f"{self.surface}@{self.version[:7]}"
