"""Signing in to the console by an identity provider, and what each role sees there."""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest
from starlette.routing import Route

from cache.store.redis_store import RedisStore
from gateway.parts.access.audit.trail import AuditTrail
from gateway.parts.access.config import IdentityConfig, LoginConfig, RoleConfig
from gateway.parts.access.keys.identities import Identities
from gateway.parts.access.pages import login as login_module
from gateway.parts.access.pages.sessions import COOKIE
from gateway.parts.console.app import ConsoleApp
from gateway.parts.console.config import ConsoleConfig
from gateway.parts.console.server import CannotServeConsole, access_of, login_of
from gateway.parts.ledger.live import LiveArchive
from tests.gateway.telemetry.conftest import server, store
from tests.parts.console.test_app import places
from tests.support.identity_provider import IdentityProvider, rsa_key

__all__ = ["server", "store"]

URL = "http://127.0.0.1:8790"
ROLES = [
    {"role": "admin", "where": {"groups": "platform"}},
    {"role": "editor", "where": {"groups": "search"}, "surfaces": ["search"]},
    {"role": "editor", "where": {"groups": "policies"}},
    {"role": "viewer", "where": {"groups": "staff"}},
]


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as running:
        running.redirect_uris = {f"{URL}/sign-in/callback"}
        yield running


@contextlib.asynccontextmanager
async def console(
    folder: Path, store: RedisStore, provider: IdentityProvider, **more: Any
) -> AsyncIterator[httpx2.AsyncClient]:
    """A console whose people are the provider's, and a browser's client of it."""
    issuer = {
        "issuer": provider.issuer,
        "audience": provider.AUDIENCE,
        "claims": {"team": "groups"},
        "teams": {"llm-web": "web"},
    }
    identities = Identities(
        IdentityConfig.model_validate({"issuers": [issuer]}), [RoleConfig.model_validate(role) for role in ROLES]
    )
    secret = {} if provider.public else {"client_secret_env": "OIDC_SECRET"}
    login = {"issuer": provider.issuer, "client_id": provider.CLIENT, "url": URL, **secret, **more}
    config = ConsoleConfig(login=LoginConfig.model_validate(login))
    environ = {"OIDC_SECRET": provider.SECRET}
    archive = LiveArchive(folder, store)
    archive.start()
    try:
        app = ConsoleApp(
            archive,
            store,
            places(folder, store),
            access_of(config, environ, identities),
            login=login_of(config, environ, identities),
        ).asgi()
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=URL) as client:
            client.app = app  # type: ignore[attr-defined]
            yield client
    finally:
        await archive.aclose()


async def sign_in(client: httpx2.AsyncClient, provider: IdentityProvider, to: str = "/now") -> httpx2.Response:
    """The page that a browser comes back to."""
    sent = await client.get("/sign-in/begin", params={"to": to})
    assert sent.status_code == 303, sent.text
    return await client.get(provider.sign_in(sent.headers["location"]))


async def test_a_person_signs_in_and_is_known_by_name(
    store: RedisStore, tmp_path: Path, provider: IdentityProvider
) -> None:
    provider.id_claims = {"groups": ["staff"]}
    async with console(tmp_path, store, provider) as client:
        turned = await client.get("/requests?since=all")
        assert turned.headers["location"] == "/sign-in?to=/requests%3Fsince%3Dall"
        page = await client.get(turned.headers["location"])
        assert "Sign in with 127.0.0.1" in page.text and 'type="password"' not in page.text
        back = await sign_in(client, provider, "/requests?since=all")
        assert back.status_code == 200 and 'content="0;url=/requests?since=all"' in back.text
        cookie = next(line for line in back.headers.get_list("set-cookie") if line.startswith(f"{COOKIE}="))
        assert "httponly" in cookie.lower() and "samesite=strict" in cookie.lower()
        seen = await client.get("/requests?since=all")
        assert seen.status_code == 200 and "ada@acme.example" in seen.text
        assert provider.refusals == []
    [entry] = [one async for one in AuditTrail(store).newest() if one.kind == "login"]
    assert (entry.by, entry.how) == ("ada@acme.example", "console")


async def test_a_public_client_is_protected_by_pkce_alone(
    store: RedisStore, tmp_path: Path, provider: IdentityProvider
) -> None:
    provider.public, provider.id_claims = True, {"groups": ["staff"]}
    async with console(tmp_path, store, provider) as client:
        assert (await sign_in(client, provider)).status_code == 200
        assert (await client.get("/now")).status_code == 200


