"""Which pages the console has, by the routes of its app, and an address of each."""

from __future__ import annotations

import re
from pathlib import Path

import httpx2

from cache.store.redis_store import RedisStore
from gateway.config.launch import Launch
from gateway.parts.access.pages.sessions import ConsoleAccess
from gateway.parts.console.app import ConsoleApp
from gateway.parts.console.page import PolicyPlaces
from gateway.parts.ledger.live import LiveArchive
from tests.browser.demo import RunningDemo

ESCALATED = "surface=chat&is=escalated"
STATES = (
    "/now?since=15m",
    "/requests?surface=chat&is=escalated&slower=1ms",
    "/requests?surface=nowhere&slower=59s",
    "/nowhere",
    "/sign-in",
)
"""States of pages that look different from the page as the navigation opens it."""
REQUESTS = {
    "escalated": ESCALATED,
    "cached": "path=cache-semantic",
    "refused": "is=refused",
    "fallback": "path=fallback",
    "hedged": "is=hedged",
}
"""Kinds of requests whose pages look different, with the filter that finds one of the demo's."""


def routes(folder: Path, store_url: str) -> list[str]:
    """Return the path of each page, as the app has it: those that are also there as JSON."""
    config = folder / "pages.yaml"
    backend = "{kind: scripted, script: [{reply: {text: Hello.}}]}"
    config.write_text(f"policies: {{source: store}}\ntiers: [{{name: one, backends: [{backend}]}}]\n")
    launch = Launch(config=config)
    deployment = launch.deployment()
    places = PolicyPlaces(deployment, launch.policy_source(deployment), folder, config, store_url)
    store = RedisStore.from_url(store_url)
    app = ConsoleApp(LiveArchive(folder, store), store, places, ConsoleAccess({})).asgi()
    paths = [str(getattr(route, "path", "")) for route in app.routes]
    return [path.removesuffix(".json") for path in paths if path.endswith(".json")]


def addresses(demo: RunningDemo, folder: Path) -> dict[str, str]:
    """Return an address of every page and of the states that look different, by a name fit for a file."""
    found: dict[str, str] = {}
    for path in routes(folder, demo.store):
        if "{request_id" in path:
            for kind, query in REQUESTS.items():
                if rows := demo.data(f"/requests?since=all&{query}")["rows"]:
                    found[f"request-{kind}"] = re.sub(r"{request_id[^}]*}", rows[0]["request_id"], path)
        elif path == "/cache/wrong":
            found["cache-wrong"] = f"{path}?request={demo.request_id('path=cache-semantic')}"
        elif path == "/keys/{name}":
            found["key"] = f"/keys/{_key(demo)}"
        elif path == "/teams/{kind}/{name:path}":
            found["team"] = "/teams/team/web"
        elif path != "/teams/new":  # it leads to the page of a team
            filled = path.replace("{surface}", "chat")
            assert "{" not in filled, f"tests/browser/pages.py knows no value for {path}"
            found[_name(filled)] = filled
    found["policies-support"] = "/policies/support"
    found["requests-peek"] = f"/requests?surface=chat&peek={demo.request_id(ESCALATED)}"
    return found | {_name(state): state for state in STATES}


def _key(demo: RunningDemo) -> str:
    """Make a key with a budget, and return its id."""
    form = {"name": "ada's laptop", "team": "web", "budgets": "25/month", "surfaces": "chat", "expires": "90d"}
    page = httpx2.post(f"{demo.console}/keys", data=form, timeout=60)
    assert page.status_code == 200, page.text
    return str(demo.data("/keys")["keys"][0]["id"])


def _name(address: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", address.lower()).strip("-")
