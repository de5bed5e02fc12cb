"""Every figure that a page, a command, a metric or a record tells equals what was sent (`known_traffic`)."""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import httpx2
import orjson
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from gateway.cli.main import main
from gateway.parts.otlp import span_names
from gateway.telemetry import names
from tests.gateway.telemetry.metric_text import value_of
from tests.integration.known_traffic import (
    DRAFT,
    HITS,
    KINDS,
    PRICES,
    Asked,
    KnownTraffic,
    Sent,
    Truth,
    known_traffic,
    policy_of,
)
from tests.parts.console.incidents import Seeded, console_over
from tests.parts.otlp.collector import Collector, attributes_of, points_of
from tests.support.wait import until

PAGES: Final = (
    "/now?since=15m", "/surfaces/chat?since=15m", "/surfaces/slow?since=15m", "/usage?by=key", "/cache?since=1h",
)  # fmt: skip
MODELS: Final = {"vectors": "v", "extras": "none"}
"""What services call their models; the others are PROVIDER-model."""
EXACT: Final = 0.002
"""Relative tolerance of dollars that are reported by providers."""


@pytest.fixture(scope="module")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnownTraffic]:
    with known_traffic(tmp_path_factory.mktemp("figures")) as made:
        yield made


@pytest.fixture(scope="module")
def truth(traffic: KnownTraffic) -> Truth:
    return traffic.truth


@pytest.fixture(scope="module")
def pages(traffic: KnownTraffic) -> dict[str, Any]:
    """The data of the console's pages, and under `html PAGE` what they show."""

    async def read() -> dict[str, Any]:
        found = {}
        async with console_over(Seeded(traffic.gateway.folder, traffic.store_url, "", "")) as client:
            for page in PAGES:
                path, _, query = page.partition("?")
                found[page] = (await client.get(f"{path}.json?{query}")).json()
                found[f"html {page}"] = (await client.get(page)).text
        return found

    return asyncio.run(read())


@pytest.fixture(scope="module")
def kept(traffic: KnownTraffic) -> None:
    """Keep the ledger's files, as a plan reads no store."""
    folder = str(traffic.gateway.folder / "ledger")
    assert main(["ledger", "keep", "--once", "--dir", folder, "--store", traffic.store_url]) == 0


@pytest.fixture(scope="module")
def metrics(traffic: KnownTraffic) -> bytes:
    return httpx2.get(f"{traffic.gateway.origin}/metrics", timeout=20).content


def told(capsys: pytest.CaptureFixture[str], traffic: KnownTraffic, *words: str) -> Any:
    """What a command prints as JSON; of `trace` the records, one a line."""
    capsys.readouterr()
    files = str(traffic.gateway.folder / "ledger")
    more = {"usage": ["--dir", files], "top": ["--dir", files], "policy": ["--ledger", files]}.get(words[0], [])
    code = main([*words, *more, "--json", "--store", traffic.store_url])
    out, problem = capsys.readouterr()
    assert code == 0, problem
    return [orjson.loads(line) for line in out.splitlines()] if words[0] == "trace" else orjson.loads(out)


def calls_of(some: Iterable[Sent], *, judge: bool = True) -> list[Asked]:
    """The calls of some requests; without the operator's judge those that their keys pay for."""
    return [call for one in some for call in one.calls if judge or call.provider != "judge"]


def bill(calls: Iterable[Asked]) -> Bounded:
    """What providers bill for calls."""
    return Bounded([(call.usd, call.cut) for call in calls])


def tokens(calls: Iterable[Asked]) -> Bounded:
    """How many tokens providers count for calls."""
    return Bounded([(call.tokens_in + call.tokens_out, call.cut) for call in calls])


class Bounded:
    """A sum that equals what is known exactly; of a stream that was given up it is at most what the whole would be.

    Such a stream has no usage, so nobody but the gateway counts what came of it.
    """

    def __init__(self, parts: Sequence[tuple[float, bool]]) -> None:
        self.low = math.fsum(value for value, cut in parts if not cut)
        self.high = math.fsum(value for value, _ in parts)

    def __eq__(self, other: object) -> bool:
        value = float(other)  # type: ignore[arg-type]
        least = self.low + (self.high - self.low) * 0.1
        return bool(least * (1 - EXACT) <= value <= self.high * (1 + EXACT) + 1e-12)

    def __repr__(self) -> str:
        return f"{self.low} to {self.high}"

    __hash__ = None  # type: ignore[assignment]


