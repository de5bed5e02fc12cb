"""Verify tokens (JWT) of one issuer: by its public keys, for an audience, within their time.

Signatures and claims are joserfc's to check. Keys come from the issuer's JWKS, fetched in a thread with a time limit:
again after FRESH_S, and at once for a token that names an unknown key, but then once in RETRY_S at most, whoever sends
such tokens. While the issuer does not answer, those it gave last hold, for KEPT_S, also over a restart: a copy is on
disk, readable by us alone. No header of a token says where a key is (`jwk`, `jku`, `x5u` and `x5c` are not looked at).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import ssl
import time
from collections.abc import Awaitable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import httpx2
import orjson
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import JWKRegistry, KeySet
from joserfc.jws import JWSRegistry, deserialize_compact
from joserfc.jwt import JWTClaimsRegistry

from gateway.config.environment import write_private
from gateway.parts.access.config import IssuerConfig, url_of
from gateway.parts.access.keys.identities import BadToken, claims_in

log = logging.getLogger("tierline.identity")

Told = TypeVar("Told")
FRESH_S: Final = 600.0
RETRY_S: Final = 10.0
KEPT_S: Final = 86400.0
_LIMIT_S: Final = 5.0
"""Longest time for one document of the issuer."""
_MOST: Final = 1 << 20
_LEAST_RSA: Final = 342
"""Base64 digits of an RSA modulus of 2048 bits: shorter ones are not used."""
_TYPES: Final = frozenset({"", "jwt", "at+jwt", "application/jwt", "application/at+jwt"})
"""Types of tokens that stand for somebody. Others of the same issuer, such as logout tokens, do not."""


class IssuerUnavailable(Exception):
    """The issuer does not answer, and no copy of its keys is at hand; the message says why."""


class Issuer:
    """Fetch the keys of one issuer, and verify its tokens."""

    def __init__(self, config: IssuerConfig, folder: Path | None = None) -> None:
        """Fetch nothing yet. `folder` is where the copy of the keys is; None for none."""
        self.config = config
        self._copy = folder and folder / f"issuer-{hashlib.sha256(config.issuer.encode()).hexdigest()[:16]}.json"
        self._signatures = JWSRegistry(algorithms=config.algorithms, strict_check_header=False)
        self._signatures.max_header_length = 4096
        self._keys: KeySet | None = None
        self._fetched = 0.0
        """Unix time at which the issuer gave the keys."""
        self._tried = -RETRY_S
        self._failure = ""
        """Why the last try failed; empty if it did not."""
        self._fetching: asyncio.Task[None] | None = None
        self._document: asyncio.Task[Mapping[str, Any]] | None = None
        """The discovery document, for sign-ins, and when it was asked for."""
        self._document_at = 0.0

    async def claims(self, token: bytes, audience: Collection[str]) -> Mapping[str, Any]:
        """Return the claims of a token for one of `audience`. Raises BadToken and IssuerUnavailable."""
        for again in (False, True):
            try:
                return self._verified(token, await self._current(), audience)
            except InvalidKeyIdError:
                if again or not await self._again():
                    break
        if self._failure:
            raise IssuerUnavailable(f"{self.config.issuer} does not answer: {self._failure}")
        raise BadToken("it is signed by a key that its issuer does not have")

    async def endpoint(self, name: str) -> str:
        """Return a URL of the issuer's discovery document, such as `token_endpoint`. Raises IssuerUnavailable.

        The document is asked for again after FRESH_S, or RETRY_S after a failure, however many want to sign in.
        """
        last, age = self._document, time.monotonic() - self._document_at
        if last is None or (last.done() and age > (FRESH_S if last.exception() is None else RETRY_S)):
            self._document_at = time.monotonic()
            last = self._document = asyncio.create_task(asyncio.to_thread(_discovered, self.config.issuer))
        return await self._told(_url_in(last, name))

    async def exchanged(self, form: Mapping[str, str], client: str, secret: str | None) -> bytes:
        """Return the id token that a code of a client is worth. Raises IssuerUnavailable."""
        url = await self.endpoint("token_endpoint")
        auth = None if secret is None else (quote(client, safe=""), quote(secret, safe=""))
        form = form if secret is not None else {**form, "client_id": client}
        return await self._told(asyncio.to_thread(lambda: str(_fetched(url, form, auth)["id_token"]).encode()))

    async def _told(self, answer: Awaitable[Told]) -> Told:
        """Return what the issuer tells. Raises IssuerUnavailable."""
        try:
            return await answer
        except KeyError as error:
            raise IssuerUnavailable(f"{self.config.issuer} tells no {error.args[0]}") from None
        except (httpx2.HTTPError, OSError, ValueError) as error:
            raise IssuerUnavailable(f"{self.config.issuer} does not answer: {_why(error)}") from None

    async def _current(self) -> KeySet:
        """Return the keys; old ones are replaced aside, missing ones first. Raises IssuerUnavailable."""
        age = time.time() - self._fetched
        if self._keys is not None and age < KEPT_S:
            if age > FRESH_S:
                self._fetch()
            return self._keys
        await self._again()
        if self._keys is None or time.time() - self._fetched > KEPT_S:
            raise IssuerUnavailable(f"{self.config.issuer} does not answer: {self._failure}")
        return self._keys

    async def _again(self) -> bool:
        """Wait for the keys to be fetched; return whether they were, which they are not within RETRY_S of a try."""
        task = self._fetch()
        if task is not None:
            await asyncio.shield(task)
        return task is not None and not self._failure

    def _fetch(self) -> asyncio.Task[None] | None:
        """Return the fetch that is under way or begins now; None if the last one was a moment ago."""
        if self._fetching is not None and not self._fetching.done():
            return self._fetching
        if time.monotonic() - self._tried < RETRY_S:
            return None
        self._tried = time.monotonic()
        self._fetching = asyncio.create_task(self._refresh(), name="tierline.identity.keys")
        return self._fetching

    async def _refresh(self) -> None:
        try:
            document = await asyncio.to_thread(self._read, known=self._keys is not None)
        except Exception as error:  # noqa: BLE001  (what an issuer sends is no reason to end the task)
            self._failure = _why(error)
            log.warning("the keys of %s could not be fetched: %s", self.config.issuer, self._failure)
            return
        self._keys, self._fetched, self._failure = document

    def _read(self, *, known: bool) -> tuple[KeySet, float, str]:
        """Return the issuer's keys, since when they are known, and why it does not answer. Runs in a thread."""
        try:
            url = self.config.jwks_url or url_of(str(_discovered(self.config.issuer)["jwks_uri"]))
            document, at = _fetched(url), time.time()
            keys = _usable(document)
        except (httpx2.HTTPError, OSError, ValueError, KeyError) as error:
            if known or self._copy is None or not self._copy.is_file():
                raise
            kept = orjson.loads(self._copy.read_bytes())
            return _usable(kept["jwks"]), float(kept["at"]), _why(error)
        if self._copy is not None:
            with contextlib.suppress(OSError):
                self._copy.parent.mkdir(parents=True, exist_ok=True)
                write_private(self._copy, orjson.dumps({"issuer": self.config.issuer, "at": at, "jwks": document}))
        return keys, at, ""

    def _verified(self, token: bytes, keys: KeySet, audience: Collection[str]) -> Mapping[str, Any]:
        """Return a token's claims. Raises BadToken, and InvalidKeyIdError for a key that is not among these."""
        try:
            signed = deserialize_compact(token, keys, registry=self._signatures)
        except InvalidKeyIdError:
            raise
        except (JoseError, ValueError, TypeError, AttributeError) as error:
            raise BadToken(f"its signature is not accepted ({_why(error)})") from None
        if str(signed.headers().get("typ", "")).lower() not in _TYPES:
            raise BadToken("it is a token for something else (typ)")
        claims = claims_in(signed.payload or b"")
        checked = dict(claims)
        if (
            "aud" not in claims and claims.get("token_use") == "access"
        ):  # of Cognito, whose access tokens are a client's
            checked["aud"] = claims.get("client_id")
            if checked["aud"] not in audience:
                raise BadToken("it is an access token without aud, and its client_id is none of the audience")
        expected = JWTClaimsRegistry(
            leeway=int(self.config.leeway),
            iss={"essential": True, "value": self.config.issuer},
            aud={"essential": True, "values": list(audience)},
            exp={"essential": True},
            sub={"essential": True},
        )
        try:
            expected.validate(checked)
        except (JoseError, ValueError, TypeError) as error:
            raise BadToken(_why(error)) from None
        return claims


