"""Ask a gateway how it stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import httpx2
import orjson

_READY_S: Final = 0.5
"""Longest wait for `/readyz`: a page is shown without it."""


class GatewayFailure(Exception):
    """A gateway that does not answer, or not as one; the message says how."""


class GatewayClient:
    """A client of one gateway. It sends the key that it is given, and no other credentials."""

    def __init__(self, url: str, key: str = "") -> None:
        """Prepare requests to `url`, the gateway's address without a path; nothing is sent yet."""
        self.url = url.rstrip("/").removesuffix("/v1")
        self._client = httpx2.AsyncClient(
            base_url=self.url,
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=_READY_S,
            trust_env=False,
        )

    async def aclose(self) -> None:
        """Close its connections."""
        await self._client.aclose()

    async def readiness(self) -> Mapping[str, Any]:
        """Return the body of `/readyz` of one worker: its `status` alone where details need the admin's key.

        Raises GatewayFailure where there is no answer in half a second, or none of a gateway.
        """
        try:
            reply = await self._client.get("/readyz")
        except httpx2.HTTPError as error:
            why = str(error) or f"nothing within {_READY_S:g} s"
            raise GatewayFailure(f"The gateway at {self.url} does not answer ({why}).") from None
        try:
            value = orjson.loads(reply.content)
        except orjson.JSONDecodeError:
            value = None
        if not isinstance(value, dict):
            raise GatewayFailure("The reply is not what a gateway sends.")
        return value
