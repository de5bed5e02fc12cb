"""What agents may ask. Nothing here changes anything: there is no tool that applies, purges or sends.

Each tool returns plain values (what JSON holds), of bounded size. Agents read a tool's docstring as its description.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar

import orjson
from mcp.server.mcpserver import Context
from pydantic import Field

from cache.store.base import Store
from gateway.parts.console.bar import Bar
from gateway.parts.console.filters import FLAGS, SPANS, query_filter
from gateway.parts.console.page import PageError, PolicyPlaces
from gateway.parts.console.policy_desk import PolicyDesk
from gateway.parts.console.records import Records
from gateway.parts.console.render import page_json
from gateway.parts.console.standing import StandingReader
from gateway.parts.console.surface_counts import SPANS as NOW_SPANS
from gateway.parts.console.views.now import NowView
from gateway.parts.console.views.request import RequestView
from gateway.parts.console.views.requests import request_page
from gateway.parts.console.views.surface import SurfaceView, SurfaceWindow

MOST: Final = 50
"""Most requests of one reply."""
_TELLS_S: Final = 1.0
"""How often a tool that takes long says that it is at work."""
_OF_SURFACE: Final = (
    "surface", "policy", "requests", "per_second", "in_flight", "goodput", "burn", "ttft_p95", "ttft_limit", "paths",
    "per_1000", "cost_unknown", "saving", "quality", "quality_interval", "ladder", "unavailable",
)  # fmt: skip
_UNDECIDED: Final = "Nothing was decided: the cache had the answer, or the request was refused before."
_OF_LIMITS: Final = (
    "surface", "requests", "goodput", "burn", "versions", "limits", "looked_at", "times", "parts", "most", "groups",
    "marks",
)  # fmt: skip
T = TypeVar("T")

Since = Annotated[str, Field(description=f"How far back: {', '.join(SPANS)}, or all.")]
RequestId = Annotated[str, Field(description="The request's id, as `x-request-id` of its reply says it.")]
Surface = Annotated[str, Field(description="The name of a surface, such as chat.")]
Text = Annotated[str, Field(description="An equal value; with a leading ! every other one.")]


class AgentTools:
    """Answer from one archive, one store, and the policies of a deployment."""

    def __init__(self, archive: Records, store: Store, places: PolicyPlaces, console_url: str) -> None:
        self._archive = archive
        self._requests = RequestView(archive, store, places.source)
        self._desk = PolicyDesk(archive, store, places)
        self._now = NowView(archive)
        self._surface = SurfaceView(archive, StandingReader(store, places.deployment))
        self._console_url = console_url

    async def surfaces(
        self, since: Annotated[str, Field(description=f"How far back: {', '.join(NOW_SPANS)}.")] = "1h"
    ) -> dict[str, Any]:
        """How every surface does: goodput against its objective, TTFT, paths, cost, saving, tiers that are out, and
        what needs somebody. Begin here when nobody named a request."""
        if since not in NOW_SPANS:
            raise PageError(f"since={since} is not one of {', '.join(NOW_SPANS)}")
        data = await self._now.data(since)
        return _plain(
            {
                "since": since,
                "surfaces": [{name: surface[name] for name in _OF_SURFACE} for surface in data["surfaces"]],
                "needs": data["needs"],
            }
        )

    async def show_surface(
        self,
        surface: Surface,
        since: Annotated[str, Field(description=f"How far back: {', '.join(NOW_SPANS)}.")] = "1h",
        limit: Annotated[str, Field(description="Such as ttft_p95; '' for the one that is missed most.")] = "",
    ) -> dict[str, Any]:
        """Which limits of a surface are missed, by which tier, backend, prompt length, policy version and so on, and
        where the time of those requests went: the gateway, drafts, the queue, prefill, the verdict or decode."""
        data = await self._surface.data(surface, SurfaceWindow.since(since), limit or None)
        return _plain({name: data[name] for name in _OF_LIMITS})

    async def find_requests(
        self,
        surface: Text = "",
        path: Text = "",
        tier: Text = "",
        backend: Text = "",
        model: Text = "",
        policy: Annotated[str, Field(description="A version of a policy, as surface@version.")] = "",
        tenant: Text = "",
        error: Text = "",
        flags: Annotated[
            Sequence[str],
            Field(description="All of: " + "; ".join(f"{flag} ({words})" for flag, words in FLAGS.items()) + "."),
        ] = (),
        slower_than: Annotated[
            str, Field(description="Least time to the first token (in all, without a stream), such as 400ms or 2s.")
        ] = "",
        request_id: Annotated[str, Field(description="The beginning of a request id or of a trace id.")] = "",
        since: Since = "24h",
        limit: Annotated[int, Field(ge=1, le=MOST)] = 20,
        before: Annotated[str, Field(description="`more` of an earlier reply, for what comes after it.")] = "",
    ) -> dict[str, Any]:
        """Find recorded requests, the newest first: which surface, path, tier and policy version each had, its
        latencies, tokens and cost; never what was asked or answered. `more` continues the list where it is not ''."""
        texts = {
            "surface": surface, "path": path, "tier": tier, "backend": backend, "model": model, "policy": policy,
            "tenant": tenant, "error": error, "slower": slower_than, "q": request_id, "since": since,
        }  # fmt: skip
        wanted = query_filter([*texts.items(), *(("is", flag) for flag in flags)])
        rows, more = await request_page(self._archive, wanted, before, limit)
        page = f"{self._console_url}/requests?{wanted.query}" if self._console_url else ""
        return _plain({"requests": rows, "more": more, "page": page})

    async def show_request(
        self,
        request_id: RequestId,
        attributes: Annotated[bool, Field(description="Also give every attribute of each hop.")] = False,
    ) -> dict[str, Any]:
        """One request, hop by hop: when each began, how long it took, why it ended as it did, which key and line of the
        policy decided it, and which hops took unusually long; what it cost, and the tiers that were not called."""
        data = await self._requests.data(request_id)
        timeline, lines = data["timeline"], data["lines"]
        shown = {
            "ledger": data["ledger"],
            "hops": [_hop(bar, lines, data["slow"], attributes=attributes) for bar in timeline.bars],
            "not_called": timeline.ghosts,
            "deadline_ms": timeline.deadline_ms,
            "ttft_target_ms": data["target"],
            "saved": data["saved"],
            "feedback": data["feedback"],
            "page": f"{self._console_url}/requests/{request_id}" if self._console_url else "",
        }
        return _plain(shown)

    async def explain_decision(self, request_id: RequestId) -> dict[str, Any]:
        """Why a request started at its tier, step by step, decided again from what was recorded."""
        data = await self._requests.data(request_id)
        return _plain({"steps": data["steps"], "note": "" if data["decided"] else _UNDECIDED})

    async def policies(self) -> dict[str, Any]:
        """Which policy version each surface has in force, which candidates are being tried, and the latest changes."""
        return _plain(await self._desk.listed())

    async def show_policy(
        self, surface: Surface, version: Annotated[str, Field(description="Of its history; '' for now.")] = ""
    ) -> dict[str, Any]:
        """A surface's policy as text, and its history. Edit the text and give it to `plan_change`."""
        policy = await self._desk.policy(surface, version)
        return _plain({name: value for name, value in policy.items() if name != "lines"})

    async def plan_change(
        self,
        context: Context[Any, Any],
        surface: Surface,
        text: Annotated[str, Field(description="The whole text of the changed policy, as YAML.")],
        replay: Annotated[bool, Field(description="Also replay the last day's requests: some seconds.")] = True,
    ) -> dict[str, Any]:
        """What a changed policy would do, without applying it: its mistakes by line with what to write instead, what
        differs by meaning from the one in force, and what the last day's requests would have got: paths, TTFT, cost and
        quality, with intervals. A person applies it, by the console or `tierline policy apply`."""
        in_force = await self._desk.text_in_force(surface)
        examined = await self._desk.examined(surface, text, in_force)
        report = {name: examined[name] for name in ("valid", "findings", "changes")}
        if not replay or not examined["valid"]:
            return _plain({**report, "plan": None})
        plan = await _telling(self._desk.plan(text), context, "replaying the last day")
        return _plain({**report, "plan": {name: value for name, value in plan.items() if name != "text"}})


