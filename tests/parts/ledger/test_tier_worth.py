"""What tiers are worth: by what people and judges said of their answers, as the keeper leaves it for gateways."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cache.store.redis_store import RedisStore
from gateway.chat.usage import Price
from gateway.parts.access.budget_steering import MeasuredCaps, measured_cap
from gateway.parts.ledger.keeper import Keeper
from gateway.parts.ledger.tier_worth import tier_worth
from gateway.telemetry.ledger import TIER_WORTH
from policies.loader import made_policy
from policies.model import Policy
from tests.gateway.telemetry.conftest import server, store
from tests.parts.console.test_quality import judged_traffic, label, rate
from tests.parts.ledger.test_keeper import NEVER, keep, record

__all__ = ["label", "rate", "server", "store"]

LENGTHS = {"answer_tokens_in": 1000, "answer_tokens_out": 100}


def policy(*tiers: str) -> Policy:
    content = {
        "surface": "chat",
        "slo": {"deadline": "10s"},
        "tiers": list(tiers),
        "route": {"classifier": "none", "start": {tiers[0]: "otherwise"}},
    }
    return made_policy(content, Path("chat.yaml"), {})


def caps(store: RedisStore, **dollars_per_million: float) -> MeasuredCaps:
    prices = {name: Price(input=usd, output=usd) for name, usd in dollars_per_million.items()}
    return MeasuredCaps(store, cast(Any, {name: SimpleNamespace(price=one) for name, one in prices.items()}))


async def test_the_keeper_tells_gateways_where_dollars_gain_least(store: RedisStore, tmp_path: Path) -> None:
    """Of judged and rated answers; a surface of which too little was said is left out, and its cap is not known."""
    await store.delete(TIER_WORTH)
    await judged_traffic(store)
    await record(store, 100, 101, **{"surface": "voice", "path": "direct", "tier": "local", **LENGTHS})
    await record(store, 102, 103, **{"path": "direct", "tier": "local", **LENGTHS})
    await keep(store, tmp_path)
    worth = tier_worth(tmp_path)
    assert list(worth) == ["chat"]
    chat = worth["chat"]
    assert chat["word"] == "people" and (chat["tokens_in"], chat["tokens_out"]) == (1000.0, 100.0)
    assert chat["tiers"].keys() == {"local", "hosted"}
    for value, low, high in chat["tiers"].values():
        assert low <= value <= high
    assert chat["tiers"]["local"][0] < chat["tiers"]["hosted"][0]
    known = caps(store, local=0.0, hosted=2.0, large=9.0)
    await known.refresh()
    assert known.cap_of(policy("local", "hosted")) == ""
    await Keeper(store, tmp_path, NEVER, print).tell_worth()
    await known.refresh()
    assert known.cap_of(policy("local", "hosted")) == "local"
    assert known.cap_of(policy("local", "hosted", "large")) == ""
    dearer = caps(store, local=2.0, hosted=2.0)
    await dearer.refresh()
    assert dearer.cap_of(policy("local", "hosted")) == "hosted"
    await store.delete(TIER_WORTH)


@pytest.mark.parametrize(
    ("quality", "usd", "cap"),
    [
        ({"local": 0.5, "hosted": 0.8, "large": 0.82}, {"local": 0.0, "hosted": 1.0, "large": 10.0}, "hosted"),
        ({"local": 0.5, "hosted": 0.52, "large": 0.9}, {"local": 0.0, "hosted": 1.0, "large": 10.0}, "local"),
        ({"local": 0.5, "hosted": 0.8, "large": 0.7}, {"local": 0.0, "hosted": 1.0, "large": 10.0}, "hosted"),
        ({"local": 0.5, "large": 0.7}, {"local": 0.0, "hosted": 1.0, "large": 10.0}, "local"),
        ({"local": 0.5, "hosted": 0.7}, {"local": 0.0, "hosted": 1.0, "large": 10.0}, ""),
        ({"local": 0.5, "hosted": 0.6, "large": 0.7}, {"local": 0.0, "large": 10.0}, "local"),
        ({"local": 0.5, "hosted": 0.6, "large": 0.7}, {"local": 1.0, "hosted": 1.0, "large": 1.0}, "large"),
        ({}, {"local": 0.0, "hosted": 1.0, "large": 10.0}, ""),
    ],
)
def test_the_cap_is_where_a_dollar_gains_least(
    quality: Mapping[str, float], usd: Mapping[str, float], cap: str
) -> None:
    """By the gain from a tier to the strongest, per dollar that it costs more; what is not known is left out."""
    assert measured_cap(("local", "hosted", "large"), quality, usd) == cap
