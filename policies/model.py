"""Define a policy: the validated, frozen rules of one surface, as its YAML file states them.

Unknown keys are errors. Rules (`route.start`, `cache.never`) are expressions, see `policies.expression`; the notation
of durations and shares is in `policies.validation`.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Protocol, Self, get_args

from pydantic import AfterValidator, BeforeValidator, Field, InstanceOf, field_validator, model_validator

from policies.caching import CachePolicy
from policies.errors import Edit, Finding, KeyPath, did_you_mean
from policies.expression import OTHERWISE, Expression, Kind
from policies.fields import SetFields
from policies.quantities import OF_STAGES, read_duration, read_number
from policies.steering import Spent, Steering
from policies.validation import Extended, Seconds, Section, Share, Whole, knows, raise_findings, rule
from policies.yaml_source import Place

ROUTE_NAMES: Final = (
    "p_adequate", "difficulty", "in_domain", "kind", "quantile", "effort", "tokens_in", "turns",
    "conversation_difficulty", "last_tier", "has_tools", "wants_json", "has_images", "stream", "reasoning_above",
    "budget_ms",
)  # fmt: skip
"""Names that a rule of `route.start` or `escalate.speculate.both` may use."""
SURFACE_HEADER = "x-tierline-surface"
RESERVED_NAMES = frozenset({"auto"})
"""Values of `model` with a special meaning; so have all that start with `tier:`."""

UNCALIBRATED_BELOW = 0.8
"""Threshold for a mean token probability without a calibration. Of the answers of Llama 3 models of 1B to 8B that reach
it, 80 to 87% are right on MMLU and 69 to 84% on MedMCQA; of all their answers, 35 to 63% (measured on
mzelling/rational-llm-cascades). It errs on the side of escalating too much."""


_PINNED: Final = re.compile(r"^(?P<folder>[^@\s]+)@(?P<version>[0-9a-f]{12,64})$")


def quantile_or_seconds(value: object) -> object:
    """Return `p50`, `p90`, `p95` or `p99`, or a written duration in seconds. Raises ValueError."""
    if value in ("p50", "p90", "p95", "p99"):
        return value
    try:
        return read_duration(value)
    except ValueError:
        raise ValueError(f"{value!r} is neither p50, p90, p95 or p99 nor a duration such as 300ms") from None


def _deciles(deciles: tuple[float, ...]) -> tuple[float, ...]:
    if len(deciles) != 9:
        raise ValueError(f"write nine numbers, the quantiles of 10%, 20%, ... 90% of the requests, not {len(deciles)}")
    if any(low > high for low, high in pairwise(deciles)):
        raise ValueError(f"{list(deciles)} must not fall: the first number is the quantile of the easiest tenth")
    return deciles


def _classifier(name: str) -> str:
    if name not in ("default", "none") and not _PINNED.match(name):
        raise ValueError(
            f"{name!r} is neither default nor none nor a folder with the beginning of its artefact's SHA-256, "
            "such as learned/chat@3f2a91b0c4d5"
        )
    return name


RouteRule = Annotated[Expression, BeforeValidator(rule), AfterValidator(knows(ROUTE_NAMES))]
Deciles = Annotated[tuple[Share, ...], AfterValidator(_deciles)]
HedgeQuantile = Literal["p50", "p90", "p95", "p99"]
Priority = Literal["interactive", "batch"]
PromptCache = Annotated[
    Literal["auto", "long", "off"], BeforeValidator(lambda value: "off" if value is False else value)
]
"""Older YAML readers take `off` for false."""


class Match(Section):
    """Which requests belong to this surface: by the values of `model`, or by a header."""

    models: tuple[str, ...] = ()
    header: Mapping[str, str] = {}
    """Only `x-tierline-surface` is supported."""

    @field_validator("models")
    @classmethod
    def _names_are_free(cls, models: tuple[str, ...]) -> tuple[str, ...]:
        raise_findings(
            Finding(
                (i,),
                f"{name!r} cannot be an alias; 'auto' and 'tier:...' have meanings of their own",
                "T105",
                "leave it out",
                (Edit((i,)),),
            )
            for i, name in enumerate(models)
            if not name or name in RESERVED_NAMES or name.startswith("tier:")
        )
        return models

    @field_validator("header")
    @classmethod
    def _one_header(cls, header: Mapping[str, str]) -> Mapping[str, str]:
        wrong = [name for name in header if name.lower() != SURFACE_HEADER]
        raise_findings(
            Finding(
                (name,),
                f"only the header {SURFACE_HEADER} can choose a surface",
                "T105",
                "write that name",
                (Edit((name,), rename=SURFACE_HEADER),) if len(header) == 1 else (Edit((name,)),),
                of_key=True,
            )
            for name in wrong
        )
        return {name.lower(): value for name, value in header.items()}


class Quantiles(Section):
    """Latency objectives, in seconds."""

    p50: Seconds | None = None
    p95: Seconds | None = None
    p99: Seconds | None = None


Stage = Literal["cache", "embed", "route", "queue", "drafts", "prefill", "verdict", "decode"]
STAGES: Final[tuple[Stage, ...]] = get_args(Stage)
"""Parts of a request's time that can have objectives, in their order: the lookups, the vector, the decision, then of
the call that answered its wait in the queue, what was tried before it, its time to the first token, what was held back
until it was judged, and the rest of the answer. All but the last come before the first token."""


class Slo(Section):
    """The latency objectives of this surface, its deadline in seconds, and what happens when it cannot be kept.

    `tpot` and `gap` are about streams: the time per output token after the first, and the longest time between two
    chunks of one answer. `stages` say where the time goes; goodput does not go by them.
    """

    ttft: Quantiles = Quantiles()
    tpot: Quantiles = Quantiles()
    gap: Quantiles = Quantiles()
    total: Quantiles = Quantiles()
    stages: Mapping[Stage, Quantiles] = {}
    deadline: Annotated[Seconds, Field(examples=["60s"])]
    on_miss: Literal["serve_best", "fail"] = "serve_best"

    def limits(self) -> dict[str, float]:
        """Return each objective's limit in seconds by its name, such as `ttft_p95`, `total_p99` and `deadline`."""
        named = {
            f"{what}_{quantile}": limit
            for what, quantiles in self.quantiles().items()
            for quantile, limit in quantiles
            if limit is not None
        }
        return {**named, "deadline": self.deadline}

    def quantiles(self) -> dict[str, Quantiles]:
        """Return the objectives that have quantiles, by the name of what they limit."""
        stages = {f"{OF_STAGES}{name}": quantiles for name, quantiles in self.stages.items()}
        return {"ttft": self.ttft, "tpot": self.tpot, "gap": self.gap, "total": self.total, **stages}


