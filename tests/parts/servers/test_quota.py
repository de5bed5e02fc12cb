"""Rate-limit headers, as OpenAI, Anthropic and the IETF draft write them, and how long they say to wait."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial

import pytest

from gateway.parts.servers.quota import HeaderQuota

NOW = 1000.0
WALL = 1_800_000_000.0


def _look_up(headers: Mapping[str, str], name: str) -> str | None:
    return headers.get(name.lower())


def heard(*replies: Mapping[str, str]) -> HeaderQuota:
    """A quota that has heard these headers often enough to know them."""
    quota = HeaderQuota(wall=lambda: WALL)
    for reply in replies:
        lowered = {name.lower(): value for name, value in reply.items()}
        for _ in range(20):
            quota.heard(partial(_look_up, lowered), NOW)
    return quota


def openai(requests: int, tokens: int, reset_requests: str = "1s", reset_tokens: str = "6m0s") -> dict[str, str]:
    return {
        "x-ratelimit-remaining-requests": str(requests),
        "x-ratelimit-remaining-tokens": str(tokens),
        "x-ratelimit-reset-requests": reset_requests,
        "x-ratelimit-reset-tokens": reset_tokens,
    }


def in_seconds(seconds: float) -> str:
    return datetime.fromtimestamp(WALL + seconds, UTC).isoformat().replace("+00:00", "Z")


def test_without_any_header_nothing_is_limited_and_one_is_looked_up_per_reply() -> None:
    """Most endpoints send none, and must not pay for those that do."""
    asked: list[str] = []
    quota = HeaderQuota()
    for i in range(14):
        quota.heard(asked.append, NOW + i)
    assert len(asked) == 14 and len(set(asked)) == 7
    assert not quota.tight and quota.wait_s(NOW) == 0


def test_with_something_left_a_call_may_be_made() -> None:
    """Headers alone are no reason to wait."""
    quota = heard(openai(1, 500))
    assert quota.wait_s(NOW, tokens_in=400) == 0
    assert quota.tight and not heard(openai(1, 50_000)).tight


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("20ms", 0.02), ("1s", 1), ("6m0s", 60), ("1m30.5s", 60), ("7.66s", 7.66), ("12", 12), ("1h", 60), ("0s", 0)],
)
def test_with_no_request_left_it_waits_until_the_reset_a_minute_at_most(written: str, seconds: float) -> None:
    """OpenAI's durations, Groq's fractions, Azure's bare numbers."""
    quota = heard(openai(0, 500, reset_requests=written))
    assert quota.wait_s(NOW) == pytest.approx(seconds)
    assert quota.wait_s(NOW + seconds + 0.001) == 0


def test_the_time_that_has_passed_since_the_reply_counts() -> None:
    """What is left of four seconds after three is one."""
    assert heard(openai(0, 500, "4s")).wait_s(NOW + 3) == pytest.approx(1)


def test_tokens_are_counted_against_the_prompt() -> None:
    """A short prompt may go where a long one must wait."""
    quota = heard(openai(9, 500, reset_tokens="8s"))
    assert quota.wait_s(NOW, tokens_in=100) == 0
    assert quota.wait_s(NOW, tokens_in=600) == pytest.approx(8)


def test_with_the_limit_known_it_fills_steadily() -> None:
    """Of 60 a minute the next comes after a second; a prompt beyond the limit waits until the bucket is full."""
    quota = heard({**openai(0, 1000, "60s", "30s"), "x-ratelimit-limit-requests": "60"})
    assert quota.wait_s(NOW) == pytest.approx(1)
    quota = heard({**openai(5, 1000, "60s", "30s"), "x-ratelimit-limit-tokens": "4000"})
    assert quota.wait_s(NOW, tokens_in=2000) == pytest.approx(10)
    assert quota.wait_s(NOW, tokens_in=9000) == pytest.approx(30)


def test_headroom_is_what_is_left_of_what() -> None:
    """Less what was spent since, and filling up again; without the limit only until the reset, and else not known."""
    quota = heard({**openai(15, 1000, "60s", "30s"), "x-ratelimit-limit-requests": "60"})
    assert quota.headroom(NOW) == {"requests": (15, 60), "tokens_in": (1000, None)}
    quota.spent(400)
    assert quota.headroom(NOW) == {"requests": (14, 60), "tokens_in": (600, None)}
    assert quota.headroom(NOW + 20)["requests"] == (29, 60)
    assert quota.headroom(NOW + 31).keys() == {"requests"}
    assert quota.headroom(NOW + 300)["requests"] == (59, 60)  # the call under way is still counted
    assert heard({}).headroom(NOW) == {}


