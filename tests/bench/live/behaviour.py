"""How a scripted model server behaves: what it is told, and what that means for one prompt.

All that chance decides is drawn from the seed and the prompt's number, so that the same prompt finds the same server
whichever way it comes, and one strategy can be held against another.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Literal

_NORMAL = NormalDist()
_SHARED_DIFFICULTY = 0.5
"""How much of what makes a prompt hard is hard for every model alike (a share of the variance)."""

Outage = Literal["none", "refuse", "hang", "error"]


@dataclass(frozen=True, slots=True)
class Spread:
    """A log-normal distribution by its p50 and p95; a share `slow` of draws comes around `slow_p50` instead."""

    p50: float
    p95: float
    slow: float = 0.0
    slow_p50: float = 0.0

    def draw(self, chance: random.Random) -> float:
        """One draw; two numbers are taken from `chance`, whatever comes of it."""
        slow, deviate = chance.random() < self.slow, chance.gauss(0, 1)
        return (self.slow_p50 if slow else self.p50) * math.exp(self._sigma * deviate)

    @property
    def _sigma(self) -> float:
        return math.log(self.p95 / self.p50) / _NORMAL.inv_cdf(0.95)


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One server. Times in ms; shares are of prompts."""

    seed: int = 1
    ttft: Spread = Spread(50, 80)
    ttft_per_token: float = 0.0
    """Added for every token of the prompt."""
    pace: float = 5.0
    """Between tokens."""
    length: Spread = Spread(40, 60)
    """Tokens of an answer."""
    right: float = 1.0
    auroc: float = 0.75
    """How well the mean log-probability of a whole answer tells the right ones from the wrong ones."""
    token_probability: float = 0.85
    """The mean token probability of an answer that is as likely right as any; the surer ones come nearer to 1."""
    logprobs: bool = True
    capacity: int = 0
    """Calls served at once; the others wait here. 0 is no end of places."""
    line: int = 0
    """Calls that may wait; one more is refused with 503. 0 is no end of room."""
    retry_after_s: float = 1.0
    fails: float = 0.0
    """Prompts answered with 500."""
    hangs: float = 0.0
    """Prompts never answered."""
    stalls: float = 0.0
    """Prompts whose answer stops half way, the connection open."""
    outage: Outage = "none"
    """`refuse` closes the port, `hang` takes calls and never answers, `error` answers 500 at once."""
    mark: int = 24
    """The token whose sending is noted."""

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Behaviour:
        """The inverse of `told()`."""
        spreads = {name: Spread(**value[name]) for name in ("ttft", "length")}
        return cls(**{**value, **spreads})

    def told(self) -> dict[str, Any]:
        """As JSON holds it."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class Script:
    """What becomes of one prompt. `fate` is `answers` unless a share has hit it."""

    ttft_s: float
    tokens: int
    right: bool
    logprob: float
    """Around which the tokens' log-probabilities spread."""
    fate: Literal["answers", "fails", "hangs", "stalls"]


def script(behaviour: Behaviour, prompt: int, tokens_in: int) -> Script:
    """The script of a prompt of so many tokens."""
    chance = random.Random(behaviour.seed * 1_000_003 + prompt)
    ttft = behaviour.ttft.draw(chance) + behaviour.ttft_per_token * tokens_in
    tokens = max(1, round(behaviour.length.draw(chance)))
    right = _is_right(behaviour, prompt, chance.gauss(0, 1))
    logprob = _logprob(behaviour, right, chance.gauss(0, 1))
    at = chance.random()
    fate: Literal["answers", "fails", "hangs", "stalls"] = "answers"
    if at < behaviour.fails:
        fate = "fails"
    elif at < behaviour.fails + behaviour.hangs:
        fate = "hangs"
    elif at < behaviour.fails + behaviour.hangs + behaviour.stalls:
        fate = "stalls"
    return Script(ttft / 1000, tokens, right, logprob, fate)


def _is_right(behaviour: Behaviour, prompt: int, own: float) -> bool:
    if behaviour.right >= 1:
        return True
    shared = random.Random(prompt * 2 + 1).gauss(0, 1)
    hardness = math.sqrt(_SHARED_DIFFICULTY) * shared + math.sqrt(1 - _SHARED_DIFFICULTY) * own
    return hardness < _quantile(behaviour.right)


def _logprob(behaviour: Behaviour, right: bool, noise: float) -> float:
    """Two normal distributions so far apart have the AUROC wanted (binormal model); a logit makes them scores."""
    apart = math.sqrt(2) * _quantile(behaviour.auroc)
    score = (apart / 2 if right else -apart / 2) + noise
    middle = math.log(behaviour.token_probability / (1 - behaviour.token_probability))
    return -math.log1p(math.exp(-(middle + score / 2)))


@lru_cache
def _quantile(share: float) -> float:
    return _NORMAL.inv_cdf(share)
