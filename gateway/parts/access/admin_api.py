"""Build the application of the admin port, and find who asks it.

Requests need the admin key, or the token of a person with a role. Other parts add their routes by the seam
`admin_routers`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import chain
from typing import TYPE_CHECKING

from gateway.caller import bearer_key
from gateway.errors import Unauthorized
from gateway.parts.access.authenticator import KeyAuthenticator, is_key
from gateway.parts.access.config import AccessSections
from gateway.parts.access.key_tries import KeyTries
from gateway.parts.access.keys.identities import is_token
from gateway.parts.access.keys.roles import ADMIN, Person
from gateway.parts.access.routes import audit, budgets, keys
from gateway.parts.routes.part import cold_api
from gateway.request.options import known_headers
from gateway.seams import admin_routers

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request

    from gateway.parts.access.config import Admin
    from gateway.parts.access.keys.identities import Identities
    from gateway.steps import Steps


def admin_api(steps: Steps) -> FastAPI:
    """Return the application of the admin port."""
    config = steps.deployment.of(AccessSections).admin
    assert config is not None and isinstance(steps.authenticator, KeyAuthenticator)  # noqa: S101  (both are this part's)
    of_parts = chain.from_iterable(admin_routers())
    routers = [audit.router, budgets.router, keys.router, keys.teams, *of_parts]
    admit = gatekeeper(config, steps.authenticator.identities)
    api = cold_api(steps, "Tierline: the admin API", routers, [], admit, keyed=True)
    api.state.typed = api.state.sheds = False
    return api


def gatekeeper(config: Admin, identities: Identities) -> Callable[[Request], Awaitable[Person]]:
    """Return what finds who asks the admin API: whoever has the admin key, or a person's token, as a bearer token.

    It raises Unauthorized; after many wrong keys of an address, RateLimited. Tenants' keys do not work.
    """
    tries = KeyTries()

    async def admitted(request: Request) -> Person:
        address = request.client.host if request.client is not None else ""
        key = bearer_key(known_headers(request.scope["headers"]))
        if config.key is not None and is_key(key, config.key):
            return ADMIN
        try:
            if identities and is_token(key):
                return await identities.person(key)
            wanted = "the admin key, or a token of a person with a role" if identities else "the admin key"
            raise Unauthorized(f"The admin API needs {wanted}. Send it as 'Authorization: Bearer KEY'.")
        except Unauthorized:
            if key:
                tries.refused(address)  # the right key is let in whatever else comes from its address
            raise

    return admitted
