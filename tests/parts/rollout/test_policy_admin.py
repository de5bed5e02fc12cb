"""Policies by the admin API of a running gateway: looked at, applied, tried, promoted and rolled back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cache.store.base import Command
from cache.store.redis_store import RedisStore
from gateway.cli.main import main
from gateway.parts.rollout.registry.records import JUDGE
from tests.parts.ledger.recorded_requests import recorded_ledger
from tests.support.gateway import CHAT, Gateway, serve
from tests.support.ports import free_port
from tests.support.store import UNHURRIED, LocalStore, local_store
from tests.support.upstream import Reply, Upstream
from tests.support.wait import until

STRICTER = CHAT.replace("confidence_below: 0.5", "confidence_below: 0.6")
ROLLOUT = "rollout: {steps: [5%, 25%]}\n"


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def store() -> Iterator[LocalStore]:
    with local_store() as server:
        yield server


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, store: LocalStore, port: int) -> Iterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("policies")
    settings = {"admin": {"key_env": "ADMIN_KEY", "port": port}, "policies": {"source": "store"}}
    with Upstream() as upstream:
        upstream.default = Reply(text="Rome.", logprob=-0.01)
        env = {"ADMIN_KEY": "admin-key"}
        with serve(folder, upstream.url, store_url=store.url, settings=settings, env=env) as running:
            yield running


def admin(
    port: int, method: str, path: str, key: str = "admin-key", under: str = "policies", **more: Any
) -> httpx2.Response:
    url = f"http://127.0.0.1:{port}/admin/{under}{path}"
    return httpx2.request(method, url, headers={"authorization": f"Bearer {key}"}, timeout=30, **more)


def in_force(gateway: Gateway) -> str:
    """The policy that answers a request now."""
    body = {"model": "chat", "messages": [{"role": "user", "content": "Which city?"}]}
    label: str = httpx2.post(f"{gateway.url}/chat/completions", json=body, timeout=20).headers["x-tierline-policy"]
    return label


def test_a_policy_is_applied_tried_promoted_and_rolled_back(gateway: Gateway, port: int) -> None:
    """Each change shows in the replies and in the history, with who made it and why."""
    first = in_force(gateway)
    [chat] = admin(port, "GET", "").json()["surfaces"]
    assert (chat["policy"], chat["candidate"]) == (first, None)

    applied = admin(port, "POST", "/chat/apply", json={"text": STRICTER, "message": "escalate more", "author": "ada"})
    assert applied.status_code == 200 and applied.json()["how"] == "now"
    until(lambda: in_force(gateway) == applied.json()["policy"], 5, "the new policy in force")

    again = {"text": STRICTER, "message": "the same", "how": "now"}
    assert admin(port, "POST", "/chat/apply", json=again).status_code == 409
    tried = {"text": CHAT + ROLLOUT, "message": "back to 0.5, step by step", "how": "canary"}
    state = admin(port, "POST", "/chat/apply", json=tried).json()
    assert (state["candidate"]["mode"], state["candidate"]["share"]) == ("canary", 0.05)
    assert admin(port, "POST", "/chat/pause", json={"message": "lunch"}).json()["candidate"]["paused"] == "lunch"
    assert admin(port, "POST", "/chat/resume", json={"message": "back"}).json()["candidate"]["paused"] == ""
    assert admin(port, "POST", "/chat/promote", json={"message": "fine"}).json()["candidate"]["share"] == 0.25
    done = admin(port, "POST", "/chat/promote", json={"message": "good", "full": True}).json()
    assert (done["policy"], done["candidate"]) == (first, None)
    until(lambda: in_force(gateway) == first, 5, "the candidate in force for all")

    to = applied.json()["version"][:9]
    assert admin(port, "POST", "/chat/rollback", json={"message": "worse", "to": to}).json()["version"].startswith(to)
    changes = admin(port, "GET", "/chat/history").json()["changes"]
    actions = ["rollback", "promote", "step", "resume", "pause", "apply", "apply", "seed"]
    assert [change["action"] for change in changes] == actions
    assert {"ada", "admin", "files"} == {change["by"] for change in changes}
    shown = admin(port, "GET", f"/chat/versions/{to}").json()
    assert (shown["text"], shown["author"], shown["message"]) == (STRICTER, "ada", "escalate more")
    lines = admin(port, "GET", "/chat/blame").json()["lines"]
    assert [line["author"] for line in lines if "confidence_below" in line["text"]] == ["ada"]


def test_changes_stand_in_the_audit_trail(gateway: Gateway, port: int) -> None:
    """Filtered and paged, with what they came by; it is whole, and nobody reads it without the key."""
    in_force(gateway)
    admin(port, "POST", "/chat/pause", json={"message": "an audit", "author": "eve"})
    admin(port, "POST", "/chat/resume", json={"message": "over", "author": "eve"})
    query = {"kind": "policy", "by": "eve", "limit": "1"}
    page = admin(port, "GET", "", under="audit", params=query).json()
    [entry] = page["entries"]
    assert (entry["action"], entry["how"], entry["message"], entry["subject"]) == ("resume", "admin", "over", "chat")
    older = admin(port, "GET", "", under="audit", params={**query, "before": page["older"]}).json()
    assert [one["action"] for one in older["entries"]] == ["pause"] and older["older"] == ""
    config = admin(port, "GET", "", under="audit", params={"kind": "config"}).json()["entries"]
    assert [(one["action"], one["how"]) for one in config] == [("start", "config")]
    found = admin(port, "GET", "/verify", under="audit").json()
    assert found["whole"] and {one["stream"] for one in found["streams"]} >= {"tierline:{policies}:audit"}
    for wrong in ({"kind": "nothing"}, {"before": "x"}, {"limit": "0"}, {"since": "-1"}):
        assert admin(port, "GET", "", under="audit", params=wrong).status_code == 400, wrong
    assert admin(port, "GET", "", "wrong", under="audit").status_code == 401


def test_a_surface_is_removed_and_comes_back(gateway: Gateway, port: int) -> None:
    """Its requests get a 404 meanwhile; the default surface stays."""
    text = CHAT.replace("surface: chat", "surface: voice").replace("match: {models: [chat, gpt-4o-mini]}\n", "")
    assert admin(port, "POST", "/voice/apply", json={"text": text, "message": "a pilot"}).status_code == 200

    def status() -> int:
        body = {"model": "voice", "messages": [{"role": "user", "content": "Which city?"}]}
        return httpx2.post(f"{gateway.url}/chat/completions", json=body, timeout=20).status_code

    until(lambda: status() == 200, 5, "the new surface")
    assert admin(port, "POST", "/chat/remove", json={"message": "why"}).status_code == 409
    gone = admin(port, "POST", "/voice/remove", json={"message": "the pilot is over", "author": "ada"}).json()
    assert (gone["removed"], gone["policy"], gone["candidate"]) == (True, None, None)
    until(lambda: status() == 404, 5, "the surface gone")
    assert [one["surface"] for one in admin(port, "GET", "").json()["surfaces"]] == ["chat"]
    assert admin(port, "POST", "/voice/pause", json={"message": "why"}).status_code == 404
    assert admin(port, "GET", "/voice/history").json()["changes"][0]["message"] == "the pilot is over"
    assert admin(port, "GET", "/voice").status_code == 404
    back = admin(port, "POST", "/voice/rollback", json={"message": "it goes on"}).json()
    assert (back["removed"], back["policy"][:6]) == (False, "voice@")
    until(lambda: status() == 200, 5, "the surface back")
    admin(port, "POST", "/voice/remove", json={"message": "the end"})


def test_what_is_wrong_is_refused_and_changes_nothing(gateway: Gateway, port: int) -> None:
    before = admin(port, "GET", "/chat").json()["surfaces"]
    wrong = CHAT.replace("confidence_below: 0.5", "confidence_bellow: 0.5")
    refused = admin(port, "POST", "/chat/apply", json={"text": wrong, "message": "why"})
    assert refused.status_code == 400 and "confidence_below" in refused.json()["error"]["message"]
    [finding] = admin(port, "POST", "/lint", json={"text": wrong}).json()["findings"]
    assert (finding["line"], finding["key"]) == (11, "escalate.when.confidence_bellow")
    for path, body, status in (
        ("/chat/apply", {"text": STRICTER}, 400),
        ("/chat/apply", {"text": STRICTER, "message": "why", "how": "later"}, 400),
        ("/chat/apply", {"text": STRICTER, "message": "why", "how": "shadow"}, 400),
        ("/nothing/apply", {"text": STRICTER, "message": "why"}, 409),
        ("/chat/promote", {"message": "no candidate"}, 409),
        ("/chat/rollback", {"message": "why", "to": "ffffffffffff"}, 409),
        ("/nothing/pause", {"message": "why"}, 404),
        ("/chat/pause", {"reason": "why"}, 400),
        ("/chat/pause", [], 400),
        ("/jobs", {"action": "apply", "text": CHAT}, 400),
    ):
        assert admin(port, "POST", path, json=body).status_code == status, (path, body)
    assert admin(port, "GET", "/jobs/aaaaaaaaaaaa").status_code == 404
    assert admin(port, "GET", "/nothing").status_code == 404
    assert admin(port, "GET", "", key="another").status_code == 401
    assert httpx2.get(f"{gateway.origin}/admin/policies").status_code == 404
    assert admin(port, "GET", "/chat").json()["surfaces"][0]["version"] == before[0]["version"]


def test_a_replay_runs_beside_the_gateway(gateway: Gateway, port: int) -> None:
    """A job is a process of its own; what it cannot do it says in its own words."""
    started = admin(
        port,
        "POST",
        "/jobs",
        json={"action": "replay", "text": CHAT.replace("surface: chat", "surface: nobodys"), "since": "1h"},
    ).json()
    assert started["state"] == "running"
    done: dict[str, Any] = {}

    def ended() -> bool:
        done.update(admin(port, "GET", f"/jobs/{started['id']}").json())
        return done["state"] != "running"

    until(ended, 30, "the job")
    assert (done["state"], done["exit_code"]) == ("failed", 2) and done["error"]


def explained(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """What `policy explain --at live --json` says."""
    assert main(["policy", "explain", "--at", "live", "--json", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def text_of(found: dict[str, Any], step: str) -> str:
    return "\n".join(line["text"] for line in found["steps"] if line["step"] == step)


def judged(store: LocalStore) -> None:
    """Say for a minute that a judge is at work, as workers want before they serve a candidate."""

    async def run() -> None:
        connected = RedisStore.from_url(store.url, slack=UNHURRIED)
        await connected.ask([Command((b"SET", JUDGE.encode(), b"test", b"EX", b"60"))])
        await connected.aclose()

    asyncio.run(run())


def test_explain_at_live_says_what_the_gateway_then_does(
    gateway: Gateway, store: LocalStore, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Each conversation gets the arm that was said, and the tier's forecast is that of the calls made."""
    monkeypatch.setenv("TIERLINE_ADMIN_KEY", "admin-key")
    where = ["--gateway", f"http://127.0.0.1:{port}"]
    halves = {"text": STRICTER.replace("0.6", "0.7") + ROLLOUT.replace("5%, 25%", "50%"), "message": "half"}
    candidate = admin(port, "POST", "/chat/apply", json={**halves, "how": "canary"}).json()["candidate"]["policy"]
    judged(store)
    served = set()

    def body(number: int) -> dict[str, Any]:
        return {"model": "chat", "stream": True, "messages": [{"role": "user", "content": f"City number {number}?"}]}

    def asked(number: int) -> str:
        reply = httpx2.post(f"{gateway.url}/chat/completions", json=body(number), timeout=20)
        return str(reply.headers["x-tierline-policy"])

    until(lambda: candidate in {asked(number) for number in range(4)}, 10, "the candidate among replies")
    for number in range(6):
        file = tmp_path / "request.json"
        file.write_text(json.dumps(body(number)))
        found = explained(capsys, str(file), *where)
        assert found["policy"] == asked(number), number
        assert (found["live"]["arm"] == "candidate") == (found["policy"] == candidate)
        served.add(found["live"]["arm"])
    assert served == {"candidate", "control"}
    assert f"{candidate} is tried on 50% of conversations; this conversation is" in text_of(found, "surface")
    for number in range(6, 26):  # calls enough for a forecast
        asked(number)

    def forecast() -> bool:
        return "first token expected after" in text_of(explained(capsys, str(file), *where), "tiers")

    until(forecast, 5, "a forecast of the first token")
    assert "HOSTED_KEY" in text_of(found, "tiers")
    assert [line["place"] for line in found["steps"] if line["step"] == "rules"] == [found["policy"] + ":9"]

    other = tmp_path / "other.yaml"
    other.write_text(CHAT.replace("deadline: 20s", "deadline: 7s"))
    edited = explained(capsys, str(file), *where, "--policy", str(other), "--expect", "local=9s")
    assert edited["policy"] not in (candidate, found["policy"]) and "7s until the deadline" in text_of(edited, "budget")
    assert "first token expected after 9s, later than" in text_of(edited, "tiers")
    admin(port, "POST", "/chat/rollback", json={"message": "done"})
    until(lambda: explained(capsys, str(file), *where)["live"]["candidate"] is None, 5, "the candidate gone")
    assert explained(capsys, str(file), *where, "--policy", candidate)["policy"] == candidate