async def test_each_role_sees_and_does_what_the_table_says(
    store: RedisStore, tmp_path: Path, provider: IdentityProvider
) -> None:
    change = {"do": "promote", "message": "why", "revision": "1"}
    async with console(tmp_path, store, provider) as client:
        for group, page, search, chat in (
            ("platform", 200, 422, 422), ("policies", 200, 422, 422), ("search", 200, 422, 403),
            ("staff", 200, 403, 403), ("others", 403, 403, 403),
        ):  # fmt: skip
            client.cookies.clear()
            provider.id_claims = {"groups": [group]}
            assert (await sign_in(client, provider)).status_code == 200
            assert (await client.get("/now")).status_code == page, group
            assert (await client.post("/changes/search", data=change)).status_code == search, group
            assert (await client.post("/changes/chat", data=change)).status_code == chat, group
            assert (await client.get("/")).status_code == (307 if page == 200 else 403)


async def test_who_belongs_to_a_team_is_led_to_what_they_may_see(
    store: RedisStore, tmp_path: Path, provider: IdentityProvider
) -> None:
    """With no role, they see what their team uses, and its pages alone stand in the navigation."""
    provider.id_claims = {"groups": ["llm-web"]}
    async with console(tmp_path, store, provider) as client:
        await sign_in(client, provider)
        first = await client.get("/")
        assert first.status_code == 307 and first.headers["location"] != "/now"
        page = await client.get(first.headers["location"])
        assert page.status_code == 200 and 'href="/policies"' not in page.text


async def test_a_script_sends_the_token_of_a_person(
    store: RedisStore, tmp_path: Path, provider: IdentityProvider
) -> None:
    async with console(tmp_path, store, provider) as client:
        for groups, status in ((["staff"], 200), (["others"], 403)):
            headers = {"authorization": f"Bearer {provider.token(groups=groups)}"}
            assert (await client.get("/now.json", headers=headers)).status_code == status
        for wrong in (provider.token(groups=["staff"], aud="another"), provider.token(groups=["staff"], exp=1), "x"):
            headers = {"authorization": f"Bearer {wrong}"}
            assert (await client.get("/now.json", headers=headers)).status_code == 401
        provider.rotate("other", rsa_key(3))
        headers = {"authorization": f"Bearer {provider.token(groups=['staff'])}"}
        assert (await client.get("/now.json", headers=headers)).status_code == 401, "the keys were fetched a moment ago"


async def test_a_sign_in_belongs_to_the_browser_that_began_it(
    store: RedisStore, tmp_path: Path, provider: IdentityProvider
) -> None:
    """Nobody is signed in as somebody else by a link, and a code is worth one session."""
    provider.id_claims = {"groups": ["staff"]}
    async with console(tmp_path, store, provider) as client:
        sent = await client.get("/sign-in/begin")
        back = provider.sign_in(sent.headers["location"])
        kept = dict(client.cookies)
        client.cookies.clear()
        refused = await client.get(back)
        assert refused.status_code == 401 and "not begun in this browser" in refused.text
        client.cookies.update(kept)
        assert (await client.get(back)).status_code == 200
        client.cookies.update(kept)
        assert (await client.get(back)).status_code == 401, "used"
        client.cookies.clear()
        again = await client.get("/sign-in/begin")
        query = {name: value[0] for name, value in parse_qs(urlsplit(back).query).items()}
        state = parse_qs(urlsplit(again.headers["location"]).query)["state"][0]
        used = await client.get(f"/sign-in/callback?{urlencode({**query, 'state': state})}")
        assert used.status_code == 401 and provider.refusals[-1] == "the code is unknown, or was used"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"state": "x" * 43}, "(state)"),
        ({"state": ""}, "(state)"),
        ({"state": "é"}, "(state)"),
        ({"iss": "https://evil.example"}, "(iss)"),
        ({"code": ""}, "no code"),
        ({"code": "guessed"}, "does not answer"),
        ({"error": "access_denied<script>"}, "access_denied&lt;script&gt;"),
    ],
    ids=str,
)
async def test_what_comes_back_is_checked(
    store: RedisStore, tmp_path: Path, provider: IdentityProvider, given: dict[str, str], said: str
) -> None:
    provider.id_claims = {"groups": ["staff"]}
    async with console(tmp_path, store, provider) as client:
        sent = await client.get("/sign-in/begin")
        back = urlsplit(provider.sign_in(sent.headers["location"]))
        query = {name: value[0] for name, value in parse_qs(back.query).items()}
        refused = await client.get(f"/sign-in/callback?{urlencode({**query, **given})}")
        assert refused.status_code == 401 and said in refused.text
        assert (await client.get("/now")).status_code == 303, "nobody is signed in"


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"nonce": "another"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"aud": "tierline"}, "aud"),
        ({"aud": ["tierline-console", "other"], "azp": "other"}, "azp"),
        ({"iss": "https://evil.example"}, "iss"),
        ({"exp": 1}, "exp"),
    ],
    ids=str,
)
async def test_an_id_token_is_of_this_sign_in(
    store: RedisStore, tmp_path: Path, provider: IdentityProvider, claims: dict[str, Any], said: str
) -> None:
    provider.id_claims = {"groups": ["platform"], **claims}
    async with console(tmp_path, store, provider) as client:
        refused = await sign_in(client, provider)
        assert refused.status_code == 401 and said in refused.text