def test_the_traffic_became_what_it_was_to_become(truth: Truth) -> None:
    """Else the other tests say nothing."""
    came = Counter((one.kind, one.api, one.status, one.path) for one in truth.sent if one.kind != "missed")
    number = Counter[tuple[str, str]]()
    for kind, api, _, _, count in KINDS:
        number[kind, api] += count
    number["plain", "chat"] += 2
    path_of = {"doubtful": "escalated", "doubtful stream": "escalated", "rejected": "escalated", "invalid": ""}
    path_of |= {"raced": "hedged"}
    path_of |= dict.fromkeys(("images", "rerank", "speech", "transcription"), "passthrough")
    expected = {
        (kind, api, 400 if kind == "invalid" else 200, path_of.get(kind, path_of.get(api, "direct"))): count
        for (kind, api), count in number.items()
    }
    expected |= {("hit", api, 200, "cache-exact"): count for api, count in HITS.items()}
    assert came == expected | {
        ("alike", "chat", 200, "cache-semantic"): 2, ("limited", "chat", 429, ""): 5, ("broken", "chat", 502, ""): 5,
        ("lost", "embeddings", 502, ""): 2,
    }  # fmt: skip
    streams = truth.of("doubtful stream", "raced")
    assert sum(call.cut for call in truth.calls("local")) == len(streams) and len(truth.calls("judge")) == 14


def test_requests_are_counted_by_surface_and_by_how_they_ended(
    truth: Truth, pages: Mapping[str, Any], metrics: bytes, traffic: KnownTraffic, capsys: pytest.CaptureFixture[str]
) -> None:
    """Late, failed and refused are three counts, the same on Now, Surface and /metrics, in `top` and in `ledger`."""
    now = {one["surface"]: one for one in pages["/now?since=15m"]["surfaces"]}
    top = {one["surface"]: one for one in told(capsys, traffic, "top", "--once")["surfaces"]}
    for surface in ("chat", "desk", "slow", "wide"):
        ended = {name: len(truth.ended(name, surface)) for name in ("good", "late", "failed", "refused")}
        held = ended["good"] + ended["late"] + ended["failed"]
        invalid = len(truth.of("invalid", surface=surface))  # refused before its surface was known
        expected = {**ended, "poor": 0, "refused": ended["refused"] - invalid}
        for shown in (now[surface], top[surface]):
            assert shown["ended"] == expected and (shown["held"], shown["good"]) == (held, ended["good"])
            assert shown["requests"] == len(truth.of(surface=surface)) - invalid
            assert shown["goodput"] == pytest.approx(ended["good"] / held)
        of_surface = {"surface": surface}
        assert value_of(metrics, "tierline_goodput_requests_total", **of_surface) == held
        assert value_of(metrics, "tierline_goodput_good_total", **of_surface) == ended["good"]
        for name in ("late", "failed", "refused"):
            assert value_of(metrics, "tierline_not_good_total", **of_surface, outcome=name) == expected[name]
        if surface not in ("desk", "wide"):
            page = pages[f"/surfaces/{surface}?since=15m"]
            assert page["ended"] == expected and page["goodput"] == pytest.approx(ended["good"] / held)
    ledger = told(capsys, traffic, "ledger")
    assert {path: shown["requests"] for path, shown in ledger["paths"].items()} == Counter(
        one.path or "none" for one in truth.sent
    )
    slo = ledger["slo"]
    assert [slo[name] for name in ("good", "late", "failed", "refused")] == [
        len(truth.ended(name)) for name in ("good", "late", "failed", "refused")
    ]
    html = pages["html /now?since=15m"]
    assert re.search(r"3 late, 5 failed; 5 refused are not in it", html), html


