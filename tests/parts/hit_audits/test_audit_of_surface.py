"""What is known of one surface: when a breach of its bound is told, whose it is, and which first hits are compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cache.store.base import NoStore
from gateway.parts.hit_audits.audit import AuditedSurface, Audits
from gateway.parts.hit_audits.groups import Batch, Label
from policies.caching import SemanticCache


def learned() -> AuditedSurface:
    return Audits(NoStore(), "kind").surface("chat", SemanticCache(ttl="6h"), 0.9)


def test_a_breach_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """With the surface and the new threshold. It is shown for ten minutes; one of long ago is not told again."""
    surface = learned()
    batch = Batch(100, (0.95,) * 9, tuple(Label(0.95, True, 10.0) for _ in range(3)))
    surface.fold(batch, 0.0, 601.0)
    assert not surface.state().breached
    for now in (1_000.0, 1_002.0):
        surface.fold(replace(batch, labels=tuple(Label(now, True, 10.0) for _ in range(3))), now, now)
        surface.fold(Batch(10), now, now)
    assert caplog.text.count("answered wrongly") == 1
    assert surface.state().breached and surface.state_for("tenant:acme", "Latin").breached
    assert surface.figures().breached
    surface.forget_breaches(1_602.0)
    assert not surface.state().breached and not surface.state_for("tenant:acme", "Latin").breached


def test_the_breach_of_a_group_is_told_and_shown_for_it_alone(caplog: pytest.LogCaptureFixture) -> None:
    """By language and by tenant, in the log, in the state and in the figures."""
    surface = learned()
    labels = (Label(0.95, True, 10.0, language="Han", owner="tenant:desk"),) * 3
    languages, owners = {"Latin": 19_600, "Han": 400}, {"tenant:desk": 400, "tenant:acme": 19_600}
    surface.fold(Batch(20_000, (0.95,) * 9, labels, languages=languages, owners=owners), 0.0, 0.0)
    assert "surface chat, language Han: more than 0.01 of the requests" in caplog.text
    assert "surface chat, tenant desk: more than 0.01" in caplog.text
    assert "surface chat: more" not in caplog.text
    state = surface.state()
    assert (state.threshold, state.breached) == (0.9, False)
    assert state.languages["Han"] and state.tenants["tenant:desk"]
    assert not any((*{**state.languages, "Han": False}.values(), *{**state.tenants, "tenant:desk": False}.values()))
    chinese, other = surface.state_for("tenant:zeta", "Han"), surface.state_for("tenant:acme", "Latin")
    assert chinese.breached and chinese.threshold > 0.95
    assert not other.breached and other.threshold == 0.9
    assert {(one.kind, one.name) for one in surface.figures().groups if one.breached} == {
        ("language", "Han"),
        ("tenant", "tenant:desk"),
    }


def test_half_of_the_first_hits_of_a_small_language_are_compared() -> None:
    """Of twenty in this worker that would be served; of the main language, and before that is known, one in ten."""
    surface = learned()

    def drawn(language: str, score: float = 0.95) -> float:
        weights = [surface.weight_of(score, 0.9, language) for _ in range(400)]
        return sum(weight > 0 for weight in weights[:20])

    assert drawn("Han") <= 9
    surface.fold(Batch(1_000, languages={"Latin": 950, "Han": 50}), 0.0, 0.0)
    assert drawn("Latin") <= 9
    assert not surface.seen
    assert drawn("Han") >= 3
    assert surface.seen == {"Han": 20}
    assert len(surface.scores) == 3 * 400