class Traffic(Section):
    """How hard this surface's own requests are, as `tierline fit calibrate` measured it in recorded traffic.

    `deciles` are, for a kind of request, the classifier's quantiles below which 10%, 20%, ... 90% of the surface's
    requests of that kind lie. They hold for the `classifier` of that version only.
    """

    classifier: Annotated[str, Field(pattern=r"^[0-9a-f]{7,64}$")]
    deciles: Annotated[Mapping[Kind, Deciles], Field(min_length=1)]

    def share_easier(self, kind: str, quantile: float) -> float | None:
        """Return the share, 0..1, of the surface's requests of that kind that are easier; None if it is not known."""
        deciles = self.deciles.get(kind)  # type: ignore[call-overload]
        if deciles is None:
            return None
        at = bisect_left(deciles, quantile)
        low, high = deciles[at - 1] if at else 0.0, deciles[at] if at < len(deciles) else 1.0
        within = min(1.0, (quantile - low) / (high - low)) if high > low else 0.0
        return (at + within) / (len(deciles) + 1)


@dataclass(frozen=True, slots=True)
class PinnedArtefact:
    """A classifier's folder, relative to the policy's, and the first digits of the SHA-256 of its numbers."""

    folder: str
    version: str


class Route(Section):
    """Where a request starts. `start` is read in order; the first tier whose rule holds is taken.

    Whatever the rules say, a request that needs tools, images or JSON only goes to tiers with that capability.

    Outside its domain the classifier gives no values: `in_domain` is false, and no comparison with `p_adequate`,
    `difficulty`, `kind` or `quantile` holds. `(easiest 40% of its kind or not in_domain)` starts such requests where
    easy ones start. `effort`, how much work a request asks for by common sense, is known there too: `not in_domain and
    effort < 0.3`. Without `traffic`, quantiles are of the classifier's reference prompts. `conversation_difficulty`
    takes such requests for as hard as their effort.
    """

    classifier: Annotated[str, AfterValidator(_classifier)] = "default"
    """`default` for the deployment's, `none`, or FOLDER@HASH for an artefact that is pinned: see `pinned`."""
    start: Annotated[Mapping[str, RouteRule], Field(min_length=1)]
    traffic: Traffic | None = None
    weigh_switching: bool = True
    """Whether an easy turn goes on at a stronger tier that holds its prompt, while that costs less than to switch."""

    @property
    def pinned(self) -> PinnedArtefact | None:
        """The artefact that `classifier` names; None where it names the deployment's, or none."""
        found = _PINNED.match(self.classifier)
        return None if found is None else PinnedArtefact(found["folder"], found["version"])

    def share_easier(self, kind: str, quantile: float, classifier: str) -> float | None:
        """Return the share of the surface's requests of `kind` easier than one of this classifier's `quantile`.

        None where that was not measured, or was measured with another classifier.
        """
        traffic = self.traffic
        return traffic.share_easier(kind, quantile) if traffic and traffic.classifier == classifier else None


