"""Scripted clouds that let in who the providers would: Bedrock (SigV4), Vertex (Google tokens), Azure (Entra tokens).

    with Bedrock() as aws:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", aws.credentials_url)   # each fetch gets new ones
        ...                                                                             # aws.origin is the base URL

Signatures are computed anew from the bytes that came, by the provider's published rules and by none of its libraries.
What is issued ends after `life_s`, and what has ended is refused.
"""

from __future__ import annotations

import base64
import calendar
import hashlib
import hmac
import json
import re
import struct
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.connection import Received
from tests.support.strict_messages import StrictMessages, events_of
from tests.support.upstream import Reply

_SIGNED = re.compile(r"AWS4-HMAC-SHA256 Credential=(\S+), SignedHeaders=(\S+), Signature=([0-9a-f]{64})")
_SKEW_S = 300


class _TurnedAwayError(Exception):
    """Status, type and words of a refusal."""


@dataclass
class Issued:
    """A credential that was given out: `secret` is a token, or what requests are signed with."""

    secret: str
    ends: float
    session: str = ""
    used: int = 0


class Cloud(StrictMessages):
    """What the clouds have in common: they issue what ends, and count who used which."""

    def __init__(self, life_s: float = 3600.0) -> None:
        super().__init__()
        self.life_s = life_s
        self.issued: dict[str, Issued] = {}
        """What was given out, by its name or the token itself, in order."""
        self.refused: list[str] = []
        """What requests were refused for."""
        self.failing = False
        """Whether nothing is issued any more."""

    @property
    def origin(self) -> str:
        """The URL without a path."""
        return f"http://127.0.0.1:{self.port}"

    async def _reset(self) -> None:
        await super()._reset()
        self.issued.clear()
        self.refused.clear()
        self.failing = False
        self.life_s = 3600.0

    def token(self, prefix: str) -> str:
        """Issue a token."""
        made = f"{prefix}{len(self.issued) + 1:03}{hashlib.sha256(str(time.time_ns()).encode()).hexdigest()[:24]}"
        self.issued[made] = Issued(made, time.time() + self.life_s)
        return made

    def check_bearer(self, request: Received) -> None:
        """Raise unless the request has a token that holds."""
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        one = self.issued.get(token)
        if one is None or one.ends < time.time():
            raise _TurnedAwayError(401, "UNAUTHENTICATED", f"invalid authentication credentials: {token}")
        one.used += 1

    def claude(self, request: Received, model: str, version: str, *, stream: bool) -> dict[str, Any] | Reply:
        """The message for a body without its model, or the refusal."""
        body = dict(request.body)
        said = None
        if "model" in body or body.pop("anthropic_version", None) != version:
            said = "anthropic_version: Field required, and the model is in the URL"
        headers = {"anthropic-beta": ",".join(body.pop("anthropic_beta", []))}
        said = said or self.refusal_of({**body, "model": model, "stream": stream}, headers)
        if said:
            self.refusals.append(said)
            return Reply(status=400, body=json.dumps({"message": said}).encode(), headers=_of("ValidationException"))
        return self._message({**body, "model": model})


def _of(kind: str) -> dict[str, str]:
    return {"x-amzn-ErrorType": f"{kind}:http://internal.amazon.com/coral/com.amazon.bedrock/"}


