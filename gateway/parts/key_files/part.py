"""Provide the seam `tasks` of `gateway.seams`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.parts.key_files.key_files import KeyFileWatcher

if TYPE_CHECKING:
    from gateway.steps import Core


def build_tasks(core: Core) -> Mapping[str, KeyFileWatcher]:
    """Return what has the keys of tenants, backends and others read again when their files change."""
    files = KeyFileWatcher()
    core.authenticator.watch(files)
    for endpoint in core.endpoints.values():
        if endpoint.config.key_file is not None and endpoint.config.configured:
            endpoint.key.look = files.watch_one(endpoint.config.key_file, endpoint.rekey)
    for api in core.client_apis:
        api.watch_keys(files)
    return {"key files": files}
