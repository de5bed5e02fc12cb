"""Define the sections `rollout` and `learn` of a policy, neither of which rules an answer.

`rollout`: how a change of it is introduced in steps, and when it is taken back. `learn`: how much of its traffic is
answered twice and judged, and for how much money.

The sticky unit (a conversation, with all others of its session; an API key; or a tenant) is hashed with the candidate's
version to a number of 64 bits; the units whose number is below the share of all numbers get the candidate. So a unit
stays with its policy, who is in at 1% is in at 5% too, and another candidate gets other units (`assign`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from gateway.config.schema import key_digest
from gateway.parts.lint.signed import Delay, Fall, Rise
from policies.errors import Edit, Finding, dotted
from policies.loader import Sticky
from policies.misfits import no_such
from policies.model import Fits, Policy, Rules
from policies.quantities import read_number
from policies.sections import PolicySections
from policies.validation import Seconds, Section, Share, Whole

if TYPE_CHECKING:
    from policies.loader import RollingPolicy

_MOVE_QUALITY: Final = (
    ("tiers",), ("tier_fields",), ("route",), ("escalate", "when"), ("escalate", "verify"), ("escalate", "judge"),
    ("escalate", "no_signal"), ("escalate", "agreement"),
    ("escalate", "stream", "hold_tokens"), ("escalate", "stream", "hold_max"), ("escalate", "max_attempts"),
    ("slo", "deadline"), ("slo", "total"), ("cache", "semantic"), ("output",),
)  # fmt: skip
"""Keys that decide which model's answer is served, or how much of it."""


class Guard(Section):
    """Limits on how much worse than the present policy the new one may be, as absolute differences; else roll back."""

    goodput: Fall | None = None
    quality: Fall | None = None
    ttft_p95: Delay | None = None
    """Additional seconds."""
    cost: Rise | None = None


class Floor(Section):
    """Values that must hold in every minute, independent of statistical certainty."""

    goodput: Share | None = None


class ShadowRules(Section):
    """What a candidate in shadow mode may cost: models are called for it, and nobody gets their answers."""

    max_usd_per_day: Annotated[float, BeforeValidator(read_number), Field(ge=0, allow_inf_nan=False)] = 2.0
    """Most that all workers together spend on the surface's shadows in a day (UTC), in US dollars."""


class Rollout(Section):
    """The shares of requests that get the new policy, one step after the other, before all do.

    `sure`: how certain a verdict must be, 0..1; the guards and the steps share what is left of 1. `undecided`: the
    action at the end of a step without a verdict.
    """

    steps: Annotated[tuple[Share, ...], Field(min_length=1)]
    step_min: Seconds = 1800.0
    """Shortest duration of a step in seconds, however clear its figures are."""
    step_max: Seconds = 86400.0
    """Longest duration of a step in seconds, after which `undecided` applies."""
    sticky: Sticky = "conversation"
    guard: Guard = Guard()
    sure: Annotated[Share, Field(gt=0, lt=1)] = 0.95
    undecided: Literal["pause", "promote", "rollback"] = "pause"
    floor: Floor = Floor()
    shadow: ShadowRules = ShadowRules()

    @field_validator("steps")
    @classmethod
    def _steps_rise(cls, steps: tuple[float, ...]) -> tuple[float, ...]:
        if any(not 0 < step < 1 for step in steps) or list(steps) != sorted(set(steps)):
            raise ValueError("each step is a larger share than the one before, above 0% and below 100%")
        return steps

    @model_validator(mode="after")
    def _step_ends(self) -> Self:
        if self.step_max <= self.step_min:
            raise ValueError("step_max must be longer than step_min")
        return self


class Learn(Section):
    """A sample of fresh answers is compared with another tier's answers, after the reply and at the operator's expense.

    An answer of the strongest tier is compared with one of the cheapest, any other with one of the strongest. The model
    of the backend `judge` reads both, twice, and says which is better and which are good enough.
    """

    share: Share = 0.01
    """Share of the fresh answers that are compared."""
    judge: Annotated[str, Field(min_length=1)]
    """Name of a backend in the deployment's config. Its model answers no request of this surface."""
    max_usd_per_day: Annotated[float, BeforeValidator(read_number), Field(ge=0, allow_inf_nan=False)] = 2.0
    """Most that all workers together spend on comparisons of this surface in a day (UTC), in US dollars."""
    max_tokens: Annotated[Whole, Field(ge=1)] = 1024
    """Longest answer of the other tier, where neither the request nor the policy sets a limit."""
    apply: Literal["propose", "canary"] = "propose"
    """What `tierline fit learn` does with a better classifier: write a policy to look at, or also start it as a canary.

    `canary` needs a `rollout` section and policies from the store.
    """
    keep_text: bool = False
    """Whether the label holds the prompt and both answers, as `tierline fit learn export` needs them."""