def test_a_later_reply_replaces_an_earlier_one() -> None:
    """The newest word counts."""
    assert heard(openai(0, 0), openai(5, 5000)).wait_s(NOW, tokens_in=100) == 0


def test_anthropics_dates_are_understood() -> None:
    """Resets are points in time there."""
    name = "anthropic-ratelimit-requests"
    quota = heard({f"{name}-limit": "50", f"{name}-remaining": "0", f"{name}-reset": in_seconds(50)})
    assert quota.wait_s(NOW) == pytest.approx(1, abs=0.01)
    name = "anthropic-ratelimit-output-tokens"
    quota = heard({f"{name}-remaining": "0", f"{name}-reset": in_seconds(9)})
    assert quota.wait_s(NOW) == pytest.approx(9, abs=0.01)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"RateLimit": '"default";r=0;t=30'}, 30),
        ({"RateLimit": '"default";r=5;t=30'}, 0),
        ({"RateLimit": '"minute";r=5;t=30, "hour";r=0;t=45'}, 45),
        ({"RateLimit": '"bytes";r=0;t=30', "RateLimit-Policy": '"bytes";q=65535;qu="content-bytes";w=10'}, 0),
        ({"RateLimit": '"p";r=0;t=30', "RateLimit-Policy": '"p";q=100;qu="requests";w=60'}, 30),
        ({"RateLimit-Remaining": "0", "RateLimit-Reset": "7"}, 7),
    ],
)
def test_the_ietf_draft_is_understood(headers: dict[str, str], seconds: float) -> None:
    """Of several policies the tightest counts, and only those that count requests."""
    assert heard(headers).wait_s(NOW) == pytest.approx(seconds)


def test_calls_that_went_out_since_the_last_reply_are_counted() -> None:
    """Ten requests that come at once must not all be sent on the word that two are left."""
    quota = heard(openai(2, 500, "4s"))
    quota.spent(300)
    assert quota.wait_s(NOW, 200) == 0
    assert quota.wait_s(NOW, 300) > 0
    quota.spent(100)
    assert quota.wait_s(NOW) == pytest.approx(4)


def test_what_was_spent_since_comes_back_at_the_same_pace() -> None:
    """Sixty a minute: after two calls on the word that one was left, the next may go in two seconds."""
    quota = heard({**openai(1, 50_000, "59s"), "x-ratelimit-limit-requests": "60"})
    quota.spent(10)
    assert quota.wait_s(NOW) == pytest.approx(1)
    quota.spent(10)
    assert quota.wait_s(NOW) == pytest.approx(2)
    assert quota.wait_s(NOW + 2) == 0


def test_a_siblings_word_counts_until_it_is_over() -> None:
    """One worker's empty quota is every worker's."""
    quota = HeaderQuota()
    quota.pause(3, NOW)
    assert quota.wait_s(NOW + 1) == pytest.approx(2)
    assert quota.own_wait_s(NOW) == 0
    assert quota.wait_s(NOW + 3) == 0


def test_a_reply_of_our_own_is_newer_than_a_siblings_word() -> None:
    """It says what is left now."""
    quota = heard(openai(5, 50_000))
    quota.pause(30, NOW)
    assert quota.wait_s(NOW) > 0 and quota.tight
    quota.refused(openai(4, 50_000).get, NOW)
    assert quota.wait_s(NOW) == 0 and not quota.tight


def test_a_refusal_is_understood_at_once() -> None:
    """A 429 is worth a look at every header that might say how long."""
    quota = HeaderQuota()
    headers = openai(0, 500, "9s")
    quota.refused(headers.get, NOW)
    assert quota.wait_s(NOW) == pytest.approx(9)


@pytest.mark.parametrize(
    "value", ["", "-1", "nan", "inf", "abc", "1e999", "9" * 5000, "٣", "0x10", '"";r=;t=', ";;;,,,"]
)
def test_values_that_make_no_sense_limit_nothing(value: str) -> None:
    """A header is a stranger's word: it must neither raise nor block the endpoint for ever."""
    for name in openai(0, 0):
        assert heard({**openai(5, 500), name: value}).wait_s(NOW) <= 60
    for name in ("RateLimit", "RateLimit-Policy", "RateLimit-Remaining", "anthropic-ratelimit-requests-remaining"):
        assert (
            heard({"RateLimit-Reset": value, "anthropic-ratelimit-requests-reset": value, name: value}).wait_s(NOW) == 0
        )
