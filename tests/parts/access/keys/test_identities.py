"""Tokens of an identity provider: whose they are, what is refused, and what an outage of the provider does."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding

from gateway.errors import Overloaded, Unauthorized
from gateway.parts.access.config import IdentityConfig, RoleConfig
from gateway.parts.access.keys import identities as module
from gateway.parts.access.keys import issuer as issuers
from gateway.parts.access.keys.identities import Identities
from gateway.parts.access.keys.records import KeyRecord
from tests.support.identity_provider import IdentityProvider, ec_key, public_jwk, rsa_key, sign
from tests.support.upstream import Reply


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as running:
        yield running


def identities(provider: IdentityProvider, folder: Path | None = None, **more: Any) -> Identities:
    roles = more.pop("roles", ())
    issuer = {"issuer": provider.issuer, "audience": provider.AUDIENCE, **more}
    config = IdentityConfig.model_validate({"issuers": [issuer]})
    return Identities(config, [RoleConfig.model_validate(role) for role in roles], folder)


def record(known: Identities, token: str | bytes) -> KeyRecord:
    return asyncio.run(known.record(token if isinstance(token, bytes) else token.encode()))


def refused(known: Identities, token: str | bytes) -> str:
    with pytest.raises(Unauthorized) as error:
        record(known, token)
    return error.value.message


def part(value: Any) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def test_a_proxy_and_credentials_of_the_environment_are_not_used(
    provider: IdentityProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for the discovery document nor for keys and codes: who sets them would choose the keys."""
    credentials = tmp_path / "netrc"
    credentials.write_text("machine 127.0.0.1 login somebody password secret\n")
    credentials.chmod(0o600)
    monkeypatch.setenv("NETRC", str(credentials))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert record(identities(provider), provider.token()).owner == "ada@acme.example"
    asked = [request for request in provider.probes if "authorization" in request.headers]
    assert provider.fetched() == 1 and not asked


# --- whose it is ------------------------------------------------------------------------------------------------------


def test_a_token_gives_its_subject_tenant_team_and_surfaces(provider: IdentityProvider) -> None:
    known = identities(
        provider,
        claims={"tenant": "org", "team": "groups", "surfaces": "tierline.surfaces"},
        teams={"llm-search": "search", "llm-web": "web"},
        limits={"requests_per_minute": 60},
    )
    claims = {"org": "acme", "groups": ["staff", "llm-web", "llm-search"], "tierline": {"surfaces": "chat code"}}
    found = record(known, provider.token(**claims))
    assert (found.tenant, found.team, found.surfaces) == ("acme", "search", ("chat", "code"))
    assert found.owner == "ada@acme.example" and found.terms.requests_per_minute == 60
    assert found.expires is not None and 290 < found.expires - time.time() < 340


def test_a_subject_has_one_id_whatever_it_is_called(provider: IdentityProvider) -> None:
    known = identities(provider)
    first, renamed = record(known, provider.token()), record(known, provider.token(preferred_username="ada.l"))
    other = record(known, provider.token(sub="another"))
    assert first.id == renamed.id != other.id and first.id.startswith("u_")
    assert "ada" not in first.id


@pytest.mark.parametrize(
    ("settings", "claims", "said"),
    [
        ({"claims": {"tenant": "org"}}, {}, "no tenant's name"),
        ({"claims": {"tenant": "org"}}, {"org": "../acme"}, "no tenant's name"),
        ({"claims": {"tenant": "org"}}, {"org": ["acme"]}, "no tenant's name"),
        ({"claims": {"team": "groups"}}, {}, "names no team"),
        ({"claims": {"team": "groups"}, "teams": {"llm": "web"}}, {"groups": ["staff"]}, "names no team"),
        ({"claims": {"surfaces": "may_use"}}, {}, "names no surface"),
        ({"claims": {"surfaces": "may_use"}}, {"may_use": []}, "names no surface"),
    ],
    ids=str,
)
def test_a_claim_that_the_config_names_must_be_there(
    provider: IdentityProvider, settings: dict[str, Any], claims: dict[str, Any], said: str
) -> None:
    """Nobody escapes a team's limits, or gets every surface, by a token that does not say which."""
    assert said in refused(identities(provider, **settings), provider.token(**claims))


