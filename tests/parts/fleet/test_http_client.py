"""The config of the HTTP client that calls a backend."""

from __future__ import annotations

from gateway.config.backends import BackendConfig
from gateway.parts.fleet.http_client import HttpClient


def test_http2_or_a_proxy_means_httpx2() -> None:
    """Only httpx2 has them, so asking for them is asking for it."""
    assert HttpClient().client == "http1"
    assert HttpClient(http2=True).client == "httpx2"
    assert HttpClient(proxy="http://p:1").client == "httpx2"


def test_a_backend_with_keys_of_the_client_has_it() -> None:
    """One without is called by the core's own."""
    plain = BackendConfig.model_validate({"model": "m"}).http
    proxied = BackendConfig.model_validate({"model": "m", "http": {"proxy": "http://p:1"}}).http
    assert not isinstance(plain, HttpClient)
    assert isinstance(proxied, HttpClient) and proxied.client == "httpx2"
