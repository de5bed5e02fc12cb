"""What `/readyz` says, of a gateway that nobody has asked anything."""

from __future__ import annotations

import math
import time
from pathlib import Path

import httpx2
import yaml

from gateway.assembly import build
from gateway.config.launch import Launch
from gateway.parts.hit_audits.audit import Audits
from gateway.parts.hit_audits.groups import Batch, Label
from gateway.server.app import App
from gateway.steps import Steps
from policies.caching import SemanticCache
from tests.support.app import in_process
from tests.support.gateway import CHAT, config, write_policies


def steps_of(folder: Path, environ: dict[str, str]) -> Steps:
    """A gateway whose two tiers both want a key."""
    write_policies(folder / "policies", {"chat": CHAT})
    deployment = config("http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1")
    deployment["tiers"][0]["backends"][0]["key_env"] = "LOCAL_KEY"
    (folder / "tierline.yaml").write_text(yaml.safe_dump(deployment))
    launch = Launch(config=folder / "tierline.yaml", policies=folder / "policies")
    loaded = launch.deployment(environ)
    return build(loaded, launch.policy_source(loaded))


async def readyz(folder: Path, environ: dict[str, str]) -> httpx2.Response:
    """What such a gateway says."""
    return await asked(steps_of(folder, environ))


async def asked(steps: Steps) -> httpx2.Response:
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=App(steps)), base_url="http://127.0.0.1"
    ) as client:
        return await client.get("/readyz")


async def test_a_breach_of_the_caches_bound_is_said_for_the_language_and_the_tenant(tmp_path: Path) -> None:
    """Where the surface as a whole keeps it. A threshold that nothing reaches has no number."""
    steps = steps_of(tmp_path, {"HOSTED_KEY": "k"})
    audits = steps.cache.bound
    assert isinstance(audits, Audits)
    surface, now = audits.surface("chat", SemanticCache(ttl="6h"), math.inf), time.time()
    wrong = (Label(0.95, True, 10.0, language="Han", owner="tenant:desk"),) * 3
    surface.control.threshold = 0.9
    languages, owners = {"Latin": 19_600, "Han": 400}, {"tenant:acme": 19_600, "tenant:desk": 400}
    surface.fold(Batch(20_000, (0.95,) * 9, wrong, languages=languages, owners=owners), now, now)
    report = (await asked(steps)).json()
    whose = ["language Han", "tenant desk"]
    assert [line for line in report["degraded"] if line.startswith("semantic cache")] == [
        f"semantic cache of chat, {group}: more wrong hits than its max_error; its own threshold was raised"
        for group in whose
    ]
    assert report["semantic_thresholds"] == {
        "chat": {"threshold": None, "labels": 3, "breached": False, "breached_groups": whose}
    }


async def test_without_a_configured_tier_it_is_not_ready(tmp_path: Path) -> None:
    """Nothing could be answered until somebody changes its config: that is a 503; one tier is enough for a 200."""
    nothing = await readyz(tmp_path, {})
    assert (nothing.status_code, nothing.json()["status"]) == (503, "unavailable")
    (missed,) = [line for line in nothing.json()["degraded"] if line.startswith("surface chat: ")]
    assert "LOCAL_KEY is not set" in missed
    one = await readyz(tmp_path, {"HOSTED_KEY": "k"})
    assert (one.status_code, one.json()["status"]) == (200, "degraded")


async def test_a_service_without_its_key_is_degraded_where_a_surface_names_it(tmp_path: Path) -> None:
    """One that nobody names is listed alone."""
    services = {name: {"base_url": "http://127.0.0.1:9/v1", "key_env": "NO_KEY"} for name in ("named", "spare")}
    policy = CHAT + "endpoints: {audio: named}\n"
    async with in_process(
        tmp_path, "http://127.0.0.1:9/v1", policies={"chat": policy}, settings={"services": services}
    ) as app:
        report = (await app.get("/readyz")).json()
    assert report["services"] == dict.fromkeys(services, "NO_KEY is not set")
    assert [line for line in report["degraded"] if "service" in line] == ["service named: NO_KEY is not set"]
