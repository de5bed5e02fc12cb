"""Measure what a key, its limits and its budget add to a request: CPU microseconds, with no round trip of their own.

    python -m tests.bench.admission

What is measured is all that a request with a key does beyond one without, in the steady state, where its worker has
leased what it needs: the key is found, the request is let in by limits of requests, tokens and requests at once of its
key (and end user), money is reserved and noted in the journal, headers are written, and all is settled.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from cache.store.base import NoStore
from gateway.config.schema import key_digest
from gateway.parts.access.admission import QuotaAdmission
from gateway.parts.access.authenticator import Callers
from gateway.parts.access.budget_steering import MeasuredCaps
from gateway.parts.access.config import KeysConfig, TenantConfig
from gateway.parts.access.expected_costs import ExpectedCosts
from gateway.parts.access.keys.key_caller import caller_of
from gateway.parts.access.keys.records import KeyRecord
from gateway.parts.access.quotas.kept_charges import ChargeJournal
from gateway.parts.access.quotas.leases import QuotaLeases
from gateway.parts.access.quotas.terms import NO_TERMS, Terms
from gateway.request.options import user_of
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Trace
from tests.bench.command import BenchFigure, bench_parser, report

TARGET_US: Final = 15.0
_REQUESTS: Final = 2000
_ROUNDS: Final = 20
_MOST: Final = 10**9
_BODY: Final = {"user": "ann"}
_HEADERS: Final = {b"authorization": b"Bearer key-of-acme"}


async def microseconds(journal: ChargeJournal, *, per_user: bool) -> float:
    """CPU time of one request's admission and settlement, the best of some rounds."""
    rates = Terms(requests_per_minute=_MOST, tokens_per_minute=_MOST, concurrent=_MOST)
    terms = Terms.model_validate({**rates.plain(), "budgets": [{"usd": 1e6}]})
    callers = Callers({"acme": TenantConfig(key_digests=(key_digest(b"key-of-acme"),))})
    store = NoStore()
    admission = QuotaAdmission(
        QuotaLeases(store), KeysConfig(), lambda *_: None, MeasuredCaps(store, {}), ExpectedCosts({})
    )
    admission.journal = journal
    caller = caller_of(KeyRecord("k_1", "", "acme", terms=terms, per_user=rates if per_user else NO_TERMS))
    best = float("inf")
    made = [(Trace(names.REQUEST), Ledger(f"req-{n}", "acme")) for n in range(_REQUESTS)]
    for _ in range(_ROUNDS):
        began = time.thread_time()
        for trace, ledger in made:
            callers.known(_HEADERS)
            ledger.user = user_of("acme", _BODY)
            hold = admission.hold(caller, trace, ledger)
            assert hold is not None
            await hold.enter(500)
            await hold.reserve(1e-6, "a call")
            hold.headers("openai")
            ledger.charged_usd = 1e-6
            hold.settle(ledger)
            if ledger.entry is not None:
                ledger.entry.free()
        best = min(best, (time.thread_time() - began) / _REQUESTS * 1e6)
        await asyncio.sleep(0.2)
    await admission.leases.aclose()
    return best


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    bench_parser("admission", __doc__).parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        journal = ChargeJournal(Path(folder), "0" * 16)
        own = asyncio.run(microseconds(journal, per_user=False))
        both = asyncio.run(microseconds(journal, per_user=True))
        journal.close()
    of_user = BenchFigure("with three limits of the end user too", both)
    return report([BenchFigure("CPU us: key, three limits, a budget", own, TARGET_US), of_user])


if __name__ == "__main__":
    sys.exit(main())
