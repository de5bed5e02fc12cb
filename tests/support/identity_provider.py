"""A scripted identity provider (OpenID Connect) that refuses what a real one refuses, on a real socket.

    with IdentityProvider() as provider:
        token = provider.token(groups=["platform"])               # an access token for provider.AUDIENCE
        back = provider.sign_in(url)                              # as the browser of a person that was sent to url
        provider.refuse()                                         # it is down, until accept()

Tokens are signed by PyJWT, so that they are made by another library than the one that reads them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from functools import cache
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.support.connection import Received
from tests.support.upstream import Reply, Upstream

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


@cache
def rsa_key(number: int = 0, bits: int = 2048) -> rsa.RSAPrivateKey:
    """An RSA key pair, made once per process."""
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@cache
def ec_key(number: int = 0) -> ec.EllipticCurvePrivateKey:
    """A key pair on P-256, made once per process."""
    return ec.generate_private_key(ec.SECP256R1())


class IdentityProvider(Upstream):
    """See the module's docstring."""

    AUDIENCE = "tierline"
    CLIENT, SECRET = "tierline-console", "s3cret-of-the-console"
    PERSON = "ada"

    def __init__(self) -> None:
        super().__init__()
        self.redirect_uris: set[str] = set()
        """What is registered, to the letter."""
        self.public = False
        """Whether the client has no secret."""
        self.id_claims: dict[str, Any] = {}
        """Claims of id tokens, in place of or beside the usual ones."""
        self.signed_by: tuple[str, PrivateKey] = ("one", rsa_key())
        self.published: dict[str, PrivateKey] = {"one": rsa_key()}
        """Keys by id, of which the public part is in the JWKS."""
        self.more_keys: list[dict[str, Any]] = []
        """Further entries of the JWKS."""
        self.refusals: list[str] = []
        self._codes: dict[str, dict[str, str]] = {}

    @property
    def issuer(self) -> str:
        """Its name."""
        return f"http://127.0.0.1:{self.port}/realms/acme"

    def fetched(self, what: str = "keys") -> int:
        """How often its keys, or another document, were asked for."""
        return sum(request.path.endswith(what) for request in self.probes)

    def claims(self, **more: Any) -> dict[str, Any]:
        """Claims that a gateway accepts, with more or others; those that are None are left out."""
        now = int(time.time())
        usual = {"iss": self.issuer, "aud": self.AUDIENCE, "sub": f"id-of-{self.PERSON}", "iat": now, "exp": now + 300}
        usual["preferred_username"] = f"{self.PERSON}@acme.example"
        return {name: value for name, value in {**usual, **more}.items() if value is not None}

    def token(self, headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """A signed token with these claims."""
        kid, key = self.signed_by
        return sign(self.claims(**claims), key, {"kid": kid, **(headers or {})})

    def rotate(self, kid: str, key: PrivateKey, *, keep: bool = False) -> None:
        """Sign with another key from now on."""
        self.signed_by = kid, key
        self.published = {**(self.published if keep else {}), kid: key}

    def sign_in(self, url: str) -> str:
        """What the browser of the person is sent back to, after it was sent to `url`. AssertionError if it is not."""
        reply = self._authorized({name: one[0] for name, one in parse_qs(urlsplit(url).query).items()})
        assert reply.status == 302, reply.body
        return str(reply.headers["location"])

    def reply_to(self, request: Received) -> Reply:
        """See `Host`."""
        self.probes.append(request)
        path = urlsplit(request.path).path.removeprefix("/realms/acme")
        if path == "/.well-known/openid-configuration":
            return _json(
                {
                    "issuer": self.issuer,
                    "authorization_endpoint": f"{self.issuer}/authorize",
                    "token_endpoint": f"{self.issuer}/token",
                    "jwks_uri": f"{self.issuer}/keys",
                }
            )
        if path == "/keys":
            return _json({"keys": [*(public_jwk(kid, key) for kid, key in self.published.items()), *self.more_keys]})
        if path == "/authorize":
            return self._authorized({name: one[0] for name, one in parse_qs(urlsplit(request.path).query).items()})
        if path == "/token" and request.method == "POST":
            return self._exchanged(request)
        return Reply(status=404, body=b"{}")

    def _authorized(self, asked: dict[str, str]) -> Reply:
        if asked.get("client_id") != self.CLIENT:
            return self._refused("unauthorized_client", "unknown client_id")
        if asked.get("redirect_uri") not in self.redirect_uris:
            return self._refused("invalid_request", "redirect_uri is not registered")
        wrong = [
            name
            for name, right in {
                "response_type": asked.get("response_type") == "code",
                "scope": "openid" in asked.get("scope", "").split(),
                "state": len(asked.get("state", "")) >= 16,
                "nonce": len(asked.get("nonce", "")) >= 16,
                "code_challenge_method": asked.get("code_challenge_method") == "S256",
                "code_challenge": len(asked.get("code_challenge", "")) == 43,
            }.items()
            if not right
        ]
        if wrong:
            return self._refused("invalid_request", f"wrong: {wrong}")
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        back = urlencode({"code": code, "state": asked["state"], "iss": self.issuer})
        return Reply(status=302, body=b"", headers={"location": f"{asked['redirect_uri']}?{back}"})

    def _exchanged(self, request: Received) -> Reply:
        form = {name: values[0] for name, values in parse_qs(request.raw.decode()).items()}
        if not self._is_client(request, form):
            return self._refused("invalid_client", "wrong client credentials", 401)
        asked = self._codes.pop(form.get("code", ""), None)
        if form.get("grant_type") != "authorization_code" or asked is None:
            return self._refused("invalid_grant", "the code is unknown, or was used")
        if form.get("redirect_uri") != asked["redirect_uri"]:
            return self._refused("invalid_grant", "another redirect_uri")
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != asked["code_challenge"]:
            return self._refused("invalid_grant", "code_verifier does not match")
        claims = {"aud": self.CLIENT, "nonce": asked["nonce"], **self.id_claims}
        token = self.token(**claims)
        return _json({"id_token": token, "access_token": self.token(), "token_type": "Bearer", "expires_in": 300})

    def _is_client(self, request: Received, form: dict[str, str]) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme == "Basic":
            name, _, secret = base64.b64decode(given).decode().partition(":")
            return (unquote(name), unquote(secret)) == (self.CLIENT, self.SECRET) and not self.public
        return self.public and form.get("client_id") == self.CLIENT

    def _refused(self, error: str, said: str, status: int = 400) -> Reply:
        self.refusals.append(said)
        return _json({"error": error, "error_description": said}, status)


def sign(claims: dict[str, Any], key: PrivateKey, headers: dict[str, Any], algorithm: str = "") -> str:
    """A token of these claims."""
    algorithm = algorithm or ("RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256")
    return jwt.encode(claims, key, algorithm=algorithm, headers=headers)


def public_jwk(kid: str, key: PrivateKey) -> dict[str, Any]:
    """The public part of a key, as an entry of a JWKS."""
    public: Any = key.public_key()
    kind: Any = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    return {**kind.to_jwk(public, as_dict=True), "kid": kid, "use": "sig"}


def _json(value: Any, status: int = 200) -> Reply:
    return Reply(status=status, body=json.dumps(value).encode(), headers={"content-type": "application/json"})