def test_roles_come_from_claims(provider: IdentityProvider) -> None:
    roles = [
        {"role": "admin", "where": {"groups": "platform", "hd": "acme.example"}},
        {"role": "editor", "where": {"realm_access.roles": ["editor"]}, "surfaces": ["search"]},
        {"role": "key_admin", "where": {"email": "kay@acme.example"}, "teams": ["web"]},
        {"role": "viewer", "where": {"groups": "staff"}, "issuer": provider.issuer},
    ]
    known = identities(provider, claims={"team": "groups"}, teams={"llm-web": "web"}, roles=roles)

    def person(**claims: Any) -> Any:
        return asyncio.run(known.person(provider.token(**claims).encode()))

    assert person(groups=["platform"], hd="acme.example").may("teams.change", "web")
    assert not person(groups=["platform"]).may("teams.change", "web"), "each claim must be there"
    editor = person(realm_access={"roles": ["editor"]})
    assert editor.may("policies.change", "search") and not editor.may("policies.change", "chat")
    mail = {"email": "kay@acme.example"}
    assert person(**mail, email_verified=True).may("keys.change", "web")
    assert not person(**mail).may("keys.change", "web"), "an address that nobody has verified is anybody's"
    assert not person(**mail, email_verified="true").may("keys.change", "web")
    member = person(groups=["llm-web", "staff"])
    assert member.may("look") and member.may("keys.create", "web") and member.name == "ada@acme.example"
    assert not person().may("look")


OVERAGE: list[dict[str, Any]] = [
    {
        "_claim_names": {"groups": "src1"},
        "_claim_sources": {"src1": {"endpoint": "https://graph.microsoft.com/v1.0/users/1/getMemberObjects"}},
    },
    {"hasgroups": True},
]
"""What Entra sends in place of the groups of a person who is in more than 200, or more than six by a URL."""


@pytest.mark.parametrize("overage", OVERAGE, ids=["claim names", "hasgroups"])
def test_groups_that_were_too_many_for_the_token_are_said_to_be(
    provider: IdentityProvider, overage: dict[str, Any]
) -> None:
    """Who is in many groups would else be told that they are in none, or find their roles gone."""
    roles = [
        {"role": "admin", "where": {"groups": "platform"}},
        {"role": "viewer", "where": {"roles": "Tierline.See"}},
    ]
    of_teams = identities(provider, claims={"team": "groups"}, teams={"llm": "web"}, roles=roles)
    said = refused(of_teams, provider.token(**overage))
    assert "its claim groups was left out" in said and "overage" in said and "app roles" in said
    assert record(of_teams, provider.token(groups=["llm"])).team == "web"
    assert record(of_teams, provider.token(groups=["llm"], **overage)).team == "web", "they are in the token after all"
    assert "names no team" in refused(of_teams, provider.token())

    without = identities(provider, roles=roles)
    assert record(without, provider.token(**overage)).team == "", "where no claim says the team, none is missed"
    with pytest.raises(Unauthorized, match="its claim groups was left out"):
        asyncio.run(without.person(provider.token(**overage).encode()))
    seeing = asyncio.run(without.person(provider.token(roles=["Tierline.See"], **overage).encode()))
    assert seeing.may("look") and not seeing.may("teams.change", "web")
    with pytest.raises(Unauthorized, match="its claim groups was left out"):
        asyncio.run(of_teams.person(provider.token(roles=["Tierline.See"], **overage).encode()))


COGNITO = {"aud": None, "token_use": "access", "client_id": "tierline", "preferred_username": None, "username": "ada"}
"""Claims of a Cognito access token, which names a client of the user pool in place of an audience."""


def test_an_access_token_of_cognito_is_for_its_client(provider: IdentityProvider) -> None:
    """It has `client_id` and no `aud`, and its groups are in `cognito:groups`."""
    known = identities(
        provider, claims={"team": "cognito:groups", "user": "username"}, teams={"llm": "web"},
        roles=[{"role": "admin", "where": {"cognito:groups": "platform"}}],
    )  # fmt: skip
    token = provider.token(**COGNITO, **{"cognito:groups": ["platform", "llm"]})
    found = record(known, token)
    assert (found.team, found.owner) == ("web", "ada")
    assert asyncio.run(known.person(token.encode())).may("teams.change", "web")


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"client_id": "another-app"}, "its client_id is none of the audience"),
        ({"client_id": None}, "its client_id is none of the audience"),
        ({"client_id": ["tierline"]}, "its client_id is none of the audience"),
        ({"token_use": "id"}, "aud"),
        ({"token_use": None}, "aud"),
        ({"aud": "another-service"}, "aud"),
        ({"aud": []}, "aud"),
    ],
    ids=str,
)
def test_a_client_is_no_audience_of_other_tokens(provider: IdentityProvider, claims: dict[str, Any], said: str) -> None:
    """Another app's token of the user pool is refused, and a token that has an audience, or is no access token."""
    assert said in refused(identities(provider), provider.token(**{**COGNITO, **claims}))


