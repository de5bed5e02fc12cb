"""Learn what requests use at one tier, and estimate from it what the next one will use: no I/O, no clock.

    known answers | expected              | reserved
    --------------+-----------------------+---------------------------------------------------------
    none          | 400 completion tokens | what the request allows, at most 2,000 completion tokens
    1 to 19       | the mean              | as above: the first answers to end are the shortest
    20 and more   | the mean              | the 90th percentile: the mean and 1.28 standard deviations

What is reserved holds against what most answers cost, not against the longest that is possible: 2,000 tokens are more
than nine of ten answers of chats have. A quarter of the output limit, or a tenth of the budget, would let too many
requests run beside each other before the first has ended: `python -m tests.bench.overspend --grid` has the figures.
A percentile below the mean, as many short answers and few long ones have it, would not cover their sum.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from gateway.cascade.call import ONE_HOUR
from gateway.chat.usage import Usage

PRIOR: Final[Mapping[str, Any]] = json.loads(Path(__file__).with_name("expected_costs.json").read_text("utf-8"))
"""What is assumed before requests have ended."""
_TOKENS_OUT: Final[float] = PRIOR["completion_tokens"]
_RESERVED_OUT: Final[float] = PRIOR["reserved_tokens"]
_NEWEST: Final[float] = PRIOR["newest"]
"""Weight of the newest request once many have ended; before that the n-th counts as 1/n."""
_SPREAD: Final = 1.28
"""Standard deviations from the mean of a normal distribution to its 90th percentile."""


class AskedOfTier(NamedTuple):
    """What one request asks of one tier."""

    tokens_in: int
    """Tokens of its prompt, estimated."""
    sees_prompt: bool
    """Whether the body shows all of the prompt; else `tokens_in` is the most that it can have."""
    most_out: int
    """Most completion tokens of each choice."""
    choices: int
    service_tier: str
    kept_for: str = ""
    """How long its prompt is asked to be kept in the provider's cache: `5m`, `1h`, or '' if nobody asks."""


class UsedByRequest(NamedTuple):
    """What one request used at one tier, over all of its calls there."""

    calls: int
    tokens_in: int
    """As the provider counted them; so of the further counts."""
    tokens_out: int
    """Completion tokens for each choice that was asked for."""
    tokens_cached: int
    tokens_cache_write: int


@dataclass(slots=True)
class _Moments:
    """Mean and variance, exponentially weighted, and the 10th and 90th percentile."""

    mean: float = 0.0
    variance: float = 0.0
    low: float = 0.0
    high: float = 0.0
    seen: int = 0

    def learn(self, value: float) -> None:
        self.seen += 1
        weight = max(1 / self.seen, _NEWEST)
        step = value - self.mean
        self.mean += weight * step
        self.variance = (1 - weight) * (self.variance + weight * step * step)
        spread = _SPREAD * math.sqrt(self.variance)
        self.low, self.high = max(0.0, self.mean - spread), self.mean + spread


@dataclass(slots=True)
class LearntUsage:
    """Learnt usage of a surface's requests at one tier; `prior_calls` are the calls assumed before any is known."""

    prior_calls: InitVar[float]
    calls: float = field(init=False)
    """Calls that a request is expected to make here: retries, hedges, samples and continued answers included."""
    tokens_out: float = field(init=False)
    """Completion tokens that a request is expected to get here, for each choice."""
    prompt_ratio: float = field(init=False)
    """Prompt tokens that the provider counts over all calls, for each that was estimated."""
    _calls: _Moments = field(default_factory=_Moments)
    _out: _Moments = field(default_factory=_Moments)
    _most_out: int = 0
    _prompt: _Moments = field(default_factory=_Moments)
    _cached: _Moments = field(default_factory=_Moments)
    _written: _Moments = field(default_factory=_Moments)

    def __post_init__(self, prior_calls: float) -> None:
        self.calls = self.prompt_ratio = prior_calls
        self.tokens_out = _TOKENS_OUT * prior_calls

    @property
    def seen(self) -> int:
        """Return the number of answers that the averages are of."""
        return self._out.seen

    def expected(self, asked: AskedOfTier) -> Usage:
        """Return the mean number of tokens that a request is expected to use at this tier."""
        out = asked.choices * min(self.tokens_out, asked.most_out)
        prompt = asked.tokens_in * (self.prompt_ratio if asked.sees_prompt else self.calls)
        written = self._written.mean if self._written.seen else _unknown_write(asked)
        return _usage(asked, prompt, out, self._cached.mean, written)

    def reserved(self, asked: AskedOfTier) -> Usage:
        """Return the tokens to reserve for a request: the amount that nine of ten requests do not exceed."""
        prompt = asked.tokens_in * (self._prompt.high if self._prompt.seen and asked.sees_prompt else 1.0)
        known = self._out.seen >= PRIOR["known_answers"]
        out = asked.choices * min(self._out.high if known else _RESERVED_OUT, asked.most_out)
        written = self._written.high if self._written.seen else _unknown_write(asked)
        return _usage(asked, prompt, out, self._cached.low, written)

    def worst(self, asked: AskedOfTier) -> Usage:
        """Return the most that one call may use: every token allowed, with all of its prompt written to the cache."""
        prompt = asked.tokens_in * max(1.0, self.prompt_ratio)
        return _usage(asked, prompt, asked.choices * asked.most_out, 0.0, _unknown_write(asked))

    def owed_out(self, most_out: int) -> float:
        """Return the completion tokens that a choice owes whose answer is never known.

        From 20 known answers on, what is reserved for it; before, at most (1 + 4/n) times the most that was seen.
        """
        known = self._out.seen
        if known >= PRIOR["known_answers"]:
            return min(self._out.high, most_out)
        unknown = min(float(most_out), _RESERVED_OUT)
        return min(unknown, self._most_out * (1 + 4 / known)) if self._most_out else unknown

    def learn(self, used: UsedByRequest, tokens_in: int, *, sees_prompt: bool) -> None:
        """Take in what a request used here, nothing where it was not asked.

        `tokens_in` was estimated; without `sees_prompt` most of the prompt was not in the body, and says nothing.
        """
        self._calls.learn(used.calls)
        self._out.learn(used.tokens_out)
        self._most_out = max(self._most_out, used.tokens_out)
        self.calls, self.tokens_out = self._calls.mean, self._out.mean
        if not sees_prompt:
            return
        self._prompt.learn(used.tokens_in / max(1, tokens_in))
        self.prompt_ratio = self._prompt.mean
        if used.tokens_in:
            self._cached.learn(used.tokens_cached / used.tokens_in)
            self._written.learn(used.tokens_cache_write / used.tokens_in)


def _unknown_write(asked: AskedOfTier) -> float:
    """Return the share of a prompt that is written to the cache before that is known: all, if it is asked for."""
    return 1.0 if asked.kept_for else 0.0


def _usage(asked: AskedOfTier, prompt: float, out: float, cached: float, written: float) -> Usage:
    tokens_in = round(prompt)
    tokens_cached = min(round(prompt * cached), tokens_in)
    tokens_written = min(round(prompt * written), tokens_in - tokens_cached)
    return Usage(
        tokens_in,
        round(out),
        tokens_cached=tokens_cached,
        tokens_cache_write=tokens_written,
        tokens_hour_write=tokens_written if asked.kept_for == ONE_HOUR else None,
        service_tier=asked.service_tier,
    )
