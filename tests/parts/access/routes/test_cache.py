"""Who may use the admin API."""

from __future__ import annotations

import pytest
from pydantic import SecretStr
from starlette.requests import Request

from gateway.errors import RateLimited, Unauthorized
from gateway.parts.access.admin_api import gatekeeper
from gateway.parts.access.config import Admin, IdentityConfig
from gateway.parts.access.keys.identities import Identities


def request(key: str, address: str = "192.0.2.1") -> Request:
    headers = [(b"authorization", b"Bearer " + key.encode())] if key else []
    return Request({"type": "http", "headers": headers, "client": (address, 1), "method": "GET", "path": "/"})


async def test_after_ten_wrong_admin_keys_another_wrong_one_has_to_wait() -> None:
    """A request without a key counts for nothing; right keys and other addresses are let in."""
    admitted = gatekeeper(Admin(key=SecretStr("the-admin-key"), key_env="ADMIN_KEY"), Identities(IdentityConfig()))
    for key in [""] * 20 + ["wrong"] * 10:
        with pytest.raises(Unauthorized):
            await admitted(request(key))
    with pytest.raises(RateLimited):
        await admitted(request("wrong"))
    await admitted(request("the-admin-key"))
    with pytest.raises(Unauthorized):
        await admitted(request("wrong", "192.0.2.2"))