# --- attacks ----------------------------------------------------------------------------------------------------------


def test_a_token_without_a_signature_is_refused(provider: IdentityProvider) -> None:
    for alg in ("none", "None", "NONE", "nOnE", ""):
        for signature in ("", part(b"x")):
            token = f"{part({'alg': alg, 'kid': 'one'})}.{part(provider.claims())}.{signature}"
            assert "not accepted" in refused(identities(provider), token)


def test_a_public_key_makes_no_signature(provider: IdentityProvider) -> None:
    """HMAC with the text of the public key as its secret: the oldest confusion of algorithms."""
    public = rsa_key().public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    secrets = (pem, pem.strip(), public_jwk("one", rsa_key())["n"].encode())
    for alg, hashed in (("HS256", hashlib.sha256), ("HS512", hashlib.sha512)):
        for secret in secrets:
            signed = f"{part({'alg': alg, 'kid': 'one'})}.{part(provider.claims())}"
            signature = hmac.new(secret, signed.encode(), hashed).digest()
            assert "signature" in refused(identities(provider), f"{signed}.{part(signature)}")


def test_no_config_lists_an_algorithm_that_a_public_key_could_forge() -> None:
    for alg in ("none", "HS256", "HS384", "HS512", "RS1", "ES256K"):
        with pytest.raises(ValueError, match="algorithms"):
            IdentityConfig.model_validate(
                {"issuers": [{"issuer": "https://a.example", "audience": "t", "algorithms": [alg]}]}
            )


def test_only_listed_algorithms_are_accepted(provider: IdentityProvider) -> None:
    pss = sign(provider.claims(), rsa_key(), {"kid": "one"}, "PS256")
    assert "signature" in refused(identities(provider), pss)
    assert record(identities(provider, algorithms=["PS256"]), pss)
    provider.rotate("ec", ec_key())
    assert record(identities(provider), provider.token())
    assert "signature" in refused(identities(provider, algorithms=["RS256"]), provider.token())


@pytest.mark.filterwarnings("ignore:The RSA key is 1024 bits")
def test_a_symmetric_or_short_key_of_the_issuer_is_not_used(provider: IdentityProvider) -> None:
    """An issuer that publishes `oct` keys, or RSA keys that can be factored, is not believed with them."""
    shared = {"kty": "oct", "kid": "shared", "k": part(b"0123456789abcdef0123456789abcdef"), "alg": "HS256"}
    provider.more_keys = [shared, public_jwk("short", rsa_key(9, 1024)), {"kty": "RSA", "n": "?", "kid": "broken"}]
    forged = jwt.encode(
        provider.claims(), b"0123456789abcdef0123456789abcdef", algorithm="HS256", headers={"kid": "shared"}
    )
    known = identities(provider)
    assert "signature" in refused(known, forged) or "does not have" in refused(known, forged)
    short = sign(provider.claims(), rsa_key(9, 1024), {"kid": "short"})
    assert "does not have" in refused(known, short)
    assert record(known, provider.token())


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"iss": "https://evil.example"}, "its issuer is none of this gateway's"),
        ({"iss": None}, "its issuer is none"),
        ({"iss": ["x"]}, "its issuer is none"),
        ({"aud": "another-service"}, "aud"),
        ({"aud": ["another-service", "tierline-console"]}, "aud"),
        ({"aud": None}, "aud"),
        ({"aud": []}, "aud"),
        ({"aud": {"tierline": 1}}, "aud"),
        ({"exp": None}, "exp"),
        ({"exp": 1_600_000_000}, "exp"),
        ({"exp": "2099"}, "exp"),
        ({"exp": True}, "exp"),
        ({"nbf": 4_000_000_000}, "not yet valid"),
        ({"iat": 4_000_000_000}, "issued in the future"),
        ({"sub": None}, "sub"),
        ({"sub": ""}, "sub"),
    ],
    ids=str,
)
def test_a_token_for_somebody_else_or_another_time_is_refused(
    provider: IdentityProvider, claims: dict[str, Any], said: str
) -> None:
    kid, key = provider.signed_by
    merged = {**provider.claims(), **claims}
    body = {name: value for name, value in merged.items() if value is not None}
    header = {"alg": "RS256", "kid": kid, "typ": "JWT"}
    assert said in refused(identities(provider), _signed(header, json.dumps(body).encode(), key))