def test_no_deadline_was_missed(
    truth: Truth, pages: Mapping[str, Any], metrics: bytes, traffic: KnownTraffic, capsys: pytest.CaptureFixture[str]
) -> None:
    """By nobody: neither by what was refused within a millisecond nor by an error of three."""
    for surface in ("chat", "desk", "slow"):
        answered = [one for one in truth.of(surface=surface) if one.status == 200]
        assert value_of(metrics, "tierline_slo_misses_total", surface=surface, objective="deadline") == 0
        assert value_of(metrics, "tierline_slo_requests_total", surface=surface, objective="deadline") == len(answered)
    [total] = [one for one in pages["/surfaces/slow?since=15m"]["limits"] if one["name"] == "total_p99"]
    assert (total["held"], total["missed"]) == (3, 3)
    [deadline] = [one for one in pages["/surfaces/chat?since=15m"]["limits"] if one["name"] == "deadline"]
    assert (deadline["held"], deadline["missed"]) == (len([o for o in truth.answered if o.surface == "chat"]), 0)
    assert told(capsys, traffic, "ledger")["slo"]["objectives"]["deadline"]["met"] == 1.0
    needs = [need["what"] for need in pages["/now?since=15m"]["needs"]]
    desk = next(what for what in needs if what.startswith("desk: "))
    assert "failed" in desk and "late" not in desk and "deadline" not in desk


def test_cost_is_what_the_providers_bill(
    truth: Truth, pages: Mapping[str, Any], metrics: bytes, traffic: KnownTraffic, capsys: pytest.CaptureFixture[str]
) -> None:
    """In all, and of each provider: drafts that nobody got and the judge's calls are theirs, whoever answered."""
    ledger = told(capsys, traffic, "ledger")
    assert ledger["cost_usd"] == bill(calls_of(truth.sent))
    assert ledger["requests"] == len(truth.sent)
    for path, shown_path in ledger["paths"].items():
        assert shown_path["cost_usd"] == bill(calls_of(one for one in truth.sent if (one.path or "none") == path)), path
    assert pages["/usage?by=key"]["costs"]["total"]["spent"] == pytest.approx(ledger["cost_usd"])
    surfaces = {row["name"]: row for row in pages["/usage?by=key"]["costs"]["surface"]}
    used = {line["surface"]: line for line in told(capsys, traffic, "usage", "--by", "surface")["lines"]}
    for surface in {one.surface for one in truth.sent}:
        own = [one for one in truth.of(surface=surface) if one.kind != "invalid"]  # refused before it had a surface
        assert (surfaces[surface]["requests"], used[surface]["requests"]) == (len(own), len(own)), surface
        assert surfaces[surface]["spent"] == bill(calls_of(own)) and used[surface]["cost_usd"] == bill(calls_of(own))
    by_tier = {row["name"]: row for row in pages["/usage?by=key"]["costs"]["tier"]}
    by_model = {row["name"]: row for row in pages["/usage?by=key"]["costs"]["model"]}
    usage = {line["tier"]: line for line in told(capsys, traffic, "usage", "--by", "tier")["lines"]}
    backends = {line["backend"]: line for line in told(capsys, traffic, "usage", "--by", "backend")["lines"]}
    for provider in PRICES:
        calls = truth.calls(provider)
        owed = bill(calls)
        assert by_tier[provider]["spent"] == owed, provider
        assert by_model[MODELS.get(provider, f"{provider}-model")]["spent"] == owed
        assert value_of(metrics, "tierline_cost_usd_total", tier=provider) == owed
        assert usage[provider]["cost_usd"] == backends[provider]["cost_usd"] == owed
        assert usage[provider]["calls"] == backends[provider]["calls"] == len(calls)
        assert usage[provider]["charged_usd"] == (0 if provider == "judge" else owed)
        assert value_of(metrics, "tierline_tokens_total", tier=provider) == tokens(calls)
    totals = [told(capsys, traffic, "usage", "--by", by)["total"] for by in ("key", "tier", "model,surface", "day")]
    assert all(total == totals[0] for total in totals) and totals[0]["requests"] == len(truth.sent)


