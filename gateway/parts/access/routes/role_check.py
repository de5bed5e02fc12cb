"""Let in to a route of the admin port whoever has a role for the action that it is."""

from __future__ import annotations

from typing import Any

from fastapi import Depends
from starlette.requests import Request

from gateway.parts.access.keys.roles import ACTIONS, Person


def needs_role(action: str) -> Any:
    """Return the dependency of a route of the admin port: the person who asks, if they may do the action.

    The subject is the part of the path that the action's `within` names. Where the path has none, the route says the
    subject to `permit`; here it is refused to those who may do it with none. It raises Unauthorized and Forbidden.
    """
    within = ACTIONS[action].within

    async def check(request: Request) -> Person:
        person: Person = await request.app.state.admit(request)
        subject = request.path_params.get(within, "")
        if subject or not person.may_some(action):
            person.permit(action, subject)
        return person

    check.__dict__["action"] = action
    return Depends(check)
