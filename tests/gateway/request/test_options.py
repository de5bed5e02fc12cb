from __future__ import annotations

import pytest

from cache.entry import NO_DEMANDS, Demands
from gateway.errors import InvalidRequest
from gateway.request.options import CacheControl, known_headers, read_cache_control, read_options


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (b"no-cache", CacheControl(read=False)),
        (b"No-Store", CacheControl(read=False, write=False)),
        (b"only-if-cached", CacheControl(only_if_cached=True)),
        (b"max-age=60", CacheControl(demands=Demands(max_age_s=60))),
        (b'max-age="60" , min-fresh=5', CacheControl(demands=Demands(60, 5))),
        (b"max-age=60, max-age=10, no-cache", CacheControl(read=False, demands=Demands(10))),
        (b"", CacheControl()),
        (b" , ,", CacheControl()),
    ],
)
def test_both_headers_say_the_same_in_the_same_words(said: bytes, meant: CacheControl) -> None:
    """The directives that both know mean the same in either; of two limits the stricter holds."""
    assert read_cache_control(said, None) == meant
    assert read_cache_control(None, said) == meant


def test_the_stricter_word_of_the_two_headers_holds() -> None:
    """One may say what the other does not; where both speak, nothing becomes laxer."""
    both = read_cache_control(b"max-age=60, no-store", b"max-age=300, min-similarity=0.95")
    assert both == CacheControl(read=False, write=False, demands=Demands(60, 0, 0.95))


@pytest.mark.parametrize(
    "nonsense",
    [b"max-stale=3600", b"no-transform", b"community=UCI", b"max-age=soon", b"max-age", b"max-age=-1", b"no-store=1"],
)
def test_the_standard_header_is_read_leniently_and_ours_is_not(nonsense: bytes) -> None:
    """What the standard header cannot mean is passed over; in ours it is an error that says what may stand there."""
    assert read_cache_control(nonsense, None) == CacheControl()
    with pytest.raises(InvalidRequest, match="max-age=SECONDS") as refused:
        read_cache_control(None, nonsense)
    assert (refused.value.param, refused.value.code) == ("x-tierline-cache", "unsupported_value")


@pytest.mark.parametrize("said", [b"min-similarity=1.5", b"min-similarity=-0.1", b"min-similarity=nan", b"refresh"])
def test_a_similarity_is_from_0_to_1(said: bytes) -> None:
    """Nothing else is one; and the standard header has no such directive."""
    with pytest.raises(InvalidRequest):
        read_cache_control(None, said)
    assert read_cache_control(b"min-similarity=0.9", None).demands is NO_DEMANDS


def test_a_directive_in_a_second_header_of_the_name_counts() -> None:
    """A list may be spread over several headers of its name: no-store must not get lost."""
    headers = known_headers([(b"cache-control", b"max-age=5"), (b"x", b"y"), (b"cache-control", b"no-store")])
    assert read_options(headers).cache == CacheControl(read=False, write=False, demands=Demands(5))


def test_an_answer_meets_what_is_asked_of_it_or_says_what_it_does_not() -> None:
    """Age, freshness and nearness are each held against their own limit; an answer of its own question is near."""
    asked = Demands(max_age_s=60, min_fresh_s=10, min_similarity=0.95)
    assert asked.unmet(60, 10, 0.95) == asked.unmet(0, 99, None) == ""
    assert asked.unmet(60.1, 99, None) == "max-age"
    assert asked.unmet(0, 9.9, None) == "min-fresh"
    assert asked.unmet(0, 99, 0.94) == "min-similarity"
