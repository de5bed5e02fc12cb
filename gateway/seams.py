"""The seams: what the core asks of a part, and gives it. The only door, for our own parts too.

The list of parts (`gateway.parts.standard`) says which part provides what, by the name of a seam. Its module `part` is
imported when the seam is first asked for, and has the functions of the seam's protocol below. The core works without:
a part that this installation was made without is None here. A part that is there and broken is the error it raises.

What a part makes for a worker lives as long as the worker. It is made when the worker's steps are wired, before there
is an event loop: nothing may be awaited or started then. It starts by its `run`, as a task, once the store, the
policies and the keys have started. Requests may come before that, and after it ends. At the close `run` is cancelled
and `aclose` awaited, while the store and the backends are still open; it must return within a second or two.

    hit_bound   `HitBoundPart`. Its `build` makes the `cache.semantic.hit_bound.HitBound` of a worker: it sets the score
                from which semantic hits are served, and learns from those that were wrong. Its other functions say,
                with the store alone, what the workers' bounds have published. Not stable yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from gateway.parts.standard import provider

if TYPE_CHECKING:
    from rich.console import Console

    from cache.semantic.cross_encoder import CrossEncoder
    from cache.semantic.hit_bound import Complaint, HitBound, PublishedBound
    from cache.store.base import Store
    from gateway.tiers import Endpoint
    from routing.embedding.embedder import PublicEncoder


class HitBoundNeeds(NamedTuple):
    """What the core gives a hit bound. `endpoints` are the backends by their names.

    `kind` is that of the config's embedding. `judged` is called with the surface, the outcome and the US dollars of
    each comparison by a model.
    """

    store: Store
    embedder: PublicEncoder
    kind: str
    verifier: str
    """Version of the verifier, which makes scores."""
    cross_encoder: CrossEncoder | None
    cosine_weight: float
    endpoints: Mapping[str, Endpoint]
    judged: Callable[[str, str, float], None]


class HitBoundPart(Protocol):
    """The functions of the module that provides `hit_bound`. All that is async raises StoreUnavailable."""

    def build(self, needs: HitBoundNeeds) -> HitBound:
        """Return a worker's hit bound, which is not started."""

    async def read_published(self, store: Store) -> Sequence[PublishedBound]:
        """Return what is published, by surface."""

    async def shown_published(self, store: Store) -> list[dict[str, Any]]:
        """Return what is published as JSON values, by surface."""

    def draw_published(self, shown: Sequence[Mapping[str, Any]], console: Console) -> None:
        """Print what `shown_published` returned."""

    async def complain(self, store: Store, risk: PublishedBound, complaint: Complaint) -> None:
        """Report a wrong hit to every worker; one request's complaints count once."""

    async def withdraw(self, store: Store, risk: PublishedBound, complaint: Complaint) -> None:
        """Tell every worker that a complaint was about no wrong hit."""


def hit_bound_part() -> HitBoundPart | None:
    """Return what bounds wrong hits; None where this installation has no such part."""
    return cast("HitBoundPart | None", provider("hit_bound"))
