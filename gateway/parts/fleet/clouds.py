"""Identities of AWS, Google and Microsoft Entra, by the providers' own libraries, imported when one is configured."""

from __future__ import annotations

import math
import os
import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import UTC
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from gateway.backends.base import InvalidReply, Response, whole_body
from gateway.backends.http_backend import media_type_of
from gateway.parts.fleet.identity import CloudIdentity, Credential, NoCredentials, refusal_for

_FRAMES: Final = "application/vnd.amazon.eventstream"
_REGION: Final = re.compile(r"\.([a-z]{2,4}(?:-[a-z]+)+-\d)\.")
_POLLED_S: Final = (60.0, 10.0, 1.0)
"""Seconds between two looks at credentials that their library renews itself; the next where they end within two."""
_FED: Final = 4096
_STATUS_OF: Final = {
    "internalServerException": 500,
    "modelStreamErrorException": 424,
    "modelTimeoutException": 408,
    "serviceUnavailableException": 503,
    "throttlingException": 429,
    "validationException": 400,
}
"""The status that an exception within a stream would have come with."""


def identity_for(auth: Mapping[str, str | None]) -> CloudIdentity:
    """Return the identity that the keys of a backend's or a service's `auth` describe."""
    kind = auth["kind"] or ""
    if kind == "aws":
        return AwsIdentity(auth)
    fetch = _of_google if kind == "google" else partial(_of_entra, auth.get("client_id"))
    return BearerIdentity(partial(fetch, auth.get("scope") or _SCOPES[kind]))


