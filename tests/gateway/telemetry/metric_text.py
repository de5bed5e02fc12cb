"""Reading an exposition text as Prometheus would."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families


def value_of(text: bytes, name: str, **labels: str) -> float:
    """The sum of the samples of that name that have those labels."""
    # To parse the whole text takes a second where there are many tiers.
    lines = "".join(line + "\n" for line in text.decode().splitlines() if line.startswith((f"{name}{{", f"{name} ")))
    return sum(
        sample.value
        for family in text_string_to_metric_families(lines)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
