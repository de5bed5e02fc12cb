"""Define the learn section of a policy: how much of its traffic is answered twice and judged, and for how much money.

The section rules no answer, so like `rollout` it is no part of the policy's version: switching learning on changes
neither what is stored nor whose figures are whose.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from policies.quantities import read_number
from policies.validation import Section, Share, Whole


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