def test_spans_say_what_each_call_cost(truth: Truth, traffic: KnownTraffic, capsys: pytest.CaptureFixture[str]) -> None:
    """Each call has a span with its provider, its dollars and its tokens; their sum is what its request cost."""
    records = told(capsys, traffic, "trace", "last", "-n", str(len(truth.sent) + 1))
    records.sort(key=lambda one: one["started"])
    assert len(records) == len(truth.sent)
    for one, record in zip(truth.sent, records, strict=True):
        ledger = record["ledger"]
        assert one.request_id in ("", ledger["request_id"])  # over a WebSocket nobody is told it
        spans = [hop["attributes"] for hop in record["hops"] if hop["name"] in ("attempt", "judge")]
        spans = [span for span in spans if span.get("tierline.backend")]  # else nobody was called: retries were spent
        assert Counter(span["tierline.tier"] for span in spans) == Counter(call.provider for call in one.calls), one
        assert math.fsum(span.get("tierline.cost_usd", 0.0) for span in spans) == bill(one.calls), one
        for provider in {call.provider for call in one.calls}:
            calls = [call for call in one.calls if call.provider == provider]
            own = [span for span in spans if span["tierline.tier"] == provider]
            assert math.fsum(span.get("tierline.cost_usd", 0.0) for span in own) == bill(calls), one
            given, made = (
                sum(span.get(f"gen_ai.usage.{kind}_tokens", 0) for span in own) for kind in ("input", "output")
            )
            assert given + made == tokens(calls), one
            if not any(call.cut for call in calls):
                assert (given, made) == (sum(c.tokens_in for c in calls), sum(c.tokens_out for c in calls)), one
        assert ledger["cost_usd"] == bill(one.calls) and ledger["path"] == one.path, one