async def test_a_recorded_request_is_decided_again_at_live(
    gateway: Gateway, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the policy in force and the tiers of now: here the hosted one has no key, as its record did not say."""
    monkeypatch.setenv("TIERLINE_ADMIN_KEY", "admin-key")
    policy = tmp_path / "chat.yaml"
    policy.write_text(CHAT.replace("{local: otherwise}", "{local: stream, hosted: otherwise}"))
    async with recorded_ledger(tmp_path / "ledger", policy, tokens=[100]) as folder:
        words = ("--request", "req-0", "--ledger", str(folder), "--gateway", f"http://127.0.0.1:{port}/")
        found = await asyncio.to_thread(explained, capsys, *words)
    assert found["start"] == "local" and found["policy"] == in_force(gateway)
    assert "HOSTED_KEY" in text_of(found, "tiers") and "tokens_in 100" in text_of(found, "features")
    assert found["live"]["arm"] is None and found["live"]["worker"]


def test_explain_at_live_says_why_it_cannot(
    gateway: Gateway, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with what to do, on stderr and with exit code 2."""
    file = tmp_path / "request.json"
    file.write_text(json.dumps({"model": "chat", "messages": [{"role": "user", "content": "Which city?"}]}))
    live = ["policy", "explain", str(file), "--at", "live"]
    at = ["--gateway", f"http://127.0.0.1:{port}"]
    nowhere = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("TIERLINE_ADMIN_KEY", "admin-key")
    monkeypatch.setenv("WRONG_KEY", "another")
    bad = tmp_path / "bad.yaml"
    bad.write_text(CHAT.replace("deadline:", "dedline:"))
    for words, says in (
        ([*live, "--gateway", nowhere], f"no gateway answers at {nowhere}"),
        ([*live, "--state", str(tmp_path)], "no gateway to ask: "),
        ([*live, "--config", str(gateway.folder / "tierline.yaml")], "ADMIN_KEY is not set"),
        ([*live, *at, "--key-env", "WRONG_KEY"], "refuses the admin key"),
        ([*live, *at, "--key-env", "NO_KEY"], "NO_KEY is not set"),
        ([*live, "--gateway", gateway.origin], "it is not the admin API"),
        ([*live, *at, "--policy", str(bad)], "cannot hold this policy"),
        ([*live, *at, "--surface", "nothing"], "would refuse this request: There is no surface"),
        ([*live, *at, "--tenant", "acme"], "There is no tenant 'acme'"),
        ([*live[:3], *at], "--gateway is for --at live"),
    ):
        assert main(words) == 2, words
        assert says in capsys.readouterr().err, words
