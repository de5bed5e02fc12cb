"""Define the config of `http`: which client calls a backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator, model_validator

from gateway.config.backends import Http
from gateway.config.notations import OptionalText

if TYPE_CHECKING:
    from gateway.backends.base import Transport


class HttpClient(Http):
    """HTTP client for a backend: `http1` (own, on httptools) or `httpx2` (HTTP/2, proxies)."""

    client: Literal["http1", "httpx2"] = "http1"
    http2: bool = False
    proxy: OptionalText = Field(default=None, repr=False)
    """URL of an http:// or https:// proxy; may hold a password, so it is not printed."""

    @model_validator(mode="before")
    @classmethod
    def _client_fits(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("client") == "aiohttp":
            raise ValueError("there is no client aiohttp any more: leave it out, http1 does the same for less CPU time")
        if not isinstance(data, Mapping) or not (data.get("http2") or data.get("proxy")):
            return data
        if data.get("client") == "http1":
            raise ValueError("http2 and proxy need client: httpx2")
        return {**data, "client": "httpx2"}

    @field_validator("proxy")
    @classmethod
    def _proxy_is_http(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("a proxy is an http:// or https:// URL")
        return value

    def transport(self, url: str, *, max_in_flight: int, connect_timeout_s: float, max_reply: int) -> Transport:
        """See `Http.transport`."""
        limits = {"max_in_flight": max_in_flight, "max_reply": max_reply}
        if self.client == "http1":
            return super().transport(url, connect_timeout_s=connect_timeout_s, **limits)
        from gateway.parts.fleet.httpx2_transport import Httpx2Transport

        return Httpx2Transport(url, connect_timeout_s=connect_timeout_s, http2=self.http2, proxy=self.proxy, **limits)