class When(Section):
    """The conditions under which an answer is not good enough.

    `confidence_below` is compared with the calibrated probability that the answer is right, which only a backend's
    confidence head gives. `uncalibrated_below` is compared with an uncalibrated score: exp of the mean log-probability
    of the tokens where there is no head, or the agreement with a second sample. If omitted, it is UNCALIBRATED_BELOW
    wherever `confidence_below` is above 0.
    """

    confidence_below: Share = 0.0
    uncalibrated_below: Share | None = None
    invalid: frozenset[Literal["json", "json_schema", "tool_args", "tool_calls"]] = frozenset()
    finish: frozenset[Literal["length", "content_filter"]] = frozenset()
    repetition: bool = True
    refusal: bool = True

    def threshold(self, *, calibrated: bool) -> float:
        """Return the minimum confidence, 0..1; 0 accepts everything."""
        if calibrated:
            return self.confidence_below
        if self.uncalibrated_below is not None:
            return self.uncalibrated_below
        return UNCALIBRATED_BELOW if self.confidence_below else 0.0

    @property
    def asks_for_confidence(self) -> bool:
        """Whether any answer is compared with a threshold."""
        return bool(self.confidence_below or self.uncalibrated_below)


class Agreement(Section):
    """Evidence where a backend gives no log-probabilities: whether it gives the same answer when called once more.

    `samples` further answers are drawn and paid for, at this temperature or the request's own if that is higher. They
    are drawn in parallel with the answer, so only where the config states that there will be no log-probabilities
    (`logprobs: false`). The cross-encoder and the words say how likely both say the same; where it cannot, only equal
    texts and other numbers are a signal. Requests with images, and answers that cannot be escalated, are not sampled.
    Of a stream the beginnings are compared that its judge has seen, and of answers that call tools the calls.
    """

    samples: Annotated[Whole, Field(ge=1, le=4)] = 1
    temperature: Annotated[float, BeforeValidator(read_number), Field(gt=0, le=2, allow_inf_nan=False)] = 0.7


Verifier = Literal["logprobs", "judge", "agreement", "scorer"]
HELD_OUT: Final = 0.01
"""Share of requests that go to the strongest tier where a judge labels answers and the policy does not say."""
VERIFIERS: Final[tuple[Verifier, ...]] = get_args(Verifier)
"""What can say how sure an answer is, in the order in which a policy asks if it names none: first what costs nothing,
then what it has a section for, then the deployment's scorer, which every answer has."""


class JudgeRules(Section):
    """A model that reads the question and the draft before the client sees it, and says how likely it is good enough.

    It is asked where what stands before it in `verify` cannot tell: by one token, whose log-probability is the answer,
    or by a backend of `kind: decisions`. It is not asked where its answer would come after the hold of a stream, or too
    late for the next tier to take over, nor where one question may cost more than `max_usd_per_request`, or all of a
    day more than `max_usd_per_day` (US dollars; UTC, all workers together). What runs on this machine costs nothing.
    """

    backend: Annotated[str, Field(min_length=1)]
    """Name of a backend in the deployment's config."""
    within: Annotated[Seconds, Field(gt=0)] = 0.25
    """Longest time that an answer waits for its verdict, in seconds. A stream waits no longer than its hold lasts."""
    max_usd_per_request: Annotated[float, BeforeValidator(read_number), Field(ge=0, allow_inf_nan=False)] = 0.001
    max_usd_per_day: Annotated[float, BeforeValidator(read_number), Field(ge=0, allow_inf_nan=False)] = 2.0


