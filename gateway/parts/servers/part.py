"""Provide the seams `servers` (`gateway.backends.server_forms`) and `tasks` (`gateway.seams`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gateway.cascade.fields import with_set_fields
from gateway.parts.servers import prompt_cache, told_lengths
from gateway.parts.servers.chat_forms import ServerChat
from gateway.parts.servers.chat_reasoning import last_maker
from gateway.parts.servers.prompt_cache import KeepWarm
from gateway.parts.servers.quirks import AdaptedBackend
from gateway.parts.servers.quota import HeaderQuota
from gateway.parts.servers.refusals import HeardRefusals, RefusedRequests
from gateway.parts.servers.refused_fields import RefusedFields
from gateway.parts.servers.tool_probe import ToolProbe

if TYPE_CHECKING:
    from gateway.steps import Core


new_field_memory = RefusedFields
new_quota = HeaderQuota
lengths_in = told_lengths.lengths_in
new_refusals = HeardRefusals
new_refused_kinds = RefusedRequests
adapted = AdaptedBackend
chat_forms = ServerChat
always_thinks = prompt_cache.claude_always_thinks
prompt_cache_facts = prompt_cache.prompt_cache_facts


def maker_finder() -> Callable[[Sequence[Any]], str | None]:
    """Return what finds the name of the maker of a conversation's latest sealed reasoning."""
    return last_maker


def build_tasks(core: Core) -> Mapping[str, KeepWarm | ToolProbe]:
    """Return what keeps a worker's backends warm, and what asks them whether they render tools."""
    return {
        "keep-warm": KeepWarm(core.endpoints.values(), core.metrics.warmed, with_fields=with_set_fields),
        "tool-probe": ToolProbe(core.endpoints.values()),
    }