class RolloutSections(PolicySections):
    """The sections of policies that this part reads."""

    rollout: Rollout | None = None
    """How to introduce a change of this policy, where policies come from the store."""
    learn: Learn | None = None
    """Compare a share of its answers with another tier's, to learn from them."""

    unversioned: ClassVar[frozenset[str]] = frozenset({"rollout", "learn"})
    aside: ClassVar[frozenset[str]] = frozenset({"rollout"})

    @classmethod
    def faults(cls, rules: Rules) -> Iterator[Finding]:
        """Yield a canary that could not be tried step by step."""
        own = rules.of(cls)
        if own.learn is not None and own.learn.apply == "canary" and own.rollout is None:
            at = ("learn", "apply")
            message = "there is no `rollout` section, so a canary has no steps and no guard"
            yield Finding(at, message, "T602", "add one, or write propose", (Edit(at, "propose"),))

    @classmethod
    def doubts(cls, rules: Rules, source: str) -> Iterator[Finding]:
        """Yield a canary of what is learnt where no registry could start it."""
        learn = rules.of(cls).learn
        if learn is not None and learn.apply == "canary" and source == "files":
            at = ("learn", "apply")
            yield Finding(
                at,
                "policies come from files here, so `tierline fit learn` cannot start a canary",
                "T716",
                "write propose, or set `policies: {source: store}` in the config",
                (Edit(at, "propose"),),
            )

    @classmethod
    def misfits(cls, policy: Policy, fits: Fits) -> Iterator[Finding]:
        """Yield a judge of `learn` that does not exist, or whose model would judge its own answers."""
        learn = policy.of(cls).learn
        if learn is None:
            return
        judge, at = learn.judge, ("learn", "judge")
        if judge not in fits.backends:
            yield no_such("backend", judge, fits.backends, at, ("learn",))
            return
        models = {tier.name: tier.models for tier in fits.tiers}
        own = [tier for tier in policy.tiers if fits.backends[judge] in models.get(tier, ())]
        if own:
            message = (
                f"{judge} is {fits.backends[judge]}, which answers here as {own[0]!r}: models prefer their own "
                "answers, so it cannot judge them"
            )
            mend = "name a backend of another model, in a tier that this surface does not use"
            yield Finding(at, message, "T714", mend, (Edit(("learn",)),))

    @classmethod
    def unguarded_quality(cls, changed: Iterable[str], after: Rules) -> Finding | None:
        """Return the finding of a change whose canary would not notice that answers become worse; None without one.

        `changed` are the paths of what changes and is in force.
        """
        rollout = after.of(cls).rollout
        if rollout is None or rollout.guard.quality is not None:
            return None
        keys = [dotted(key) for key in _MOVE_QUALITY]
        moving = [path for path in changed if any(f"{path}.".startswith((f"{key}.", f"{key}[")) for key in keys)]
        if not moving:
            return None
        more = f" and {len(moving) - 1} more" if len(moving) > 1 else ""
        at = ("rollout", "guard", "quality")
        message = f"{moving[0]}{more} can make answers worse, and no guard of the canary looks at them"
        mend = "write `quality: -2%` under rollout.guard; ratings of people or `learn` give it what it needs"
        return Finding(at, message, "T603", mend, (Edit(at, "-2%"),))

    @classmethod
    def labels(cls, rules: Rules) -> bool:
        """Return whether a judge compares a share of the answers."""
        return rules.of(cls).learn is not None


SECTIONS: Final = RolloutSections


CONTROL: Final = "control"
CANDIDATE: Final = "candidate"
_NUMBERS: Final = 1 << 64


class Assignment(NamedTuple):
    """What one request got: `arm` is `control` or `candidate`, `unit` its sticky unit's hash, 16 hex digits."""

    arm: str
    unit: str


def assign(rolling: RollingPolicy, tenant: str, bearer: bytes, session: str) -> Assignment:
    """Return what a request of the candidate's surface gets. `bearer` is its API key, `session` its session's name."""
    if rolling.sticky == "conversation":
        unit = b"session:" + session.encode()
    elif rolling.sticky == "key" and bearer:
        unit = b"key:" + key_digest(bearer)
    else:
        unit = b"tenant:" + tenant.encode()
    number = int.from_bytes(blake2b(unit, digest_size=8, key=rolling.salt.encode()[:64]).digest())
    return Assignment(CANDIDATE if number < rolling.share * _NUMBERS else CONTROL, f"{number:016x}")
