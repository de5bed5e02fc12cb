"""Provide the seam `console`: where the console listens that `tierline up` starts."""

from __future__ import annotations

from gateway.config.schema import Deployment
from gateway.parts.access.keys.records import SECRET as KEY_SECRET
from gateway.parts.console.config import ConsoleSections
from gateway.seams import ConsolePlace


def console_place(deployment: Deployment) -> ConsolePlace | None:
    """Return where the console listens; None where the config says not to start it."""
    config = deployment.of(ConsoleSections).console
    if not config.enabled:
        return None
    secret = config.login.client_secret_env if config.login is not None else None
    keys = (config.key_env, config.viewer_key_env, config.admin_key_env, config.gateway_key_env)
    return ConsolePlace(config.host, config.port, config.gateway, tuple(filter(None, (*keys, secret, KEY_SECRET))))
