"""Answers as far as a streaming cascade sees them when it decides: their first tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from routing.offline.dataset import DataError, Example, LabelledAnswer

PREFIXES = (8, 16, 24, 48)
"""The numbers of tokens that are looked at."""


def after(examples: Sequence[Example], tokens: int) -> list[Example]:
    """The same prompts, each small answer cut off after so many tokens; a shorter one is there whole.

    Raises DataError when an answer has no log-probabilities of its tokens.
    """
    without = sum(example.answers[0].logprobs is None for example in examples)
    if without:
        raise DataError(
            f"{without} of {len(examples)} rows have no logprobs for the small model, which --prefix needs; "
            "leave it away, or collect them with `tierline collect`"
        )
    return [replace(one, answers=(_cut(one.answers[0], tokens), *one.answers[1:])) for one in examples]


def _cut(answer: LabelledAnswer, tokens: int) -> LabelledAnswer:
    if answer.logprobs is None or len(answer.logprobs) <= tokens:
        return answer
    seen = answer.logprobs[:tokens]
    alternatives = None if answer.top_logprobs is None else answer.top_logprobs[:tokens]
    mean = math.fsum(seen) / tokens
    # How it ended, how long it got and all it said are not known yet.
    return replace(
        answer,
        confidence=mean,
        logprobs=seen,
        top_logprobs=alternatives,
        finish_reason=None,
        tok_out=None,
        text=None,
    )