def test_clocks_may_be_apart_by_the_leeway(provider: IdentityProvider) -> None:
    late, early = {"exp": int(time.time()) - 20}, {"nbf": int(time.time()) + 20}
    assert record(identities(provider), provider.token(**late))
    assert record(identities(provider), provider.token(**early))
    assert "exp" in refused(identities(provider, leeway="5s"), provider.token(**late))
    assert "not yet" in refused(identities(provider, leeway="5s"), provider.token(**early))


def test_a_number_that_is_none_never_ends_nothing(provider: IdentityProvider) -> None:
    """`NaN` compares with nothing, and a number of a thousand digits is too large for a float."""
    kid, key = provider.signed_by
    body = json.dumps({**provider.claims(), "exp": 0})
    header = {"alg": "RS256", "kid": kid}
    for exp in ("NaN", "Infinity"):
        assert "exp" in refused(
            identities(provider), _signed(header, body.replace('"exp": 0', f'"exp": {exp}').encode(), key)
        )
    lasting = _signed(header, body.replace('"exp": 0', '"exp": 1' + "0" * 1000).encode(), key)
    found = record(identities(provider), lasting)
    assert found.expires is not None and found.expires < time.time() + module.REMEMBERED_S + 31


def test_a_claim_that_is_there_twice_is_refused(provider: IdentityProvider) -> None:
    """Readers differ on which of the two counts."""
    kid, key = provider.signed_by
    body = json.dumps(provider.claims()).encode()
    header = {"alg": "RS256", "kid": kid}
    assert "twice" in refused(identities(provider), _signed(header, body[:-1] + b', "sub": "root"}', key))
    doubled = b'{"alg":"none","alg":"RS256","kid":"one"}'
    assert "twice" in refused(identities(provider), _signed(doubled, body, key))


@pytest.mark.parametrize("name", ["jwk", "jku", "x5u", "x5c"])
def test_a_token_does_not_bring_its_own_key(provider: IdentityProvider, name: str) -> None:
    """Nor is an address in it ever called."""
    with IdentityProvider() as attacker:
        attacker.rotate("evil", rsa_key(7))
        brought = {
            "jwk": public_jwk("evil", rsa_key(7)),
            "jku": f"{attacker.issuer}/keys",
            "x5u": f"{attacker.issuer}/keys",
            "x5c": [base64.b64encode(b"certificate").decode()],
        }[name]
        for kid in ("evil", "one"):
            forged = sign(provider.claims(), rsa_key(7), {"kid": kid, name: brought})
            assert "not accepted" in refused(identities(provider), forged)
        assert attacker.probes == []


def test_what_is_critical_and_unknown_is_refused(provider: IdentityProvider) -> None:
    assert "signature" in refused(identities(provider), provider.token({"crit": ["exp"], "exp": 1}))
    assert "not accepted" in refused(identities(provider), provider.token({"crit": ["b64"], "b64": False}))


def test_a_token_for_something_else_of_the_same_issuer_is_refused(provider: IdentityProvider) -> None:
    assert "something else" in refused(identities(provider), provider.token({"typ": "logout+jwt"}))
    assert record(identities(provider), provider.token({"typ": "at+jwt"}))


def test_a_huge_or_broken_token_is_refused_before_any_work(provider: IdentityProvider) -> None:
    known = identities(provider)
    assert "longer than" in refused(known, provider.token(padding="x" * 20_000))
    deep = '{"iss":' + "[" * 5000 + "]" * 5000 + "}"
    for token in (
        "eyJ.e30.x",
        "eyJhbGciOiJSUzI1NiJ9.%%%.x",
        "eyJ\xff.e30.x",
        f"{part({'alg': 'RS256'})}.{part(deep.encode())}.x",
        "eyJ..",
        "eyJhbGciOiJub25lIn0.W10.",
    ):
        refused(known, token.encode("latin-1"))
    assert provider.probes == [], "the issuer was asked for none of them"


def test_a_flood_of_unknown_keys_asks_the_issuer_once(provider: IdentityProvider) -> None:
    known = identities(provider)

    async def flood() -> None:
        await known.record(provider.token().encode())
        tokens = [provider.token({"kid": f"unknown-{i}"}).encode() for i in range(50)]
        results = await asyncio.gather(*(known.record(token) for token in tokens), return_exceptions=True)
        assert all(isinstance(one, Unauthorized) for one in results)
        await known.record(provider.token(sub="still served").encode())

    asyncio.run(flood())
    assert provider.fetched() == 1, "the keys were fetched a moment ago"


# --- keys of the issuer -----------------------------------------------------------------------------------------------