async def test_a_try_ends_after_ten_minutes(
    store: RedisStore, tmp_path: Path, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_module, "TRY_S", -1)
    async with console(tmp_path, store, provider) as client:
        sent = await client.get("/sign-in/begin")
        client.cookies.set("tierline-sign-in", sent.headers["set-cookie"].partition("=")[2].partition(";")[0])
        refused = await client.get(provider.sign_in(sent.headers["location"]))
        assert refused.status_code == 401 and "longer than ten minutes" in refused.text


async def test_what_to_see_afterwards_is_a_page_of_this_console(
    store: RedisStore, tmp_path: Path, provider: IdentityProvider
) -> None:
    provider.id_claims = {"groups": ["staff"]}
    async with console(tmp_path, store, provider) as client:
        for to in ("https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/\n//evil"):
            assert 'content="0;url=/"' in (await sign_in(client, provider, to)).text, to
        odd = await sign_in(client, provider, '/now?x="><script>')
        assert "<script>" not in odd.text


async def test_a_provider_that_is_away_lets_nobody_in_and_says_so(
    store: RedisStore, tmp_path: Path, provider: IdentityProvider
) -> None:
    provider.id_claims = {"groups": ["staff"]}
    async with console(tmp_path, store, provider) as client:
        await sign_in(client, provider)
        provider.refuse()
        assert (await client.get("/now")).status_code == 200, "who is signed in stays so"
    async with console(tmp_path, store, provider) as client:
        for _ in range(2):
            away = await client.get("/sign-in/begin")
            assert away.status_code == 503 and "does not answer" in away.text


async def test_nobody_ends_the_sign_ins_of_others(
    store: RedisStore, tmp_path: Path, provider: IdentityProvider
) -> None:
    """However many somebody begins; and no text but ours is taken for one that was begun."""
    provider.id_claims = {"groups": ["staff"]}
    async with console(tmp_path, store, provider) as client:
        back = provider.sign_in((await client.get("/sign-in/begin?to=/cache")).headers["location"])
        [(name, cookie)] = client.cookies.items()
        for _ in range(1001):
            client.cookies.clear()
            assert (await client.get("/sign-in/begin")).status_code == 303
        text, _, mark = cookie.rpartition(".")
        for forged in ("", ".", text, f"{text}.", f"{text}x.{mark}", f".{mark}", f"{text}.{mark[:-1]}", "=.="):
            client.cookies.clear()
            client.cookies.set(name, forged, path="/sign-in")
            assert (await client.get(back)).status_code == 401, forged
        client.cookies.clear()
        client.cookies.set(name, cookie, path="/sign-in")
        assert "/cache" in (await client.get(back)).text


async def test_many_sign_ins_are_no_load_on_the_provider(
    store: RedisStore, tmp_path: Path, provider: IdentityProvider
) -> None:
    """Its document is asked for once, and after ten sign-ins that failed an address has to wait."""
    async with console(tmp_path, store, provider) as client:
        for _ in range(10):
            assert (await client.get("/sign-in/begin")).status_code == 303
            assert (await client.get("/sign-in/callback?code=guessed&state=x")).status_code == 401
        refused = await client.get("/sign-in/begin")
        assert refused.status_code == 429 and refused.headers["retry-after"]
    assert provider.fetched("openid-configuration") == 1 and provider.fetched("token") == 0


