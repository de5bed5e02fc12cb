"""Histograms: every value is drawn once, on the side of the threshold on which it is."""

from __future__ import annotations

import re

import pytest

from gateway.parts.console.svg.histogram import HistogramScale, Mark, bin_counts, histogram, scale_of


def test_every_value_is_counted_once_and_on_its_side() -> None:
    values = [0.0, 0.1, 0.6199, 0.62, 0.63, 1.0]
    scale = scale_of(values, [0.62], share=True)
    counts = bin_counts(values, scale, 100)
    assert sum(counts) == 6 and sum(counts[:62]) == 3 and counts[99] == 1


def test_a_scale_holds_its_values_and_marks() -> None:
    tokens = [12.0, 90.0, 700.0, 8000.0]
    wide = scale_of(tokens, [3000])
    assert wide.logarithmic and all(wide.low <= value <= wide.high for value in (*tokens, 3000))
    assert wide.value(wide.place(700)) == pytest.approx(700)
    narrow = scale_of([3.0, 4.0], [20])
    assert not narrow.logarithmic and narrow.low == 0 and narrow.high > 20
    assert scale_of([]).high > scale_of([]).low
    outlier = scale_of([*[1.0] * 999, 20.0], [2])
    assert outlier.high < 20 and bin_counts([20.0], outlier)[-1] == 1


def test_a_bar_is_parted_at_the_threshold_and_texts_are_escaped() -> None:
    drawn = str(
        histogram([1, 2, 0, 4], HistogramScale(0, 1), [Mark(0.3, "<0.3>"), Mark(0.5, "0.5", "proposed")], "a & b")
    )
    assert re.findall(r'class="(below|above)"', drawn) == ["below", "below", "above", "above"]
    assert re.findall(r'x="([\d.]+)%" y="[\d.]+" width="([\d.]+)%"', drawn)[1:3] == [
        ("25.000", "5.000"),
        ("30.000", "20.000"),
    ]
    assert "&lt;0.3&gt;" in drawn and 'aria-label="a &amp; b"' in drawn and "style=" not in drawn
    assert 'class="proposed"' in drawn


def test_nothing_recorded_is_an_empty_axis() -> None:
    drawn = str(histogram([0] * 4, HistogramScale(0, 1), [], "none"))
    assert "<rect" not in drawn and 'class="axis"' in drawn
