"""Changes: what is being tried, with the forms that take it on or back; and the audit trail, whole or not.

The trail says who changed which key, team, budget, policy or config, when and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response

from cache.store.base import Store, StoreUnavailable
from gateway.parts.access.pages.trail import TrailView
from gateway.parts.rollout.registry.registry import PolicyRegistry, RegistryError
from gateway.parts.rollout.registry.view import in_force_shown
from gateway.parts.rollout.trial_view import TrialView

if TYPE_CHECKING:
    from gateway.seams import ConsoleShell

_TEMPLATE: Final = "changes.html"
_DONE: Final[Mapping[str, str]] = {
    "promote": "taken one step on", "full": "put in force for everybody", "pause": "paused", "resume": "resumed",
    "rollback": "rolled back",
}  # fmt: skip
"""What can be done with a candidate, and how it is told when it is done."""


class CandidateNotChanged(Exception):
    """A change of a candidate that was refused; the message is for whoever asked for it."""


def add_changes_page(shell: ConsoleShell) -> None:
    """Add the page, which says with `?verify=1` whether the trail is whole, and the forms of candidates on it."""
    trials, trail, desk = TrialView(shell), TrailView(shell.store), CandidateDesk(shell.store)

    async def shown(request: Request, **more: Any) -> Mapping[str, Any]:
        person, query = request.state.person, request.query_params
        trail_shown = person.may_some("audit.see")
        data: dict[str, Any] = {"trying": [], "problem": "", **trail.asked(query)}
        try:
            data |= await trials.data()
            if trail_shown:
                data |= await trail.page(person, query)
        except StoreUnavailable as down:
            data["problem"] = str(down)
        surfaces = [trial["surface"] for trial in data["trying"]]
        may_change = [surface for surface in surfaces if person.may("policies.change", surface)]
        return {"done": None, "refused": "", "may_change": may_change, **data, "trail_shown": trail_shown, **more}

    async def show(request: Request) -> Mapping[str, Any]:
        return await shown(request)

    async def change(request: Request) -> Response:
        """Take a candidate on, stop it or take it back, and show the page with what came of it."""
        form, surface, person = await shell.form(request), request.path_params["surface"], request.state.person
        if not person.may("policies.change", surface):
            data = await shown(request, refused=f"You may look, and may not change policies of {surface}.")
            return shell.reply(request, _TEMPLATE, data, status=403)
        try:
            done = await desk.change(
                surface, form.get("do", ""), author=person.author(form.get("author", "").strip()),
                message=form.get("message", ""), revision=form.get("revision", ""),
            )  # fmt: skip
        except CandidateNotChanged as error:
            return shell.reply(request, _TEMPLATE, await shown(request, refused=str(error)), status=422)
        return shell.reply(request, _TEMPLATE, await shown(request, done=done))

    shell.action("/changes/{surface}", change, "policies.change")
    shell.page("/changes", _TEMPLATE, show, "look", name="Changes", key="h")


class CandidateDesk:
    """Change the candidates of surfaces for the console: one step on, stopped, or taken back."""

    def __init__(self, store: Store) -> None:
        self._registry = PolicyRegistry(store, "console")

    async def change(self, surface: str, do: str, *, author: str, message: str, revision: str) -> dict[str, Any]:
        """Take a candidate one step on, stop it or take it back, if `revision` is the surface's.

        `do` is a key of _DONE. Raises CandidateNotChanged.
        """
        if do not in _DONE or not revision.isdecimal() or len(revision) > 15:
            raise CandidateNotChanged("Reload this page: it is of another version.")
        if not message.strip():
            raise CandidateNotChanged("Say why: the reason stands in the history.")
        method = {"promote": self._registry.step, "full": self._registry.promote}.get(do)
        method = method or {name: getattr(self._registry, name) for name in ("pause", "resume", "rollback")}[do]
        try:
            after = await method(surface, int(revision), by=author.strip() or "console", message=message.strip())
        except RegistryError as error:
            raise CandidateNotChanged(str(error)) from None
        except StoreUnavailable as down:
            raise CandidateNotChanged(f"The store does not answer ({down}); nothing was changed.") from None
        return {"surface": surface, "did": _DONE[do], **in_force_shown(after)}