class Bedrock(Cloud):
    """Bedrock in one region: `invoke`, `invoke-with-response-stream`, Anthropic's own API, and OpenAI's."""

    REGION = "eu-west-7"

    def __init__(self, life_s: float = 3600.0) -> None:
        super().__init__(life_s)
        self.skew_s = 0.0
        """By how much its clock is ahead."""
        self.web_identity = SigningKey()
        """What a cluster signs its pods' tokens with."""
        self.broken_after: str | None = None
        """The exception that a stream breaks with after its second event."""

    @property
    def credentials_url(self) -> str:
        """Where a container gets its credentials."""
        return f"{self.origin}/credentials"

    def _of_a_machine(self, request: Received) -> Reply | None:
        """The instance's metadata service (version 2), and the token service for web identities; None for others."""
        self.probes.append(request)
        if (request.method, request.path) == ("PUT", "/latest/api/token"):
            return Reply(body=b"session-of-the-machine", headers={"x-aws-ec2-metadata-token-ttl-seconds": "21600"})
        roles = "/latest/meta-data/iam/security-credentials/"
        if request.path.startswith(roles):
            if request.headers.get("x-aws-ec2-metadata-token") != "session-of-the-machine":
                return Reply(status=401, body=b"")
            if request.path == roles:
                return Reply(body=b"gateway")
            return Reply(body=json.dumps({"Code": "Success", "Type": "AWS-HMAC", **self.issue()}).encode())
        form = {name: values[0] for name, values in parse_qs(request.raw.decode()).items()}
        if request.path == "/" and form.get("Action") == "AssumeRoleWithWebIdentity":
            self.web_identity.claims(form["WebIdentityToken"], "sts.amazonaws.com")
            made = self.issue()
            made["SessionToken"] = made.pop("Token")
            inner = "".join(f"<{name}>{value}</{name}>" for name, value in made.items())
            result = f"<AssumeRoleWithWebIdentityResult><Credentials>{inner}</Credentials>"
            result += (
                "</AssumeRoleWithWebIdentityResult><ResponseMetadata><RequestId>one</RequestId></ResponseMetadata>"
            )
            response = f"<AssumeRoleWithWebIdentityResponse>{result}</AssumeRoleWithWebIdentityResponse>"
            return Reply(body=response.encode(), headers={"content-type": "text/xml"})
        self.probes.pop()
        return None

    def issue(self) -> dict[str, str]:
        """New credentials of a role, as a container gets them."""
        name = f"ASIA{len(self.issued) + 1:016}"
        secret, session = (hashlib.sha256(f"{name}{kind}".encode()).hexdigest() for kind in ("secret", "session"))
        ends = time.time() + self.life_s
        self.issued[name] = Issued(secret, ends, session)
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ends))
        return {"AccessKeyId": name, "SecretAccessKey": secret, "Token": session, "Expiration": at}

    def reply_to(self, request: Received) -> Reply:
        """See `Host`."""
        if request.path == "/credentials":
            self.probes.append(request)
            return Reply(status=500, body=b"{}") if self.failing else Reply(body=json.dumps(self.issue()).encode())
        if (reply := self._of_a_machine(request)) is not None:
            return reply
        try:
            self._check_signature(request)
        except _TurnedAwayError as refused:
            status, kind, said = refused.args
            self.refused.append(said)
            return Reply(status=status, body=json.dumps({"message": said}).encode(), headers=_of(kind))
        found = re.fullmatch(r"/model/([^/]+)/(invoke|invoke-with-response-stream)", request.path)
        if request.path == "/anthropic/v1/messages":
            request.headers["x-api-key"] = self.KEY
            request.path = "/v1/messages"
        if found is None:
            return super().reply_to(request)
        self.requests.append(request)
        if self._queue:
            return self._queue.popleft()
        streamed = found[2] != "invoke"
        message = self.claude(request, unquote(found[1]), "bedrock-2023-05-31", stream=streamed)
        if isinstance(message, Reply):
            return message
        if not streamed:
            return Reply(body=json.dumps(message).encode())
        events = [frame({"bytes": base64.b64encode(json.dumps(one).encode()).decode()}) for one in events_of(message)]
        if self.broken_after is not None:
            events = [*events[:2], frame({"message": "too many"}, **{":exception-type": self.broken_after})]
        return Reply(body=b"".join(events), headers={"content-type": "application/vnd.amazon.eventstream"})

    def _check_signature(self, request: Received) -> None:
        """Raise unless the request is signed as AWS's guide to Signature Version 4 says, and for here and now."""
        parts = _SIGNED.fullmatch(request.headers.get("authorization", ""))
        if parts is None:
            raise _TurnedAwayError(403, "MissingAuthenticationTokenException", "Missing Authentication Token")
        name, day, region, service, end = parts[1].split("/")
        one, headers = self.issued.get(name), request.headers
        if one is None:
            raise _TurnedAwayError(403, "UnrecognizedClientException", "The security token is invalid.")
        if one.ends < time.time():
            raise _TurnedAwayError(403, "ExpiredTokenException", "The security token is expired")
        if headers.get("x-amz-security-token", "") != one.session:
            raise _TurnedAwayError(403, "UnrecognizedClientException", "The security token is another's.")
        at = calendar.timegm(time.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ"))
        if abs(time.time() + self.skew_s - at) > _SKEW_S:
            raise _TurnedAwayError(403, "InvalidSignatureException", "Signature expired")
        if (day, region, service, end) != (headers["x-amz-date"][:8], self.REGION, "bedrock", "aws4_request"):
            raise _TurnedAwayError(
                403, "InvalidSignatureException", f"Credential should be scoped to a valid region: {region}"
            )
        signed = parts[2].split(";")
        wanted = {"host", *(header for header in headers if header.startswith(("content-type", "x-amz-")))}
        if signed != sorted(signed) or not wanted <= set(signed):
            raise _TurnedAwayError(403, "InvalidSignatureException", "headers are not signed")
        path, _, query = request.path.partition("?")
        canonical = "\n".join(
            [
                request.method,
                quote(path, safe="/-._~"),
                query,
                *(f"{header}:{' '.join(headers[header].split())}" for header in signed),
                "",
                parts[2],
                hashlib.sha256(request.raw).hexdigest(),
            ]
        )
        scope = f"{day}/{region}/{service}/{end}"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        key = f"AWS4{one.secret}".encode()
        for step in (day, region, service, end, f"AWS4-HMAC-SHA256\n{headers['x-amz-date']}\n{scope}\n{digest}"):
            key = hmac.new(key, step.encode(), hashlib.sha256).digest()
        if not hmac.compare_digest(key.hex(), parts[3]):
            raise _TurnedAwayError(403, "InvalidSignatureException", "The signature does not match")
        one.used += 1


def frame(payload: dict[str, Any], **more: str) -> bytes:
    """One message of `vnd.amazon.eventstream`: an exception if it is said to be one."""
    kind = "exception" if ":exception-type" in more else "event"
    headers = {":message-type": kind, ":content-type": "application/json", **({} if more else {":event-type": "chunk"})}
    encoded = b"".join(
        struct.pack("!B", len(name)) + name.encode() + struct.pack("!BH", 7, len(value)) + value.encode()
        for name, value in {**headers, **more}.items()
    )
    body = json.dumps(payload).encode()
    prelude = struct.pack("!II", 16 + len(encoded) + len(body), len(encoded))
    prelude += struct.pack("!I", zlib.crc32(prelude))
    whole = prelude + encoded + body
    return whole + struct.pack("!I", zlib.crc32(whole))


class SigningKey:
    """An RSA key pair: what signs assertions, and what checks them."""

    def __init__(self) -> None:
        self.private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.pem = self.private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()

    def claims(self, assertion: str, audience: str) -> dict[str, Any]:
        """The claims of an assertion; raises unless the key has signed it, for this audience, and it holds."""
        try:
            claims: dict[str, Any] = jwt.decode(
                assertion, self.private.public_key(), algorithms=["RS256"], audience=audience
            )
        except jwt.PyJWTError as error:
            raise _TurnedAwayError(400, "invalid_grant", f"Invalid JWT Signature: {error}") from None
        return claims

    def assertion(self, **claims: Any) -> str:
        """A signed assertion that holds for an hour."""
        return jwt.encode({"exp": int(time.time()) + 3600, **claims}, self.private, algorithm="RS256")


class Vertex(Cloud):
    """Vertex: Google's token endpoint for service accounts, `rawPredict`, `streamRawPredict`, and OpenAI's API."""

    ACCOUNT = "robot@project.iam.gserviceaccount.com"
    PROJECT = "/v1/projects/project/locations/global"
    POOL = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/pool/providers/cluster"

    def __init__(self, life_s: float = 3600.0) -> None:
        super().__init__(life_s)
        self.key = SigningKey()

    def account_file(self) -> str:
        """The text of the key file of the service account."""
        return json.dumps(
            {
                "type": "service_account",
                "client_email": self.ACCOUNT,
                "private_key_id": "one",
                "private_key": self.key.pem,
                "token_uri": f"{self.origin}/token",
                "project_id": "project",
            }
        )

    def reply_to(self, request: Received) -> Reply:
        """See `Host`."""
        try:
            if request.path in ("/token", "/sts"):
                self.probes.append(request)
                return self._token(request) if request.path == "/token" else self._exchanged(request)
            self.check_bearer(request)
        except _TurnedAwayError as refused:
            status, kind, said = refused.args
            self.refused.append(said)
            error = {"code": status, "status": kind, "message": said}
            told = {"error": kind, "error_description": said} if request.path == "/token" else {"error": error}
            return Reply(status=status, body=json.dumps(told).encode())
        found = re.fullmatch(rf"{self.PROJECT}/publishers/anthropic/models/([^/]+):(\w+)", request.path)
        if found is None:
            return super().reply_to(request)
        self.requests.append(request)
        streamed = bool(request.body.pop("stream", False))
        assert found[2] == ("streamRawPredict" if streamed else "rawPredict")
        message = self.claude(request, found[1], "vertex-2023-10-16", stream=streamed)
        if isinstance(message, Reply):
            return message
        if not streamed:
            return Reply(body=json.dumps(message).encode())
        events = (
            b"event: %b\ndata: %b\n\n" % (one["type"].encode(), json.dumps(one).encode()) for one in events_of(message)
        )
        return Reply(body=b"".join(events), headers={"content-type": "text/event-stream"})

    def _token(self, request: Received) -> Reply:
        form = {name: values[0] for name, values in parse_qs(request.raw.decode()).items()}
        if self.failing or form.get("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer":
            raise _TurnedAwayError(400, "unsupported_grant_type", "Invalid grant_type")
        claims = self.key.claims(form["assertion"], "https://oauth2.googleapis.com/token")
        if claims["iss"] != self.ACCOUNT or "cloud-platform" not in claims["scope"]:
            raise _TurnedAwayError(400, "invalid_scope", "Invalid OAuth scope or ID token audience provided.")
        given = {"access_token": self.token("ya29."), "expires_in": int(self.life_s), "token_type": "Bearer"}
        return Reply(body=json.dumps(given).encode())

    def federation_file(self, token_file: Path) -> str:
        """The text of a file for workload identity federation: a token of another issuer is exchanged for Google's."""
        return json.dumps(
            {
                "type": "external_account",
                "audience": self.POOL,
                "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
                "token_url": f"{self.origin}/sts",
                "credential_source": {"file": str(token_file)},
            }
        )

    def _exchanged(self, request: Received) -> Reply:
        form = {name: values[0] for name, values in parse_qs(request.raw.decode()).items()}
        claims = self.key.claims(form["subject_token"], "pool")
        asked = (form["grant_type"], form["audience"], claims["sub"])
        if asked != ("urn:ietf:params:oauth:grant-type:token-exchange", self.POOL, "gateway"):
            raise _TurnedAwayError(400, "invalid_grant", f"no such identity: {asked}")
        given = {"access_token": self.token("ya29.f."), "expires_in": int(self.life_s), "token_type": "Bearer"}
        given["issued_token_type"] = "urn:ietf:params:oauth:token-type:access_token"
        return Reply(body=json.dumps(given).encode())


class Azure(Cloud):
    """Azure OpenAI, and Entra's token endpoint for a workload identity: put TLS in front of it (`tls_front`)."""

    TENANT, CLIENT = "11111111-2222-3333-4444-555555555555", "66666666-7777-8888-9999-000000000000"
    SCOPE = "https://cognitiveservices.azure.com/.default"

    def __init__(self, life_s: float = 3600.0) -> None:
        super().__init__(life_s)
        self.key = SigningKey()

    def federated_token(self) -> str:
        """What a cluster puts into a pod's file: its assertion of who the pod is."""
        return self.key.assertion(sub="system:serviceaccount:team:gateway", aud="api://AzureADTokenExchange")

    def reply_to(self, request: Received) -> Reply:
        """See `Host`."""
        try:
            if request.path == f"/{self.TENANT}/oauth2/v2.0/token":
                self.probes.append(request)
                return self._token(request)
            self.check_bearer(request)
        except _TurnedAwayError as refused:
            status, kind, said = refused.args
            self.refused.append(said)
            told = {"error": kind, "error_description": f"AADSTS700027: {said}"}
            return Reply(status=status, body=json.dumps(told).encode())
        if request.path.startswith("/anthropic/"):
            request.headers["x-api-key"] = self.KEY
            request.path = request.path.removeprefix("/anthropic")
        return super().reply_to(request)

    def _token(self, request: Received) -> Reply:
        form = {name: values[0] for name, values in parse_qs(request.raw.decode()).items()}
        if (
            self.failing
            or form.get("client_assertion_type") != "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
        ):
            raise _TurnedAwayError(401, "invalid_client", "The certificate is not registered on application.")
        claims = self.key.claims(form["client_assertion"], "api://AzureADTokenExchange")
        asked = (form["grant_type"], form["client_id"], form["scope"], claims["sub"])
        if asked != ("client_credentials", self.CLIENT, self.SCOPE, "system:serviceaccount:team:gateway"):
            raise _TurnedAwayError(400, "invalid_request", f"No matching federated identity record: {asked}")
        given = {"access_token": self.token("eyJ0."), "expires_in": int(self.life_s), "token_type": "Bearer"}
        return Reply(body=json.dumps(given).encode())
