"""Cut answers to their first tokens: what a streaming cascade has seen when it decides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from offline.datasets import DataError, Example, LabelledAnswer

PREFIXES = (8, 16, 24, 48)
"""Numbers of tokens that are evaluated."""


def after(examples: Sequence[Example], tokens: int) -> list[Example]:
    """Return the same prompts, each small answer cut to `tokens` tokens; a shorter one stays whole.

    Raises DataError when an answer has no log-probabilities of its tokens.
    """
    without = sum(example.answers[0].logprobs is None for example in examples)
    if without:
        raise DataError(
            f"{without} of {len(examples)} rows have no logprobs for the small model, which --prefix needs; "
            "omit it, or collect them with `tierline collect`"
        )
    return [replace(one, answers=(_cut(one.answers[0], tokens), *one.answers[1:])) for one in examples]


def _cut(answer: LabelledAnswer, tokens: int) -> LabelledAnswer:
    if answer.logprobs is None or len(answer.logprobs) <= tokens:
        return answer
    seen = answer.logprobs[:tokens]
    alternatives = None if answer.top_logprobs is None else answer.top_logprobs[:tokens]
    mean = math.fsum(seen) / tokens
    # A prefix does not show how the answer ends, its length or its full text.
    return replace(
        answer,
        confidence=mean,
        logprobs=seen,
        top_logprobs=alternatives,
        finish_reason=None,
        tok_out=None,
        text=None,
    )
