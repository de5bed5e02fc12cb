"""What `/readyz` says, of a gateway that nobody has asked anything."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import time
from pathlib import Path

import httpx2
import pytest
import yaml

from cache import shipped_cross_encoder
from gateway.assembly import build
from gateway.cli.main import main
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


async def test_a_cross_encoder_that_is_not_open_yet_is_told(tmp_path: Path) -> None:
    """Until it is, soon after the start: that is no fault, so it degrades nothing."""
    pytest.importorskip("onnxruntime", reason="the encoders' libraries are not installed")
    version = json.loads((shipped_cross_encoder() / "sheet.json").read_bytes())["files_version"]
    async with in_process(tmp_path, "http://127.0.0.1:9/v1", settings={"cross_encoder": "default"}) as app:
        began = (await app.get("/readyz")).json()
        async with asyncio.timeout(30):
            while (report := (await app.get("/readyz")).json())["cross_encoder"]["state"] != "open":
                await asyncio.sleep(0.05)
    assert began["cross_encoder"] == {"version": version, "state": "not open yet"}
    assert report["cross_encoder"] == {"version": version, "state": "open"}
    assert not [line for line in began["degraded"] + report["degraded"] if "cross-encoder" in line]


async def test_a_damaged_cross_encoder_is_seen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the check of the config, in the log once, and as degraded."""
    pytest.importorskip("onnxruntime", reason="the encoders' libraries are not installed")
    damaged = shutil.copytree(shipped_cross_encoder(), tmp_path / "model")
    with (damaged / "model.onnx.data").open("r+b") as weights:
        weights.seek(1_000_000)
        weights.write(bytes(16))
    said = "its sha256 is not that of the graph beside it"
    async with in_process(tmp_path, "http://127.0.0.1:9/v1", settings={"cross_encoder": str(damaged)}) as app:
        async with asyncio.timeout(30):
            while (report := (await app.get("/readyz")).json())["cross_encoder"]["state"] == "not open yet":
                await asyncio.sleep(0.05)
    (line,) = [line for line in report["degraded"] if line.startswith("cross-encoder: ")]
    assert said in line and said in report["cross_encoder"]["state"]
    assert report["status"] == "degraded"
    assert caplog.text.count("the cross-encoder cannot be opened") == caplog.text.count(said) == 1
    at = ["--config", str(tmp_path / "tierline.yaml"), "--policies", str(tmp_path / "policies")]
    assert await asyncio.to_thread(main, ["check", *at]) == 1
    assert said in capsys.readouterr().out