async def test_wrong_keys_keep_nobody_from_signing_in_by_the_provider(
    store: RedisStore, tmp_path: Path, provider: IdentityProvider
) -> None:
    """Nor do sign-ins that failed there keep a token from being looked at."""
    provider.id_claims = {"groups": ["staff"]}
    async with console(tmp_path, store, provider) as client:
        statuses = [(await client.post("/sign-in", data={"key": "wrong"})).status_code for _ in range(12)]
        assert statuses == [401] * 10 + [429] * 2
        await sign_in(client, provider)
        assert (await client.get("/now")).status_code == 200
        client.cookies.clear()
        for _ in range(11):
            await client.get("/sign-in/callback?code=guessed&state=x")
        assert (await client.get("/sign-in/begin")).status_code == 429
        token = {"authorization": f"Bearer {provider.token(groups=['staff'])}"}
        assert (await client.get("/now", headers=token)).status_code == 200


async def test_a_person_signs_out(store: RedisStore, tmp_path: Path, provider: IdentityProvider) -> None:
    provider.id_claims = {"groups": ["staff"]}
    async with console(tmp_path, store, provider) as client:
        await sign_in(client, provider)
        session = client.cookies[COOKIE]
        foreign = await client.post("/sign-out", headers={"origin": "https://evil.example"})
        assert foreign.status_code == 403 and "set-cookie" not in foreign.headers
        assert (await client.get("/now")).status_code == 200
        await client.post("/sign-out")
        client.cookies.set(COOKIE, session)
        assert (await client.get("/now")).status_code == 303


async def test_every_route_of_the_console_is_an_action(
    store: RedisStore, tmp_path: Path, provider: IdentityProvider
) -> None:
    """Who has no role gets none of them, but what everybody may ask: the sign-in, the health, and shipped files."""
    provider.id_claims = {"groups": []}
    async with console(tmp_path, store, provider) as client:
        await sign_in(client, provider)
        routes = [route for route in client.app.routes if isinstance(route, Route)]  # type: ignore[attr-defined]
        assert len(routes) > 30
        for route in routes:
            path = route.path_format.replace("{request_id}", "x").replace("{surface}", "chat")
            for method in sorted((route.methods or set()) - {"HEAD"}):
                if not path.startswith(("/sign-in", "/sign-out", "/static/", "/healthz")):
                    assert (await client.request(method, path)).status_code == 403, f"{method} {path}"


async def test_strangers_see_no_pages_and_nobody_a_link_that_is_refused(
    store: RedisStore, tmp_path: Path, provider: IdentityProvider
) -> None:
    """The sign-in has neither navigation nor "Sign out"; who has no role gets links to what is theirs."""

    def links(page: httpx2.Response) -> set[str]:
        found = re.findall(r'(?:href|action)="(/[^"#]*)"', page.text)
        return {html.unescape(one) for one in found if not one.startswith(("/static/", "/sign-in", "/sign-out"))}

    async with console(tmp_path, store, provider) as client:
        for stranger in ("/sign-in", "/nowhere"):
            page = await client.get(stranger)
            assert links(page) <= {"/"} and "Sign out" not in page.text, stranger
        for groups, path in (([], "/now"), (["staff"], "/now"), (["staff"], "/keys")):
            provider.id_claims = {"groups": groups}
            await sign_in(client, provider)
            page = await client.get(path)
            assert "Sign out" in page.text
            for link in links(page) - {"/"}:  # that one says that there is no role
                assert (await client.get(link, follow_redirects=True)).status_code != 403, (groups, path, link)


def test_a_secret_of_the_client_must_be_there(provider: IdentityProvider) -> None:
    issuers = {"issuers": [{"issuer": provider.issuer, "audience": "t"}]}
    identities = Identities(IdentityConfig.model_validate(issuers))
    login = {"issuer": provider.issuer, "client_id": "c", "url": URL, "client_secret_env": "OIDC_SECRET"}
    config = ConsoleConfig(host="0.0.0.0", login=LoginConfig.model_validate(login))
    with pytest.raises(CannotServeConsole, match="OIDC_SECRET is not set"):
        login_of(config, {}, identities)
    assert access_of(config, {}, identities).needs_key, "with a login it may listen beyond this machine"
