"""Serve the admin API: inspect and purge the cache. Off unless the config has `admin`; on a port of its own.

    GET    /admin/cache/stats          contents of each scope, and outcomes of lookups
    GET    /admin/cache/entries/ID     one entry, by the id in replies and traces
    DELETE /admin/cache/entries/ID     remove the entry and its copies
    POST   /admin/cache/purge          {"surface": S} | {"tag": T} | {"entry": ID}; the first two also with a
                                       "tenant" or a "team", a tag also with a "surface"

Once a purge is answered, no worker serves what it names to a request that arrives later; purging a surface takes a
second.

Requests need the admin key, sent as `Authorization: Bearer KEY`; tenants' keys do not work. The API is reachable
through the admin port only, whatever a request's headers say. Policies: see `gateway.http.routes.policies`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cache.scopes.tags import BadTags, parse
from cache.store.base import StoreUnavailable
from gateway.errors import CLIENT_GONE, InvalidRequest, NotFound, Overloaded, Unauthorized
from gateway.http.messages import read_body
from gateway.request.access import bearer_key
from gateway.request.body import parse_json
from gateway.request.context import ClientGone
from gateway.request.key_tries import KeyTries
from gateway.request.options import known_headers
from gateway.telemetry.cache_view import entry_shown, lookups_of, scope_shown

if TYPE_CHECKING:
    from cache.administration import Purged
    from gateway.config.schema import Admin
    from gateway.steps import Steps

_MAX_BODY: Final = 4096
_ENTRY_ID: Final = re.compile(r"[0-9a-f]{12,32}")
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_KEYS: Final = frozenset({"surface", "tag", "entry", "tenant", "team"})
_RETRY_AFTER: Final = ((b"retry-after", b"5"),)


def gatekeeper(admin: Admin) -> Callable[[Request], None]:
    """Return a check that a request has the admin key. It raises Unauthorized; after many wrong keys, RateLimited."""
    tries = KeyTries()
    wanted = hashlib.sha256(admin.key.get_secret_value().encode() if admin.key is not None else b"").digest()

    def admitted(request: Request) -> None:
        address = request.client.host if request.client is not None else ""
        tries.check(address)
        key = bearer_key(known_headers(request.scope["headers"]))
        if not key or not hmac.compare_digest(hashlib.sha256(key).digest(), wanted):
            if key:
                tries.refused(address)
            raise Unauthorized("The admin API needs the admin key. Send it as 'Authorization: Bearer KEY'.")

    return admitted


def cache_routes(steps: Steps, admitted: Callable[[Request], None]) -> list[Route]:
    """Return the routes for the cache; each first calls `admitted`, of `gatekeeper`."""
    administration = steps.cache.administration

    async def stats(request: Request) -> Response:
        admitted(request)
        scopes = await _answered(administration.stats())
        return _json(
            {
                "object": "cache.stats",
                "scopes": [scope_shown(one) for one in scopes],
                "lookups": lookups_of(steps.metrics.render().decode()),
            }
        )

    async def show(request: Request) -> Response:
        admitted(request)
        entry_id: str = request.path_params["entry_id"]
        entry = await _answered(administration.find(_id(entry_id)))
        if entry is None:
            raise _no_entry(entry_id)
        return _json({"object": "cache.entry", **entry_shown(entry)})

    async def remove(request: Request) -> Response:
        admitted(request)
        return _json(await _removed(steps, request.path_params["entry_id"]))

    async def purge(request: Request) -> Response:
        admitted(request)
        try:
            raw = await read_body(request.receive, known_headers(request.scope["headers"]), _MAX_BODY, steps.gate)
        except ClientGone:
            return Response(status_code=CLIENT_GONE)
        return _json(await _purged(steps, _checked(parse_json(raw))))

    return [
        Route("/admin/cache/stats", stats),
        Route("/admin/cache/entries/{entry_id}", show),
        Route("/admin/cache/entries/{entry_id}", remove, methods=["DELETE"]),
        Route("/admin/cache/purge", purge, methods=["POST"]),
    ]


async def _purged(steps: Steps, body: Mapping[str, str]) -> dict[str, Any]:
    if "entry" in body:
        return await _removed(steps, body["entry"])
    kind = next((kind for kind in ("tenant", "team") if kind in body), None)
    owner = f"{kind}:{body[kind]}" if kind is not None else None
    administration, surface = steps.cache.administration, body.get("surface")
    if "tag" in body:
        purged: Purged = await _answered(administration.purge_tag(body["tag"], surface, owner))
    else:
        purged = await _answered(administration.purge_surface(body["surface"], owner))
    return {
        "object": "cache.purge",
        **body,
        "scopes": purged.scopes,
        "entries": purged.entries,
        "bytes": purged.bytes,
    }


async def _removed(steps: Steps, entry_id: str) -> dict[str, Any]:
    entry = await _answered(steps.cache.administration.remove(_id(entry_id)))
    if entry is None:
        raise _no_entry(entry_id)
    return {"object": "cache.purge", "entry": entry.id, "scopes": 1, "entries": 1 + len(entry.copies)}


async def _answered(operation: Any) -> Any:
    try:
        return await operation
    except StoreUnavailable as down:
        raise Overloaded(f"The store does not answer ({down.reason}).", headers=_RETRY_AFTER) from None


def _checked(body: object) -> dict[str, str]:
    """Return a checked purge request: it names exactly one thing. Raises InvalidRequest."""
    if not isinstance(body, dict):
        raise InvalidRequest("The body must be a JSON object.", code="invalid_type")
    for name, value in body.items():
        if name not in _KEYS or not isinstance(value, str):
            raise InvalidRequest(
                f"A purge has {', '.join(sorted(_KEYS))}, each a string.", code="unsupported_value", param=name
            )
    what = body.keys() & {"surface", "tag", "entry"}
    if what not in ({"surface"}, {"tag"}, {"tag", "surface"}, {"entry"}) or ("entry" in what and len(body) > 1):
        raise InvalidRequest("Name a surface, a tag or an entry.", code="missing_required_parameter", param="surface")
    if "tenant" in body and "team" in body:
        raise InvalidRequest("Name a tenant or a team, not both.", code="unsupported_value", param="team")
    for name in body.keys() & {"surface", "tenant", "team"}:
        if not _NAME.fullmatch(body[name]):
            raise InvalidRequest(f"{body[name]!r} is not a valid {name} name.", code="unsupported_value", param=name)
    if "tag" in body:
        _check_tag(body["tag"])
    return body


def _check_tag(tag: str) -> None:
    try:
        named = parse(tag.encode("latin-1", "replace"))
    except BadTags:
        named = ()
    if named != (tag,):
        raise InvalidRequest("A tag is 1 to 64 letters, digits or ._:/@+#=-", code="unsupported_value", param="tag")


def _id(entry_id: str) -> str:
    if not _ENTRY_ID.fullmatch(entry_id):
        raise InvalidRequest(
            "An entry's id is 12 to 32 hex digits, as in replies and traces.", code="unsupported_value", param="entry"
        )
    return entry_id


def _no_entry(entry_id: str) -> NotFound:
    return NotFound(f"There is no entry {entry_id!r}; it may have expired.", code="entry_not_found", param="entry")


def _json(value: Mapping[str, Any]) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