class BearerIdentity(CloudIdentity):
    """An account whose requests hold a token."""

    def __init__(self, fetch: Callable[[], tuple[str, float]]) -> None:
        """`fetch` returns a token and the Unix time at which it ends. Raises NoCredentials."""
        super().__init__()
        self._fetch = fetch

    def fetch(self) -> Credential:
        """See `CloudIdentity.fetch`."""
        token, ends = self._fetch()
        return Credential({"Authorization": f"Bearer {token}"}, (token,), ends)

    def sign(self, credential: Credential, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Any:
        """See `CloudIdentity.sign`."""
        return credential.value


_SCOPES: Final = {
    "google": "https://www.googleapis.com/auth/cloud-platform",
    "entra": "https://cognitiveservices.azure.com/.default",
}


def _of_google(scope: str) -> tuple[str, float]:
    """Return a token of the application default credentials: a service account, workload identity, a machine's own."""
    import google.auth
    from google.auth.credentials import with_scopes_if_required
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request

    try:
        # Given to `default`, the scope would have it ask another service for the name of the project.
        credentials: Any = with_scopes_if_required(google.auth.default()[0], [scope])  # type: ignore[no-untyped-call]
        credentials.refresh(Request())
    except (GoogleAuthError, OSError, ValueError) as error:
        raise NoCredentials(f"Google: {error.args[0] if error.args else error}") from error
    expiry = credentials.expiry
    return credentials.token, math.inf if expiry is None else expiry.replace(tzinfo=UTC).timestamp()


def _of_entra(client_id: str | None, scope: str) -> tuple[str, float]:
    """Return a token of the default credential: a service principal, workload or managed identity, the Azure CLI."""
    from azure.core.exceptions import AzureError
    from azure.identity import DefaultAzureCredential

    chosen = {} if client_id is None else {"managed_identity_client_id": client_id}
    try:
        with DefaultAzureCredential(**chosen) as credential:
            token = credential.get_token(scope)
    except (AzureError, OSError, ValueError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = next((line for line in lines if "AADSTS" in line), lines[0] if lines else "")
        raise NoCredentials(f"Entra: {said}") from error
    return token.token, token.expires_on


class AwsIdentity(CloudIdentity):
    """An account of AWS, whose requests are signed (SigV4). What `auth` leaves out is read from the URL.

    botocore renews the credentials of roles by itself, some 15 minutes before they end, whenever they are looked at.
    """

    def __init__(self, auth: Mapping[str, str | None]) -> None:
        super().__init__()
        self._auth = auth
        self._credentials: Any = None
        self._region = auth.get("region") or ""

    def fetch(self) -> Credential:
        """See `CloudIdentity.fetch`. Where they are found is looked for anew after a failure and after a refusal."""
        import botocore.auth  # what signing and reading need, imported in this thread and not on the loop
        import botocore.eventstream  # noqa: F401
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.session import Session

        try:
            credentials = self._credentials
            if credentials is None or self.failure:
                session = Session(profile=self._auth.get("profile"))
                in_files = session.get_config_variable("region") or os.environ.get("AWS_REGION")
                self._region = self._auth.get("region") or in_files or ""
                session.set_config_variable("region", self._region or None)
                credentials = self._credentials = session.get_credentials()
            if credentials is None:
                raise NoCredentials("AWS: none in the environment, the shared files, the container or the machine")
            frozen = credentials.get_frozen_credentials()
        except (BotoCoreError, ClientError, OSError, ValueError, RuntimeError) as error:
            raise NoCredentials(f"AWS: {error}") from error
        ends_within = getattr(credentials, "refresh_needed", None)
        pause_s = next((wait for wait in _POLLED_S if ends_within is None or not ends_within(2 * wait)), _POLLED_S[-1])
        secrets = tuple(secret for secret in (frozen.secret_key, frozen.token, frozen.access_key) if secret)
        return Credential(frozen, secrets, renew_s=pause_s)

    def sign(self, credential: Credential, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Any:
        """See `CloudIdentity.sign`."""
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest

        host = urlsplit(url).hostname or ""
        in_url = _REGION.search(host)
        region = self._auth.get("region") or (in_url[1] if in_url else self._region)
        if not region:
            raise refusal_for("AWS: no region in `auth`, the URL or the environment")
        service = self._auth.get("service") or ("bedrock-mantle" if host.startswith("bedrock-mantle.") else "bedrock")
        given = {name: value for name, value in headers.items() if name.lower().startswith(("content-type", "x-amz"))}
        request = AWSRequest(method=method, url=url, headers=given, data=body)
        SigV4Auth(credential.value, service, region).add_auth(request)
        return dict(request.headers.items())

    def reply(self, response: Response) -> Response:
        """Return the reply; a stream in frames as the server-sent events that are in them."""
        return FramedStream(response) if media_type_of(response) == _FRAMES else response


class FramedStream:
    """Read a stream in AWS's frames (`vnd.amazon.eventstream`) as server-sent events."""

    def __init__(self, response: Response) -> None:
        from botocore.eventstream import EventStreamBuffer, ParserError

        self._wrong = (ParserError, LookupError, ValueError, TypeError, AttributeError)
        self.status = response.status
        self.close = response.close
        self._response = response
        self._frames = EventStreamBuffer()

    def header(self, name: str) -> str | None:
        """See `Response.header`."""
        return "text/event-stream" if name.lower() == "content-type" else self._response.header(name)

    async def read(self) -> bytes:
        """See `Response.read`."""
        return await whole_body(self.chunk)

    async def chunk(self) -> bytes:
        """See `Response.chunk`. Raises InvalidReply for a frame whose checksum is wrong."""
        while part := await self._response.chunk():
            events: list[bytes] = []
            try:
                for start in range(0, len(part), _FED):  # the buffer moves all that is in it for each frame
                    self._frames.add_data(part[start : start + _FED])
                    events += [_event_in(frame.headers, orjson.loads(frame.payload or b"{}")) for frame in self._frames]
            except self._wrong:
                raise InvalidReply("a stream that is not in AWS's frames") from None
            if said := b"".join(events):
                return said
        return b""


def _event_in(headers: Mapping[str, Any], payload: Any) -> bytes:
    """Return what a frame holds as a server-sent event; b'' where it has nothing for us."""
    if headers.get(":message-type") == "event":
        return b"data: %b\n\n" % b64decode(payload["bytes"]) if "bytes" in payload else b""
    kind = str(headers.get(":exception-type") or headers.get(":error-code") or "")
    message = payload.get("message") or headers.get(":error-message")
    error = {"code": _STATUS_OF.get(kind, 500), "type": kind, "message": message}
    return b"data: %b\n\n" % orjson.dumps({"type": "error", "error": error})
