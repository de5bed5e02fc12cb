"""The policies: edited with their mistakes at their lines, checked, tested, planned and applied; history and blame.

While somebody types, the page's editor asks `check` and `complete`; what they return is drawn by the templates of the
page itself, so that it is the same without JavaScript, after the button Check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from gateway.parts.console.completion import PolicyCompleter
from gateway.parts.console.page import Action, BadQuery, Page, Sources, allowed, form_of, person_in
from gateway.parts.console.policy_desk import NotApplied, PolicyDesk
from gateway.parts.console.render import json_of

HOWS: Final[Mapping[str, str]] = {
    "": "as the text says under rollout: a canary if it has one, else at once",
    "canary": "canary: served to the shares under rollout, step by step",
    "evaluate": "evaluate: only decide with it, beside the policy in force",
    "now": "at once, for everybody",
}
ROLLOUT: Final = """
rollout:                           # how the next change comes in: to these shares of conversations, one after the other
  steps: [1%, 5%, 25%]             # then to all
  step_min: 30m                    # each at least so long
  guard: {goodput: -1%, quality: -2%, ttft_p95: +50ms}    # worse by more than one of these: it is taken back by itself
  undecided: pause                 # after step_max (24h) without a verdict; or promote, rollback
"""
"""What `Insert a rollout` writes at the end of a text."""
_TEMPLATE: Final = "policy.html"
_SCRIPT: Final = "policy.js"
_MOST_POLICY: Final = 1 << 20
_PARTS: Final = ("findings", "changes", "thresholds")
"""Parts of the page that follow the text while it is edited: each has a template, and an element of that id."""


def pages(sources: Sources) -> Iterator[Page | Action]:
    """Yield the list, the page of one policy, the form on it, and what its editor asks."""
    desk, render = PolicyDesk(sources.archive, sources.store, sources.places), sources.render
    completer = PolicyCompleter(sources.places.source)

    async def show_list(request: Request) -> Mapping[str, Any]:
        return await desk.listed()

    async def show(request: Request) -> Mapping[str, Any]:
        surface, query = request.path_params["surface"], request.query_params
        shown = await desk.policy(surface, query.get("version", ""))
        in_force = shown["in_force"].get("version", shown["version"])
        against = query.get("against", "") or (in_force if in_force != shown["version"] else "")
        before = await desk.text_in_force(surface, against)
        examined = await desk.examined(surface, shown["text"], before)
        return _edited(request, shown, {}, **examined, against=against)

    async def change(request: Request) -> Response:
        """Check, test, plan or apply the text of a form, and show the page with what came of it."""
        form = await form_of(request, _MOST_POLICY)
        text, surface = form.get("text", ""), request.path_params["surface"]
        shown = await desk.policy(surface)
        found: dict[str, Any] = {}
        try:
            if form.get("do") == "apply" and not allowed(request, "policies.change", surface):
                found["refused"] = f"You may look, and may not change policies of {surface}."
            elif form.get("do") == "apply":
                found["done"] = await desk.apply(
                    surface, text, how=form.get("how", ""), author=person_in(request).author(form.get("author", "")),
                    message=form.get("message", ""), base=form.get("base", ""),
                    may_change=partial(allowed, request, "policies.change"),
                )  # fmt: skip
                shown, form = await desk.policy(surface), {}
            elif form.get("do") == "plan":
                found["plan"] = await desk.plan(text)
            elif form.get("do") == "rollout":
                form["text"] = text.replace("\r\n", "\n").rstrip("\n") + "\n" + ROLLOUT
            elif form.get("do") == "test":
                found["tests"] = await desk.tested(surface, text)
        except NotApplied as error:
            found["refused"], found["tried"] = str(error), form.get("do", "")
        found |= await desk.examined(surface, form.get("text", shown["text"]), shown["text"])
        status = 422 if found.get("refused") else 200
        data = _edited(request, shown, form, **found)
        return render.page(request, _TEMPLATE, data, status=status, script=_SCRIPT)

    async def check(request: Request) -> Response:
        """Return the findings of a text for the editor, and the parts of the page that follow it."""
        form, surface = await form_of(request, _MOST_POLICY), request.path_params["surface"]
        report = await desk.examined(surface, form.get("text", ""), await desk.text_in_force(surface))
        parts = {name: render.part(f"policy_{name}.html", {**report, "against": ""}) for name in _PARTS}
        return json_of({"findings": report["findings"], "parts": parts})

    async def complete(request: Request) -> Response:
        """Return what may be written at a line and column of a text."""
        form = await form_of(request, _MOST_POLICY)
        line, column = form.get("line", ""), form.get("column", "")
        if not (line.isdecimal() and column.isdecimal() and len(line) < 8 and len(column) < 8):
            raise BadQuery("line and column are numbers from 1")
        return json_of(completer.complete(form.get("text", ""), int(line), int(column)))

    yield Page("/policies", "policies.html", show_list, name="Policies", key="p")
    yield Page("/policies/{surface}", _TEMPLATE, show, script=_SCRIPT)
    yield Action("/policies/{surface}", change, "policies.check")
    yield Action("/policies/{surface}/check", check, "policies.check")
    yield Action("/policies/{surface}/complete", complete, "policies.check")


def _edited(request: Request, shown: Mapping[str, Any], form: Mapping[str, str], **more: Any) -> Mapping[str, Any]:
    """Return a policy's page with what a form holds: the text that is being edited, and what was found of it."""
    return {
        "done": None, "refused": "", "tried": "apply", "plan": None, "tests": None, "against": "",
        "hows": HOWS, "has_rollout": "\nrollout:" in form.get("text", shown["text"]), **shown,
        "edited": form.get("text", shown["text"]),
        "base": form.get("base", shown["in_force"].get("version", shown["version"])),
        "given_message": form.get("message", ""), "given_author": form.get("author", ""),
        "given_how": form.get("how", ""), "may_change": allowed(request, "policies.change", shown["surface"]), **more,
    }  # fmt: skip