class StreamRules(Section):
    """How a stream is held back, kept alive, and repaired.

    The first `hold_tokens` tokens, or those of the first `hold_max` seconds, are held back and judged, whichever is
    less. `alive` may be sent before that, to show that the connection works: nothing, comments, or the role chunk too;
    the reply's headers are then sent before the answering tier is known. `on_break` applies to a committed stream that
    breaks off or loops: `continue` lets the next tier continue it where its backend can, else the stream ends with the
    error event; `error` ends it at once.
    """

    hold_tokens: Annotated[Whole, Field(ge=1, le=256)] = 24
    hold_max: Seconds = 0.25
    alive: Literal["none", "comments", "role"] = "none"
    on_break: Literal["continue", "error"] = "continue"


class Hedge(Section):
    """A second attempt in parallel with a slow one; the first adequate first token wins.

    `after` is a quantile of the tier's time to first token for prompts of that length (for JSON: of the duration of its
    whole answers), or a duration. The cost of hedging beyond the answers themselves stays under the share
    `max_extra_spend` of the surface's spending.
    """

    after: Annotated[HedgeQuantile | float, BeforeValidator(quantile_or_seconds)] = "p95"
    max_extra_spend: Share = 0.03


class Speculate(Section):
    """Attempts that start before it is known whether they are needed.

    `both`: requests for which the start tier and the next one are called at once. `during_check`: the start
    tier is called while the cross-encoder reads, if it is `free` of cost, `always`, or `never`. A hit cancels the call;
    backends that are paid mostly charge for its prompt all the same.
    """

    both: RouteRule | None = None
    during_check: Literal["free", "always", "never"] = "free"


class Escalate(Section):
    """The rules for escalation to the next tier."""

    when: When = When()
    verify: Annotated[tuple[Verifier, ...], Field(min_length=1)] = VERIFIERS
    """What says how sure an answer is: the first of these that can. Those that are not named are not asked."""
    judge: JudgeRules | None = None
    no_signal: Literal["escalate", "accept"] = "escalate"
    agreement: Agreement | None = None
    stream: StreamRules = StreamRules()
    hedge: Hedge | None = None
    speculate: Speculate = Speculate()
    max_attempts: Annotated[Whole, Field(ge=1, le=3)] = 3

    def eased(self, factor: float) -> Escalate:
        """Return the rules with all thresholds of confidence multiplied by `factor`; 0 accepts any confidence."""
        calibrated, other = (self.when.threshold(calibrated=flag) * factor for flag in (True, False))
        return self.model_copy(
            update={"when": self.when.model_copy(update={"confidence_below": calibrated, "uncalibrated_below": other})}
        )


class Output(Section):
    """Limits on a model's output on this surface, and an `instruction` that is added to the system's text."""

    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    stop: tuple[str, ...] = ()
    instruction: Annotated[str, Field(max_length=2000)] = ""


class Load(Section):
    """How this surface queues when backends are full.

    Interactive requests go ahead of batch ones, which keep at least one slot in twenty. No request waits longer than
    `max_wait` seconds, and at most `max_waiting` requests of the surface wait in one worker: the others are rejected at
    once. The config may additionally cap a backend's queue for all surfaces together (its `queue`).
    """

    priority: Priority = "interactive"
    max_wait: Seconds = 2.0
    max_waiting: Annotated[Whole, Field(ge=0)] = 256


class State(Section):
    """What the gateway keeps of this surface's requests so that clients may refer to it later.

    `responses`: how many seconds a response of the Responses API is kept, with what it was given, unless its request
    says `store: false`; 0 keeps none.
    """

    responses: Seconds = 86400.0


