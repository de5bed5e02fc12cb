"""One gateway for all clients: two tiers of scripted models, a third that is busy at first, and a real store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.clients.scripted import asked, script
from tests.support.gateway import CHAT, Gateway, config, environment, running, secrets_of, write_deployment
from tests.support.store import LocalStore
from tests.support.upstream import Received, Upstream

FLAKY = CHAT.replace("surface: chat", "surface: flaky").replace("[chat, gpt-4o-mini]", "[flaky]")
FLAKY = FLAKY.replace("[local, hosted]", "[flaky]").replace("{local: otherwise}", "{flaky: otherwise}")
MORE = ("refused", "standard", "override")
"""Surfaces with a tier and a model of their name: one that refuses, and those of LangChain's standard tests."""
_ABLE = ["tools", "json", "vision", "audio", "files"]


@dataclass(frozen=True)
class ClientsSetup:
    """The gateway and the models behind it."""

    gateway: Gateway
    local: Upstream
    hosted: Upstream

    def calls(self, client: str, scenario: str) -> list[Received]:
        """Return the calls of models that a client's scenario caused."""
        requests = [*self.local.requests, *self.hosted.requests]
        return [request for request in requests if asked(request) == (scenario, client)]


@pytest.fixture(scope="session")
def clients(
    _upstreams: tuple[Upstream, Upstream], _store: LocalStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClientsSetup]:
    """The gateway, with the models scripted."""
    local, hosted = _upstreams
    local.reset()
    hosted.reset()
    script(local, hosted)
    folder = tmp_path_factory.mktemp("clients")
    deployment = config(local.url, hosted.url, _store.url)
    flaky = {"base_url": local.url, "model": "flaky", "capabilities": ["tools", "json"]}
    deployment["tiers"].append({"name": "flaky", "backends": [flaky]})
    policies = {"chat": CHAT, "flaky": FLAKY}
    for name in MORE:
        backend = {"base_url": local.url, "model": name, "capabilities": [*_ABLE]}
        deployment["tiers"].append({"name": name, "backends": [backend]})
        policies[name] = FLAKY.replace("flaky", name)
    write_deployment(folder, deployment, policies)
    with running(folder, environment(**secrets_of(hosted.url)), forked=True) as gateway:
        yield ClientsSetup(gateway, local, hosted)