def test_exported_spans_are_the_ledger_s(
    truth: Truth, traffic: KnownTraffic, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each request has one span that is nobody's child, with its record's dollars, and each call one with its own."""
    collector = traffic.collector
    until(lambda: len(roots_of(collector)) >= len(truth.sent), 20, "the spans")
    records = {
        record["ledger"]["request_id"]: record["ledger"]
        for record in told(capsys, traffic, "trace", "last", "-n", str(len(truth.sent) + 1))
    }
    roots = roots_of(collector)
    assert Counter(root[span_names.REQUEST_ID] for root in roots) == Counter(dict.fromkeys(records, 1))
    for root in roots:
        ledger = records[root[span_names.REQUEST_ID]]
        for name, field in span_names.OF_LEDGER.items():
            assert root.get(name) == (ledger[field] if ledger.get(field) not in (None, "") else None), (name, root)
    calls = [attributes_of(span) for span in collector.spans if span.kind == Span.SPAN_KIND_CLIENT]
    for provider in PRICES:
        made = truth.calls(provider)
        own = [call for call in calls if call.get(names.BACKEND) and call[names.TIER] == provider]
        assert len(own) == len(made), provider
        assert math.fsum(call.get(names.COST, 0.0) for call in own) == bill(made), provider
        counted = [call.get(name, 0) for call in own for name in (names.GEN_AI_TOKENS_IN, names.GEN_AI_TOKENS_OUT)]
        assert sum(counted) == tokens(made), provider


def roots_of(collector: Collector) -> list[dict[str, Any]]:
    """The attributes of the spans of requests."""
    return [attributes_of(span) for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER]


def test_exported_metrics_are_what_was_sent(truth: Truth, traffic: KnownTraffic) -> None:
    """Calls and their tokens by provider, without estimates; requests by surface."""
    collector = traffic.collector

    def counts(name: str, by: str) -> Counter[str]:
        return Counter({key: n for key, n in sums(name, by, lambda point: point.count).items() if n})

    def sums(name: str, by: str, of: Callable[[Any], float]) -> Counter[str]:
        found: Counter[str] = Counter()
        for said, point in points_of(collector.metrics, name):
            found[said.get(by, "")] += of(point)
        return found

    request = "gen_ai.server.request.duration"
    until(lambda: collector.metrics and counts(request, "").total() >= len(truth.sent), 20, "the metrics")
    # What was refused before its surface was known has none.
    surfaces = Counter("" if one.kind == "invalid" else one.surface for one in truth.sent)
    assert counts(request, names.GEN_AI_REQUEST_MODEL) == surfaces
    models = calls_of(one for one in truth.sent if one.api != "rerank")  # which has no operation in the conventions
    assert counts("gen_ai.client.operation.duration", names.TIER) == Counter(call.provider for call in models)
    usage = sums("gen_ai.client.token.usage", names.TIER, lambda point: point.sum)
    for provider in PRICES:
        counted = [call for call in models if call.provider == provider and not call.cut]
        assert usage[provider] == sum(call.tokens_in + call.tokens_out for call in counted), provider


def test_keys_pay_for_their_own_calls_alone(
    truth: Truth, pages: Mapping[str, Any], traffic: KnownTraffic, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the dollars nor the tokens of the operator's judge are a key's; requests are all that it sent."""
    lines = {line["key"]: line for line in told(capsys, traffic, "usage")["lines"]}
    rows = {row["name"]: row for row in pages["/usage?by=key"]["rows"]}
    for name, record in truth.keys.items():
        own = truth.of(key=name)
        line, row = lines[record.id], rows[record.id]
        assert line["requests"] == row["requests"] == len(own)
        paid = calls_of(own, judge=False)
        assert line["charged_usd"] == pytest.approx(row["spent"]) and line["charged_usd"] == bill(paid)
        assert line["tokens_in"] + line["tokens_out"] == row["tokens"] == tokens(paid)
    [budget] = told(capsys, traffic, "budgets", "show")["budgets"]
    assert budget["spent_usd"] == bill(calls_of(truth.of(key="web"), judge=False))
    assert told(capsys, traffic, "usage", "--check")["differing"] == []


def test_there_is_one_saving(
    truth: Truth, pages: Mapping[str, Any], metrics: bytes, traffic: KnownTraffic, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of all requests that were answered, escalated streams too, with its interval: the same everywhere."""
    answered = truth.answered
    alone = truth.alone_usd(answered)
    cost = bill(calls_of(answered))
    figures = told(capsys, traffic, "ledger")["strongest_alone"]
    shown = [
        pages["/now?since=15m"]["totals"]["saving"], pages["/usage?by=key"]["costs"]["total"]["saving"],
        told(capsys, traffic, "top", "--once")["totals"]["saving"],
    ]  # fmt: skip
    assert figures["requests"] == len(answered) and figures["counterfactual_usd"] == pytest.approx(alone)
    assert alone - figures["saved_usd"] == cost and figures["cost_usd"] == cost
    assert figures["saved_share"] == pytest.approx(figures["saved_usd"] / alone)
    assert figures["estimated"]["requests"] == len(truth.of("doubtful stream", "raced"))
    for one in shown:
        assert one["requests"] == figures["requests"] and one["usd"] == pytest.approx(figures["saved_usd"])
        assert one["share"] == pytest.approx(figures["saved_share"])
        assert [one["low"], one["high"]] == pytest.approx(figures["interval_95"])
    counted = value_of(metrics, "tierline_saving_counterfactual_usd_total")
    counted -= value_of(metrics, "tierline_saving_cost_usd_total")
    assert counted == pytest.approx(figures["saved_usd"])
    assert value_of(metrics, "tierline_saving_requests_total") == len(answered)


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(("below", "escalates"), [("0.01", False), ("0.97", True)])
def test_a_plan_foretells_what_the_recorded_traffic_would_cost(
    truth: Truth, traffic: KnownTraffic, capsys: pytest.CaptureFixture[str], below: str, *, escalates: bool
) -> None:
    """Against the policy that the store has in force: of one that serves every draft, and of one that serves none.

    The shares and dollars of before are exact; of after, those of streams are estimated, and within their interval.
    """
    file = traffic.gateway.folder / "candidate.yaml"
    file.write_text(policy_of("chat").replace("_below: 0.5", f"_below: {below}"))
    plan = told(capsys, traffic, "policy", "plan", str(file), "--config", str(traffic.gateway.folder / "tierline.yaml"))
    assert [change["path"] for change in plan["changes"]["changes"]] == [
        "escalate.when.confidence_below", "escalate.when.uncalibrated_below",
    ]  # fmt: skip
    sent = [one for one in truth.of(surface="chat") if one.kind != "invalid"]
    called = [one for one in sent if one.served]
    assert plan["replay"]["requests"] == len(sent) and plan["replay"]["no_evidence"] == 0
    share, cost = (plan["replay"]["figures"][name] for name in ("escalated", "cost"))
    before = [one for one in called if one.path == "escalated"]
    assert share["before"] == pytest.approx(len(before) / len(sent))
    assert cost["before"] * len(sent) / 1000 == bill(calls_of(sent))
    low, high = share["interval_95"]
    change = ((len(called) if escalates else 0) - len(before)) / len(sent)
    assert low - EXACT <= change <= high + EXACT
    whole = [Asked("local", 0, 40, made, cut=False, failed=False).usd for made in [len(DRAFT.split())] * len(called)]
    drafts = [
        (usd, escalates and one.streams) for usd, one in zip(whole, called, strict=True)
    ]  # is given up, or served
    then = Bounded([*drafts, (truth.alone_usd(called) if escalates else 0.0, False)])
    low, high = ((cost["before"] + by) * len(sent) / 1000 for by in cost["interval_95"])
    assert low * (1 - EXACT) <= then.high and then.low <= high * (1 + EXACT), (low, high, then)


def test_a_draw_tells_two_groups_apart(
    truth: Truth, metrics: bytes, traffic: KnownTraffic, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that went to the strongest tier by chance, and the others of their surface; no other surface draws."""
    drawn = truth.of(surface="drawn")
    held_out = [one for one in drawn if one.calls[0].provider == "hosted"]
    groups = {"held_out": held_out, "routed": [one for one in drawn if one not in held_out]}
    found = told(capsys, traffic, "ledger")["holdout"]
    for group, own in groups.items():
        assert found[group]["requests"] == len(own)
        of_group = {"surface": "drawn", "group": group}
        assert value_of(metrics, "tierline_saving_requests_total", **of_group) == len(own)
        assert value_of(metrics, "tierline_saving_cost_usd_total", **of_group) == bill(calls_of(own))
        alone = value_of(metrics, "tierline_saving_counterfactual_usd_total", **of_group)
        assert alone == pytest.approx(truth.alone_usd(own))


def test_hedges_are_counted(truth: Truth, metrics: bytes) -> None:
    """The call that lost is its provider's, as any other, and a part of what was wasted."""
    raced = truth.of("raced")
    lost = [call for one in raced for call in one.calls if call.provider == "local"]
    assert value_of(metrics, "tierline_hedges_total", surface="race") == len(raced) == len(lost)
    assert value_of(metrics, "tierline_wasted_usd_total", surface="race") == bill(lost)


def test_what_was_unused_is_drafts(
    truth: Truth, pages: Mapping[str, Any], traffic: KnownTraffic, capsys: pytest.CaptureFixture[str]
) -> None:
    """A judge's verdict is no answer that nobody got."""
    drafts = truth.of("doubtful", "doubtful stream", "rejected", "raced")
    assert pages["/usage?by=key"]["costs"]["total"]["wasteful"] == len(drafts)
    unused = [call for one in drafts for call in one.calls if call.provider == "local"] + truth.calls("judge")
    wasted = told(capsys, traffic, "ledger")["wasted"]
    assert wasted["usd"] == pytest.approx(pages["/usage?by=key"]["costs"]["total"]["wasted"])
    assert wasted["usd"] == bill(unused)
    assert wasted["tokens"] == tokens(unused)


def test_the_caches_saving_is_known_exactly(
    truth: Truth, pages: Mapping[str, Any], traffic: KnownTraffic, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hit saves what its stored answer cost: the list price of the tokens, once on every page and command."""
    hits = truth.of("hit", "alike")
    first = {one.number: one for one in truth.of("plain", "made")}

    def usd_of(some: Iterable[Sent]) -> float:
        return math.fsum(first[one.number].usd for one in some)

    shown = {one["surface"]: one for one in pages["/cache?since=1h"]["surfaces"]}
    for surface, exact, alike in (("chat", 9, 0), ("wide", 0, 2)):
        assert (shown[surface]["exact"], shown[surface]["semantic"]) == (exact, alike)
        assert shown[surface]["saved_usd"] == pytest.approx(usd_of(truth.of("hit", "alike", surface=surface)))
    usd = usd_of(hits)
    assert float(told(capsys, traffic, "usage")["total"]["list_usd"]) == pytest.approx(usd)
    assert pages["/usage?by=key"]["total"]["list"] == pytest.approx(usd)