def _hop(bar: Bar, lines: Mapping[str, int], slow: Mapping[int, float], *, attributes: bool) -> dict[str, Any]:
    """Return what is said of a hop; empty values are left out."""
    hop = {
        "number": bar.number,
        "name": bar.label,
        "start_ms": bar.start_ms,
        "duration_ms": bar.duration_ms,
        "usual_p95_ms": slow.get(bar.number),
        "error": bar.error,
        "served": bar.served or None,
        "reasons": bar.reasons,
        "policy": [{"key": key.key, "line": lines.get(key.key), "what": key.what, "ms": key.ms} for key in bar.keys],
        "budget_left_ms": bar.budget_ms,
        "attributes": bar.attributes if attributes else None,
    }
    return {name: value for name, value in hop.items() if value not in (None, "", (), [])}


async def _telling(work: Awaitable[T], context: Context[Any, Any], what: str) -> T:
    """Return what `work` returns; until then, say every second that it goes on."""
    task, began = asyncio.ensure_future(work), time.monotonic()
    try:
        while not (await asyncio.wait([task], timeout=_TELLS_S))[0]:
            await context.report_progress(time.monotonic() - began, None, what)
        return task.result()
    finally:
        task.cancel()


def _plain(data: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = orjson.loads(page_json(data))
    return plain
