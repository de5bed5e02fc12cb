"""Sign people in by their identity provider: OpenID Connect's authorization code flow, with PKCE, state and nonce.

One try belongs to one browser, whose cookie holds its state, nonce and verifier for TRY_S, with our mark: nothing of it
is kept here, so that nobody who begins many ends those of others. The provider takes each code once.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlencode, urlsplit

import orjson

from gateway.errors import Unauthorized
from gateway.parts.access.config import LoginConfig
from gateway.parts.access.keys.identities import BadToken, Identities
from gateway.parts.access.keys.roles import Person

TRY_S: Final = 600
_LONGEST: Final = 2000
"""Longest path in bytes that somebody is led back to; all of a cookie is 4 kB."""


class LoginFailed(Exception):
    """A person could not be signed in; the message says why."""


class LoginTry(NamedTuple):
    """One try of a browser to sign in."""

    state: str
    nonce: str
    verifier: str
    to: str
    until: float


class Login:
    """The console as a client of an identity provider."""

    def __init__(self, config: LoginConfig, identities: Identities) -> None:
        """`config.issuer` is one that `identities` know."""
        self._config = config
        self._identities = identities
        self._issuer = identities.issuer(config.issuer)
        self._back = f"{config.url.rstrip('/')}/sign-in/callback"
        self._secret = secrets.token_bytes(32)
        self.name = urlsplit(config.issuer).hostname or config.issuer
        """What the provider is called on the page."""
        self.secure = config.url.startswith("https://")

    async def begin(self, to: str) -> tuple[str, str]:
        """Return the provider's URL to which a browser that wants to see `to` is sent, and the cookie of the try.

        Raises LoginFailed.
        """
        from gateway.parts.access.keys.issuer import IssuerUnavailable

        try:
            endpoint = await self._issuer.endpoint("authorization_endpoint")
        except IssuerUnavailable as error:
            raise LoginFailed(f"Nobody can sign in just now: {error}.") from None
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        one = LoginTry(state, nonce, verifier, to if len(to.encode()) <= _LONGEST else "/", time.monotonic() + TRY_S)
        text = base64.urlsafe_b64encode(orjson.dumps(list(one))).rstrip(b"=").decode()
        challenge = base64.urlsafe_b64encode(_digest(one.verifier)).rstrip(b"=").decode()
        asked = {
            "response_type": "code", "client_id": self._config.client_id, "redirect_uri": self._back,
            "scope": " ".join(dict.fromkeys(("openid", *self._config.scopes))), "state": one.state, "nonce": one.nonce,
            "code_challenge": challenge, "code_challenge_method": "S256",
        }  # fmt: skip
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(asked)}", f"{text}.{self._mark(text)}"

    async def finish(self, cookie: str, came: Mapping[str, str]) -> tuple[Person, str]:
        """Return the person who signed in, and the page that they wanted, from the cookie and the provider's answer.

        Raises LoginFailed.
        """
        text, _, mark = cookie.rpartition(".")
        known = hmac.compare_digest(mark.encode("utf-8", "replace"), self._mark(text).encode())
        login = LoginTry(*orjson.loads(base64.urlsafe_b64decode(text + "=="))) if known else None
        if login is None or login.until < time.monotonic():
            raise LoginFailed("This sign-in was not begun in this browser, or took longer than ten minutes.")
        if not hmac.compare_digest(login.state.encode(), came.get("state", "").encode("utf-8", "replace")):
            raise LoginFailed("This sign-in is another one's (state).")
        if came.get("iss", self._config.issuer) != self._config.issuer:
            raise LoginFailed("This sign-in is another provider's (iss).")
        if "error" in came or not came.get("code"):
            raise LoginFailed(f"{self.name} let nobody in: {came.get('error', 'no code')[:100]}.")
        return await self._person(came["code"], login), login.to

    def _mark(self, text: str) -> str:
        """Return what shows that a cookie's text is ours, and of this process."""
        return hmac.digest(self._secret, text.encode("utf-8", "replace"), "sha256").hex()

    async def _person(self, code: str, one: LoginTry) -> Person:
        """Return whose code it is. Raises LoginFailed."""
        from gateway.parts.access.keys.issuer import IssuerUnavailable

        form = {
            "grant_type": "authorization_code", "code": code, "redirect_uri": self._back, "code_verifier": one.verifier
        }  # fmt: skip
        client, secret = self._config.client_id, self._config.client_secret
        try:
            token = await self._issuer.exchanged(form, client, None if secret is None else secret.get_secret_value())
            claims = await self._issuer.claims(token, (client,))
            if not hmac.compare_digest(str(claims.get("nonce", "")).encode("utf-8", "replace"), one.nonce.encode()):
                raise BadToken("it is of another sign-in (nonce)")
            if claims.get("azp", client) != client:
                raise BadToken("it was issued to another client (azp)")
            return self._identities.person_of(self._issuer.config, claims)
        except IssuerUnavailable as error:
            raise LoginFailed(f"{error}.") from None
        except BadToken as error:
            raise LoginFailed(f"The id token of {self.name} is not accepted: {error}.") from None
        except Unauthorized as error:
            raise LoginFailed(error.message) from None


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
