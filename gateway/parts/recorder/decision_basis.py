"""Hold what the decisions of many requests share: the policy's content, its ladder, the tiers' facts, the artefacts.

A basis is written once and named by its hash, so that a record of one request stays small (`decision_record`).
As JSON:

    {"v": 1, "content": {...the policy file's...}, "version": "e01f1a4...", "ladder": ["local", "hosted"],
     "unconfigured": [{"name": ..., "models": [...], "capabilities": [...], "unconfigured": "why"}],
     "tiers": [{"name": ..., "capabilities": [...], "endpoints": 1, "context": 8192}, ...one for each of the ladder],
     "artefacts": {"classifier": "9f31...", "embedder": ..., ...}}
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.parts.recorder.decision_record import Record, TierFacts, input_of, tier_facts
from policies.errors import ConfigError
from policies.loader import made_policy
from policies.model import DeployedTier, Policy
from routing.decide import DecisionInput
from routing.difficulty.model import CLASSIFIER

_VERSION: Final = 1
_ID_LENGTH: Final = 16


class BasisError(ValueError):
    """A basis cannot be read: it is damaged, or of another version of Tierline."""


@dataclass(frozen=True, slots=True)
class DecisionBasis:
    """What the decisions of many requests share."""

    policy: Policy
    tiers: tuple[TierFacts, ...]
    artefacts: Mapping[str, str]
    """Version of each artefact that the worker uses, by what it is: the first digits of its SHA-256."""

    def encode(self) -> tuple[str, bytes]:
        """Return the basis's id (16 hex digits of its SHA-256) and its JSON."""
        policy = self.policy
        basis = {
            "v": _VERSION,
            "content": policy.content,
            "version": policy.version,
            "ladder": policy.ladder,
            "unconfigured": [_as_json(tier) for tier in policy.unconfigured.values()],
            "tiers": [_as_json(tier) for tier in self.tiers],
            "artefacts": dict(sorted(self.artefacts.items())),
        }
        blob = orjson.dumps(basis)
        return hashlib.sha256(blob).hexdigest()[:_ID_LENGTH], blob

    @classmethod
    def decode(cls, blob: bytes) -> DecisionBasis:
        """Return the basis that was encoded. Raises BasisError."""
        try:
            read = orjson.loads(blob)
            if read["v"] != _VERSION:
                raise BasisError(f"a basis of format {read['v']}; this version of Tierline reads {_VERSION}")
            unconfigured = [DeployedTier(**_from_json(tier)) for tier in read["unconfigured"]]
            policy = made_policy(
                read["content"],
                Path(f"policy {read['version'][:7]}"),
                {"ladder": tuple(read["ladder"]), "unconfigured": {tier.name: tier for tier in unconfigured}},
            )
            if policy.version != read["version"]:
                raise BasisError(f"the content of policy {read['version'][:7]} means something else to this version")
            return cls(policy, tuple(TierFacts(**_from_json(tier)) for tier in read["tiers"]), read["artefacts"])
        except BasisError:
            raise
        except (ConfigError, ValueError, KeyError, TypeError) as error:
            raise BasisError(f"not a decision's basis: {error}") from None

    def input_of(self, record: Record) -> DecisionInput:
        """Return the input that was recorded with this basis. Raises ValueError."""
        return input_of(record, self.tiers, self.artefacts.get(CLASSIFIER, ""))


def basis_of(policy: Policy, given: DecisionInput, artefacts: Mapping[str, str]) -> DecisionBasis:
    """Return the basis of a decision by this policy."""
    return DecisionBasis(policy, tier_facts(given.health), artefacts)


def _as_json(tier: DeployedTier | TierFacts) -> dict[str, Any]:
    fields = {name: getattr(tier, name) for name in tier.__dataclass_fields__}
    return {**fields, "capabilities": sorted(tier.capabilities)}


def _from_json(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        **fields,
        "capabilities": frozenset(fields["capabilities"]),
        **{name: tuple(fields[name]) for name in ("models", "fields") if name in fields},
    }
