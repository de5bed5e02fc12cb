"""Hold what a request's steps use in one worker. `gateway.assembly` builds it, starts it and closes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.seams import Core

if TYPE_CHECKING:
    from gateway.caching.coalescer import Coalescer
    from gateway.caching.lookups import ExactLookup, SemanticLookup
    from gateway.caching.store_room import StoreRoom
    from gateway.caching.write_behind import Observer, WriteBehind
    from gateway.caller import LoopbackGuard
    from gateway.cascade.runner import CascadeRunner
    from gateway.request.load_shedding import LoadShedder
    from gateway.seams import Admission


class Steps(Core):
    """Hold the core, what parts have made of it, and the objects by which `gateway.pipeline.answer` answers."""

    started_at: int
    """Unix seconds."""
    gate: LoadShedder
    guard: LoopbackGuard
    room: StoreRoom
    admissions: Sequence[Admission]
    """What else lets a chat in, in this order."""
    observers: Sequence[Observer]
    exact_cache: ExactLookup
    coalescer: Coalescer
    semantic_cache: SemanticLookup
    cascade: CascadeRunner
    write_behind: WriteBehind
