"""Provide the seam `recorder` of `gateway.seams`."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.parts.recorder.decision_record import DecisionRecorder


def build_recorder(artefacts: Mapping[str, str]) -> DecisionRecorder:
    """Return a worker's recorder of decisions."""
    return DecisionRecorder(artefacts)
