"""Find recorded requests in the ledger, and what they were decided by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.cli.commands import CommandError
from gateway.parts.recorder.decision_record import BasisError, DecisionBasis
from gateway.report import OnProgress
from policies.loader import made_policy
from policies.model import Policy
from routing.decide import DecisionInput

if TYPE_CHECKING:
    from gateway.parts.lab.replay.starts import StartMoves

_ONE: Final = (
    "SELECT r.given, b.basis::VARCHAR FROM requests r LEFT JOIN bases b ON b.id = r.basis "
    "WHERE request_id = $request ORDER BY started_s DESC LIMIT 1"
)


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One recorded request: the input of its decision, and what that was made by."""

    given: DecisionInput
    basis: DecisionBasis


def recorded(folder: Path, request: str) -> RecordedRequest:
    """Return the request of that id in the ledger's files. Raises CommandError."""
    from gateway.parts.ledger.query import ask, connect

    try:
        with connect(folder) as database:
            row = ask(database, _ONE, {"request": request}).fetchone()
        if row is None:
            raise CommandError(f"{folder} has no request {request!r}; `tierline ledger tail` lists the latest")
        given, blob = row
        if given is None or blob is None:
            raise CommandError(f"nothing was decided for {request}: it was answered from the store, or refused before")
        basis = DecisionBasis.decode(blob.encode())
        return RecordedRequest(basis.input_of(given), basis)
    except ValueError as error:  # a basis that cannot be read
        raise CommandError(str(error)) from None


def deployed_as(basis: DecisionBasis, policy: Policy) -> tuple[Policy, list[str]]:
    """Return the policy as the deployment of the records would have had it, and its tiers that they know nothing of."""
    tiers = {tier.name for tier in basis.tiers}
    unconfigured = {name: tier for name, tier in basis.policy.unconfigured.items() if name in policy.tiers}
    ladder = tuple(name for name in policy.tiers if name in tiers)
    deployed: dict[str, Any] = {"ladder": ladder, "unconfigured": unconfigured}
    there = {*tiers, *unconfigured}
    unknown = [name for name in policy.tiers_with(there) if name not in there]
    return made_policy(policy.content, Path(policy.label), deployed), unknown


def moves_between(
    before: Policy, after: Policy, folder: Path, oldest: float, on_progress: OnProgress
) -> tuple[StartMoves, list[str]]:
    """Decide all recorded requests of the surface again with both policies; with notes. Raises CommandError."""
    from gateway.parts.lab.replay.records import Which
    from gateway.parts.lab.replay.starts import start_moves
    from gateway.parts.ledger.query import connect

    notes: list[str] = []

    def deployed(basis: DecisionBasis) -> tuple[Policy, Policy]:
        """Return both policies as the deployment of its records would have had them."""
        (policy, _), (other, unknown) = deployed_as(basis, before), deployed_as(basis, after)
        for name in unknown:
            note = f"{name} is left out where the records do not hold its state"
            if note not in notes:
                notes.append(note)
        return policy, other

    try:
        with connect(folder) as database:
            return start_moves(database, Which(before.surface, oldest), deployed, on_progress), notes
    except BasisError as error:
        raise CommandError(str(error)) from None