class Rules(Extended):
    """The contents of a policy file."""

    surface: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
    description: str = ""
    match: Match = Match()
    slo: Slo
    tiers: Annotated[tuple[str, ...], Field(min_length=1)]
    optional_tiers: tuple[str, ...] = ()
    """Those of `tiers` that a deployment need not have: where its config lacks one, the policy does without."""
    tier_fields: Mapping[str, SetFields] = {}
    """Request fields that are set at one tier, by its name."""
    route: Route
    escalate: Escalate = Escalate()
    cache: CachePolicy = CachePolicy()
    output: Output = Output()
    prompt_cache: PromptCache = "auto"
    """Whether providers' prompt caches are asked to keep what comes again: `long` for as long as each offers it."""
    load: Load = Load()
    state: State = State()
    holdout: Share | None = None
    """Share of requests that go to the strongest tier whatever their difficulty, to measure the others against; None:
    `HELD_OUT` where a judge labels answers, else none, as nothing would compare them."""

    @field_validator("surface")
    @classmethod
    def _surface_is_free(cls, surface: str) -> str:
        if surface in RESERVED_NAMES:
            raise ValueError(f"{surface!r} has a meaning of its own; choose another name")
        return surface

    @model_validator(mode="after")
    def _tiers_agree(self) -> Self:
        tiers, start = self.tiers, self.route.start
        findings = [
            Finding(("tiers", i), f"tier {name!r} is named twice", "T201", "leave it out", (Edit(("tiers", i)),))
            for i, name in enumerate(tiers)
            if name in tiers[:i]
        ]
        for name in start:
            if name in tiers:
                continue
            at: KeyPath = ("route", "start", name)
            near = next((other for other in get_close_matches(name, tiers, n=1) if other not in start), None)
            message = f"tier {name!r} is not among this policy's tiers {list(tiers)}{did_you_mean(name, tiers)}"
            mend = f"write {near}" if near else "add it to tiers, or leave it out"
            findings.append(Finding(at, message, "T202", mend, (Edit(at, rename=near),), of_key=True))
        for i, name in enumerate(self.optional_tiers):
            at = ("optional_tiers", i)
            if name not in tiers:
                message = f"tier {name!r} is not among this policy's tiers {list(tiers)}{did_you_mean(name, tiers)}"
                findings.append(Finding(at, message, "T202", "add it to tiers, or leave it out", (Edit(at),)))
            elif name in start and start[name].source == OTHERWISE:
                message = f"tier {name!r} says 'otherwise': without it some requests would have nowhere to go"
                findings.append(Finding(at, message, "T203", "leave it out", (Edit(at),)))
        for name in self.tier_fields:
            if name not in tiers:
                at = ("tier_fields", name)
                near = next(
                    (other for other in get_close_matches(name, tiers, n=1) if other not in self.tier_fields), None
                )
                message = f"tier {name!r} is not among this policy's tiers {list(tiers)}{did_you_mean(name, tiers)}"
                mend = f"write {near}" if near else "add it to tiers, or leave it out"
                findings.append(Finding(at, message, "T202", mend, (Edit(at, rename=near),), of_key=True))
        if not any(rule.source == OTHERWISE for rule in start.values()):
            message = "one tier must say 'otherwise', or some requests would have nowhere to go"
            at = ("route", "start", tiers[-1])
            mend = f"write `{tiers[-1]}: otherwise` last"
            findings.append(Finding(at[:2], message, "T203", mend, (Edit(at), Edit(at, OTHERWISE))))
        raise_findings(findings or self._unreachable())
        return self

    def tiers_with(self, deployed: Container[str]) -> tuple[str, ...]:
        """Return the policy's tiers without those that are optional and not in `deployed`."""
        return tuple(name for name in self.tiers if name in deployed or name not in self.optional_tiers)

    def _unreachable(self) -> list[Finding]:
        """Return a finding for each tier cheaper than every start: escalation only goes up, so it is never called."""
        starts = {self.tiers.index(name) for name in self.route.start}
        return [
            Finding(
                ("tiers", i),
                f"tier {name!r} can never be reached: no request starts there or below it",
                "T204",
                "leave it out, or write a rule for it under route.start",
                (Edit(("tiers", i)),),
            )
            for i, name in enumerate(self.tiers[: min(starts)])
        ]


class ClauseLines(dict[str, str]):
    """Map a dotted key of a policy to `FILE:LINE` of it, or of the nearest key around it; filled as it is read.

    Equal to any other: where a key is written does not make a policy another one.
    """

    def __init__(self, places: Mapping[KeyPath, Place] = MappingProxyType({})) -> None:
        super().__init__()
        self._places = places

    def __missing__(self, key: str) -> str:
        path: KeyPath = tuple([int(part) if part.isdigit() else part for part in key.split(".")])
        while path and path not in self._places:
            path = path[:-1]
        place = self._places.get(path)
        line = self[key] = "" if place is None else f"{place.file.name}:{place.line}"
        return line

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClauseLines)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None


