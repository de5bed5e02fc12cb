"""Who may use the admin API."""

from __future__ import annotations

import pytest
from pydantic import SecretStr
from starlette.requests import Request

from gateway.config.schema import Admin
from gateway.errors import RateLimited, Unauthorized
from gateway.http.api import gatekeeper


def request(key: str, address: str = "192.0.2.1") -> Request:
    headers = [(b"authorization", b"Bearer " + key.encode())] if key else []
    return Request({"type": "http", "headers": headers, "client": (address, 1), "method": "GET", "path": "/"})


def test_after_ten_wrong_admin_keys_none_of_that_address_is_looked_at() -> None:
    """A request without a key is refused, and counts for nothing; other addresses are served."""
    admitted = gatekeeper(Admin(key=SecretStr("the-admin-key"), key_env="ADMIN_KEY"))
    for key in [""] * 20 + ["wrong"] * 10:
        with pytest.raises(Unauthorized):
            admitted(request(key))
    for key in ("wrong", "the-admin-key"):
        with pytest.raises(RateLimited):
            admitted(request(key))
    admitted(request("the-admin-key", "192.0.2.2"))
