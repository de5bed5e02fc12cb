"""A policy: the rules of one surface, as its YAML file states them, checked and frozen.

Unknown keys are errors. Rules (`route.start`, `cache.never`) are expressions, see `policies.expression`; how durations
and shares are written stands in `policies.values`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from policies.caching import CachePolicy
from policies.errors import did_you_mean
from policies.expression import OTHERWISE, Expression
from policies.ranges import COUNT, FLAG, SHARE, Range, Ranges
from policies.rollout import Rollout
from policies.validation import Finding, raise_findings
from policies.values import Seconds, Section, Share, Whole, knows, number, rule, seconds

ROUTE_VALUES: Final[Ranges] = {
    "p_adequate": replace(SHARE, optional=True),
    "difficulty": replace(SHARE, optional=True),
    "in_domain": FLAG,
    "tokens_in": COUNT,
    "turns": COUNT,
    "has_tools": FLAG,
    "wants_json": FLAG,
    "has_images": FLAG,
    "stream": FLAG,
    "budget_ms": Range(0.0),
}
"""What a rule of `route.start` or `escalate.speculate.both` may ask about, and the values it can have."""
SURFACE_HEADER = "x-tierline-surface"
RESERVED_NAMES = frozenset({"auto"})
"""Names for `model` that mean something of their own, as does every one that starts with `tier:`."""

UNCALIBRATED_BELOW = 0.8
"""The threshold for a mean token probability that nothing has been fitted to. Of the answers of Llama 3 models of 1B to
8B that reach it, 80 to 87% are right on MMLU and 69 to 84% on MedMCQA; of all their answers, 35 to 63% (measured on
mzelling/rational-llm-cascades). It lets through too little rather than too much."""


def _quantile_or_seconds(value: object) -> object:
    if value in ("p50", "p90", "p95", "p99"):
        return value
    try:
        return seconds(value)
    except ValueError:
        raise ValueError(f"{value!r} is neither p50, p90, p95 or p99 nor a duration such as 300ms") from None


RouteRule = Annotated[Expression, BeforeValidator(rule), AfterValidator(knows(ROUTE_VALUES))]
HedgeQuantile = Literal["p50", "p90", "p95", "p99"]
Priority = Literal["interactive", "batch"]


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
    temperature: Annotated[float, BeforeValidator(number), Field(gt=0, le=2, allow_inf_nan=False)] = 0.7


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


class Output(Section):
    """Limits on what a model may produce here."""

    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    stop: tuple[str, ...] = ()


class Load(Section):
    """How this surface stands in line when backends are full.

    Interactive requests go ahead of batch ones, which keep a floor of one place in twenty. Nobody waits for longer than
    `max_wait`, and no more than `max_waiting` requests of the surface do so in one worker: the others are shed at once.
    That is the whole rule, unless the config caps a backend's line for all surfaces together (its `queue`).
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
    rollout: Rollout | None = None
    """How a change of this policy is to be brought in. It is checked and not carried out yet: see policies.rollout."""

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


@dataclass(frozen=True, slots=True)
class DeployedTier:
    """What a policy has to know of a tier of the deployment."""

    name: str
    models: tuple[str, ...] = ()
    """The models of its configured backends, each once, sorted."""
    capabilities: frozenset[str] = frozenset()
    unconfigured: str = ""
    """Why none of its backends can be used, such as "OPENAI_API_KEY is not set"; '' where one can."""

    @property
    def why_not(self) -> str:
        """The same as a clause that names the tier."""
        return f"{self.name} is not configured: {self.unconfigured}"


def _all_tiers(rules: dict[str, Any]) -> tuple[str, ...]:
    return tuple(rules.get("tiers", ()))


def _version(rules: dict[str, Any]) -> str:
    return str(rules.get("version", ""))


class Policy(Rules):
    """The rules of one surface, in one deployment. What `Rules` lacks is set by the loader and never written in a file.

    `version` is the hash of the file's content, so equal rules have equal versions.
    """

    version: Annotated[str, Field(pattern=r"^[0-9a-f]{7,64}$")]
    ladder: tuple[str, ...] = Field(default_factory=_all_tiers)
    """Those of `tiers` that are configured in this deployment, cheapest first; all, where no deployment is known."""
    unconfigured: Mapping[str, DeployedTier] = {}
    """The other tiers, by name."""
    models: tuple[str, ...] = ()
    """What may answer, for people: the model of each tier of the ladder, or its models, with "or" between."""
    answers_version: str = Field(default_factory=_version)
    """The hash of what makes an answer: the ladder, its models, and the rules for the output and the cache.

    Stored answers belong to it, so those of another model are never served, and an edited threshold, objective or
    limit of the load loses none. Without a deployment it is the `version`.
    """

    @property
    def label(self) -> str:
        """`surface@version`, short enough for a header."""
        return f"{self.surface}@{self.version[:7]}"