@dataclass(frozen=True, slots=True)
class DeployedTier:
    """A tier of the deployment, as far as a policy needs to know it."""

    name: str
    models: tuple[str, ...] = ()
    """The models of its configured backends, each once, sorted."""
    capabilities: frozenset[str] = frozenset()
    unconfigured: str = ""
    """Why none of its backends can be used, such as "OPENAI_API_KEY is not set"; '' if one can."""
    judges: bool = False
    """Whether it judges drafts and answers no requests."""
    fields: tuple[str, ...] = ()
    """What its configured backends set in requests, as JSON, each once, sorted."""

    @property
    def why_not(self) -> str:
        """The reason as a clause that names the tier."""
        return f"{self.name} is not configured: {self.unconfigured}"


CrossEncoderKind = Literal["none", "unmeasured", "measured"]
"""A deployment's cross-encoder: none, one without a data sheet, or one whose data sheet states its threshold."""


class Fits(Protocol):
    """What a deployment has that policies may name; see `policies.loader.PolicySource`."""

    @property
    def tiers(self) -> Sequence[DeployedTier]: ...
    @property
    def teamless(self) -> Sequence[str]: ...
    @property
    def backends(self) -> Mapping[str, str]: ...
    @property
    def named(self) -> Mapping[str, Sequence[str]]: ...
    @property
    def cross_encoder(self) -> CrossEncoderKind: ...


def _all_tiers(rules: dict[str, Any]) -> tuple[str, ...]:
    return tuple(rules.get("tiers", ()))


def _version(rules: dict[str, Any]) -> str:
    return str(rules.get("version", ""))


class Policy(Rules):
    """The rules of one surface in one deployment. Fields that `Rules` lacks are set by the loader, not in a file.

    `version` is the hash of the file's content, so equal rules have equal versions.
    """

    version: Annotated[str, Field(pattern=r"^[0-9a-f]{7,64}$")]
    content: Mapping[str, Any] = Field(default={}, repr=False)
    """What the file says, as plain values: the policy can be made from it again."""
    ladder: tuple[str, ...] = Field(default_factory=_all_tiers)
    """Those of `tiers` that are configured in this deployment, cheapest first; all if no deployment is known."""
    unconfigured: Mapping[str, DeployedTier] = {}
    """The other tiers, by name."""
    models: tuple[str, ...] = ()
    """For display: the model of each tier of the ladder, or its models joined by "or"."""
    labelled: bool = False
    """Whether somebody labels its answers."""
    lines: InstanceOf[ClauseLines] = Field(default_factory=ClauseLines, repr=False)
    """`FILE:LINE` of each key, by its dotted path; '' where the policy comes from no file."""
    answers_version: str = Field(default_factory=_version)
    """The hash of what determines an answer: the ladder, its models, what is set in requests to them, and the rules
    for output and cache.

    Stored answers are bound to it, so those of another model are never served, while editing a threshold, objective or
    load limit keeps them. Without a deployment it is the `version`.
    """

    @cached_property
    def asked(self) -> frozenset[str]:
        """The names of the values that its rules for the start and for speculation read."""
        both = self.escalate.speculate.both
        return frozenset().union(*(rule.names for rule in self.route.start.values()), both.names if both else ())

    @cached_property
    def held_out(self) -> float:
        """Share of requests that go to the strongest tier to be compared with."""
        if self.holdout is not None:
            return self.holdout
        return HELD_OUT if self.labelled else 0.0

    @property
    def steer_from(self) -> float:
        """Share of a budget, once spent, from which requests go to cheaper tiers; infinite if no part steers."""
        return math.inf

    def steering(self, spent: Spent) -> Steering | None:
        """Return how a request is steered of whose budget so much is spent; None where it is not."""
        return None

    @cached_property
    def sets_fields(self) -> bool:
        """Whether the policy changes fields of calls, beside the limits of `output`."""
        return bool(self.output.instruction or self.tier_fields)

    @cached_property
    def label(self) -> str:
        """`surface@version`, short enough for a header."""
        return f"{self.surface}@{self.version[:7]}"