def test_a_verified_token_is_remembered_until_it_ends(
    provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, token = identities(provider), provider.token()
    checked: list[bytes] = []
    verify = issuers.deserialize_compact
    monkeypatch.setattr(
        issuers, "deserialize_compact", lambda value, *a, **k: (checked.append(value), verify(value, *a, **k))[1]
    )
    for _ in range(5):
        record(known, token)
    assert len(checked) == 1
    ended = time.time() + 331
    monkeypatch.setattr(module.time, "time", lambda: ended)
    assert "exp" in refused(known, token) and len(checked) == 2


def test_what_is_remembered_is_bounded(provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 3)
    known = identities(provider)
    for number in range(5):
        record(known, provider.token(sub=f"subject-{number}"))
    assert len(known._verified) == 3


def test_a_key_that_is_new_is_fetched_at_once(provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    known = identities(provider)
    record(known, provider.token())
    provider.rotate("two", rsa_key(2))
    monkeypatch.setattr(issuers, "RETRY_S", 0.0)
    assert record(known, provider.token())
    assert provider.fetched() == 2


def test_a_key_that_was_withdrawn_is_refused(provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    known, token = identities(provider), provider.token()
    record(known, token)
    provider.rotate("two", rsa_key(2))
    monkeypatch.setattr(issuers, "RETRY_S", 0.0)
    record(known, provider.token())
    monkeypatch.setattr(module, "REMEMBERED_S", 0.0)
    later = time.time() + 200
    monkeypatch.setattr(module.time, "time", lambda: later)
    known._verified.clear()
    assert "does not have" in refused(known, token)


def test_an_outage_of_the_issuer_is_outlived_also_over_a_restart(provider: IdentityProvider, tmp_path: Path) -> None:
    known = identities(provider, tmp_path)
    record(known, provider.token())
    provider.refuse()
    assert record(known, provider.token(sub="another"))
    [copy] = tmp_path.iterdir()
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600 and b'"d"' not in copy.read_bytes()
    again = identities(provider, tmp_path)
    assert record(again, provider.token(sub="a third"))
    copy.write_bytes(copy.read_bytes().replace(b'"at":1', b'"at":0'))
    old = identities(provider, tmp_path)
    with pytest.raises(Overloaded) as error:
        record(old, provider.token())
    assert error.value.status == 503 and error.value.code == "issuer_unavailable"


def test_old_keys_are_fetched_again_aside(provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    known = identities(provider)

    async def steps() -> None:
        await known.record(provider.token().encode())
        monkeypatch.setattr(issuers, "FRESH_S", -1.0)
        monkeypatch.setattr(issuers, "RETRY_S", 0.0)
        await known.record(provider.token(sub="another").encode())
        task = known.issuer(provider.issuer)._fetching
        assert task is not None
        await task

    asyncio.run(steps())
    assert provider.fetched() == 2


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"keys": []}', b'{"keys": 3}', b"x" * (2 << 20)], ids=len)
def test_what_an_issuer_sends_may_be_anything(provider: IdentityProvider, answer: bytes) -> None:
    provider.reply_to = lambda request: Reply(body=answer)  # type: ignore[method-assign]
    with pytest.raises(Overloaded):
        record(identities(provider, jwks_url=f"{provider.issuer}/keys"), provider.token())


def test_a_discovery_document_of_another_issuer_is_not_believed(provider: IdentityProvider) -> None:
    known = identities(provider, issuer=f"{provider.issuer}/")
    with pytest.raises(Overloaded, match="its discovery document is of"):
        record(known, provider.token(iss=f"{provider.issuer}/"))


def test_without_issuers_no_library_is_imported() -> None:
    """What serving, the admin API and the console import does without joserfc and what it brings."""
    script = (
        "import sys; import gateway.parts.access.pages.login, gateway.parts.access.part; "
        "from gateway.parts.access.keys.identities import Identities; "
        "from gateway.parts.access.config import IdentityConfig; "
        "assert not Identities(IdentityConfig()); sys.exit('joserfc' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_an_issuer_over_plain_http_is_refused() -> None:
    for url in ("http://login.example.com", "ftp://login.example.com", "http://169.254.169.254/", "https://"):
        with pytest.raises(ValueError, match="issuer"):
            IdentityConfig.model_validate({"issuers": [{"issuer": url, "audience": "t"}]})


def _signed(header: Any, payload: bytes, key: Any) -> str:
    signed = f"{part(header)}.{part(payload)}"
    return f"{signed}.{part(key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"