async def _url_in(document: asyncio.Task[Mapping[str, Any]], name: str) -> str:
    return url_of(str((await asyncio.shield(document))[name]))


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__


def _discovered(issuer: str) -> Mapping[str, Any]:
    """Return an issuer's discovery document. Raises ValueError if it is another's."""
    document = _fetched(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    if document.get("issuer") != issuer:
        raise ValueError(f"its discovery document is of {document.get('issuer')!r}")
    return document


def _fetched(url: str, form: Mapping[str, str] | None = None, auth: tuple[str, str] | None = None) -> Mapping[str, Any]:
    """Return the JSON object that a GET gives, or the POST of a form. Raises HTTPError and ValueError."""
    until, body = time.monotonic() + _LIMIT_S, bytearray()
    send = partial(httpx2.Client.stream, method="GET" if form is None else "POST", url=url, data=form, auth=auth)
    # Neither a proxy nor a .netrc of the environment: who can set them would see codes and choose the keys.
    asked = httpx2.Client(timeout=_LIMIT_S, trust_env=False, verify=ssl.create_default_context())
    with asked as client, send(client) as reply:
        for part in reply.iter_bytes():
            body += part
            if len(body) > _MOST or time.monotonic() > until:
                raise ValueError(f"{url} sends too much, or too slowly")
    if reply.status_code != 200:
        raise ValueError(f"{url} answers {reply.status_code}")
    document = orjson.loads(body)
    if not isinstance(document, dict):
        raise ValueError(f"{url} is no JSON object")
    return document


def _usable(document: Mapping[str, Any]) -> KeySet:
    """Return the public keys for signatures; others, and those that cannot be read, are left out. Raises ValueError."""
    keys = []
    for key in document.get("keys", ()):
        if not isinstance(key, dict) or key.get("kty") not in ("RSA", "EC", "OKP") or key.get("use", "sig") != "sig":
            continue
        if "d" in key or (key["kty"] == "RSA" and len(str(key.get("n", ""))) < _LEAST_RSA):
            continue
        with contextlib.suppress(JoseError, ValueError, TypeError, KeyError):
            keys.append(JWKRegistry.import_key(key))
    if not keys:
        raise ValueError("it has no keys for signatures")
    return KeySet(keys)
