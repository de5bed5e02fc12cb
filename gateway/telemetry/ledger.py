"""The ledger: one flat record per request of its cost, tier, times and outcome, stored with its trace.

The pipeline fills it in as the request proceeds. After the reply `gateway.accounting` adds what is computed
from the trace's hops: the account of each call, wasted cost, time per token, and, where the seam `figures` is filled,
the objectives met.
`ledger_blob` makes of both what the store keeps.

How a request ended, which every count of goodput goes by (metrics, the ledger, pages, canaries and alerts):

    refused   turned away by its own doing: invalid, not permitted, over a limit or budget of its owners, nothing stored
    left      the client went away before it had the whole answer
    failed    no answer, or one that broke off: the gateway, or every backend, could not (a 502, a provider's 429)
    late      answered, but after a limit of each request: the deadline, or the p99 of a time
    poor      answered in time, but degraded or with a fault in its structure
    good      all else that was held against limits

Goodput is the share of the good ones among good, late, poor and failed. Nobody is at fault for the other two, so they
are in none of it. A request that failed early is not late: it is held against those limits alone whose time had passed.

The record is one JSON object:

    {"v": 1, "trace_id": "4bf9...", "parent_id": null, "started": 1767225600.123456, "ledger": {...},
     "hops": [{"name": "request", "number": 0, "span_id": "00f0...", "start_us": 0, "duration_us": 41230,
               "error": null, "attributes": {...}}, ...],
     "decide": {"basis": "5b9c...", "in": [...], "out": [...]}}

`started` is in Unix seconds; hop times are microseconds from the start of hop 0; ids are in hex, as in `traceparent`.
`decide` is what a part records of the decision, null where no tier was to be chosen. Of a request that
sampling leaves out (`kept` in its ledger is empty) `hops` has the lookup of a cache hit alone, by which feedback finds
the stored answer, and one that a rule of `cache.never` kept out. `telemetry.names` says what each attribute is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from gateway.telemetry import names
from gateway.telemetry.trace import SPAN_ID_MASK

if TYPE_CHECKING:
    from cache.store.base import Command
    from gateway.telemetry.trace import Hop, RecordedDecision, Trace


# Neither this class nor Ledger has slots: orjson writes an object that has a __dict__ three times as fast.
@dataclass
class CallAccount:
    """Cost of one backend call in tokens, US dollars and milliseconds; made from its hop after the reply.

    `attempt` is the attempt's number, 0 for a call beside it (a sample, a judge), which is never served. `wasted`: none
    of its text reached the client. `ttft_ms` is the backend's own, None for a whole answer. A failed call costs 0.
    """

    attempt: int
    tier: str
    backend: str
    model: str
    outcome: str
    tokens_in: int
    tokens_out: int
    estimated: bool
    cost_usd: float
    wasted: bool
    queue_ms: float
    ttft_ms: float | None
    total_ms: float
    start_ms: float = 0.0
    """Milliseconds from the start of the request to the start of the call."""
    confidence: float | None = None
    basis: str = ""
    """What the confidence is (`routing.confidence.judge.Basis`); empty if the answer was not judged."""
    fault: str = ""
    """The structural fault for which the answer was rejected, such as `refusal`."""
    finish: str = ""
    """The finish reason of the first choice; empty where it was not seen."""
    tokens_cached: int = 0
    """Of `tokens_in`, those that the provider read from its prompt cache; 0 also where it does not say."""
    tokens_cache_write: int = 0
    """Of `tokens_in`, those that the provider wrote to its prompt cache, where it says so."""
    tokens_hour_write: int = 0
    """Of `tokens_cache_write`, those that are kept for an hour."""
    verifier: str = ""
    """Who said how sure the draft is, where its log-probabilities did not: `judge`, `scorer`, `agreement`, or empty.
    Of a call beside an attempt (a sample, a judge), what it was for."""
    verified: float | None = None
    """What the verifier said, 0..1, before a head calibrated it: what a head is fitted to."""


class ChargeEntry(Protocol):
    """The note on disk of what a request costs, for when its worker dies before the store has its record."""

    def add(self, amount: int) -> None:
        """Add nanodollars that a call of the request was charged."""

    def settle(self, amount: int) -> None:
        """Note what the request cost in the end, in nanodollars."""

    def put_into(self, batch: int) -> None:
        """Note the number of the batch of records that takes this charge to the store."""

    def free(self) -> None:
        """Forget it: the store has the charge."""


@dataclass
class Ledger:
    """The ledger of one request. Mutable until passed to `Telemetry.record`, never changed after that.

    `surface` and `tier` become metric labels, so they hold names from policies and config (or nothing), never text
    that a client sent. Money is in US dollars: `cost_usd` is everything spent, `wasted_usd` the part spent on calls
    whose text the client never saw. `usage_estimated`: a backend reported no usage, so the tokens are our own count.
    """

    request_id: str
    tenant: str = ""
    team: str = ""
    """The team of its key; empty where there is none. So with `key`."""
    key: str = ""
    """Id of the key in the store, or of the identity."""
    user: str = ""
    """Hash of the end user that the request names; empty if it names none."""
    surface: str = ""
    """The surface; for what is not a chat followed by a slash and the endpoint, such as `chat/embeddings`."""
    policy: str = ""
    """The policy's label, `surface@version`."""
    requested_model: str = ""
    stream: bool = False
    status: int = 0
    """HTTP status sent to the client; 499 if it disconnected first."""
    path: str = ""
    """The value of `x-tierline-path`, such as `direct` or `cache-exact`."""
    tier: str = ""
    backend: str = ""
    model: str = ""
    attempts: int = 0
    tokens_in: int = 0
    """Prompt tokens of the calls that its key pays for: not those of the operator's judge, which `calls` has. So with
    `tokens_out`."""
    tokens_out: int = 0
    usage_estimated: bool = False
    cost_usd: float = 0.0
    cost_unknown: bool = False
    """Whether a backend was called whose price nobody states, so that `cost_usd` is too low by an unknown amount."""
    wasted_usd: float = 0.0
    charged_usd: float = 0.0
    """What the key pays, rounded to nanodollars; of an adjustment, what it adds to its account or takes off it."""
    list_usd: float = 0.0
    """What a hit of the cache, or an answer shared with another request, would have cost at list price."""
    accounts: tuple[str, ...] = ()
    """Accounts of money that the charge was added to, by the script that appended the record."""
    difficulty: float | None = None
    kind: str = ""
    """Kind of task that the classifier took the request for, such as `chat`; empty if it abstained."""
    quantile: float | None = None
    """Share of that kind's reference prompts that are easier; None if not known."""
    confidence: float | None = None
    similarity: float | None = None
    ttft_ms: float | None = None
    """Time from the request to the first byte of content sent to the client; None if none was sent."""
    total_ms: float = 0.0
    overhead_ms: float = 0.0
    """The gateway's own time: the total less the time spent waiting for backends."""
    error: str | None = None
    """The `code` of the error envelope, or another fixed code such as `client_gone`."""
    served: tuple[int, ...] | None = None
    """Numbers of the attempts whose text is in the answer: several if one continued another's text, none if nothing
    was served. None if the cascade did not run."""
    answer_tokens_in: int | None = None
    """Prompt tokens of the served answer; for a cache hit, those of the stored answer."""
    answer_tokens_out: int | None = None
    answer_estimated: bool = False
    """Whether the two token counts of the answer are our own estimate."""
    counterfactual_usd: float | None = None
    """What the answer's tokens would have cost at the policy's strongest tier; None if not known."""
    steered_from: str = ""
    """Of a request that a nearly spent budget steered, the tier at which it would have started; else empty."""
    steered_usd: float | None = None
    """What the answer's tokens would have cost there; None if it started there, or no price is known."""
    prompt_cache_usd: float | None = None
    """What providers' prompt caches saved, less what it cost more to write to them; None if nothing was, or no price is
    known."""
    tokens_left_out: int = 0
    """Prompt tokens, estimated, that the policy's `input` did not send."""
    wasted_tokens: int = 0
    """Prompt and completion tokens of calls whose text the client never saw, free calls included."""
    tpot_ms: float | None = None
    """Time per output token after the first, of the stream as sent to the client. None for JSON and cache hits."""
    gap_ms: float | None = None
    """Longest time between two chunks of the stream as sent to the client; None for JSON, and where only one came."""
    queue_ms: float = 0.0
    """Time waited in backends' queues; hedges and speculative attempts, which run beside another, add nothing."""
    holdout: bool | None = None
    """Whether the request was drawn at random to go to the strongest tier; None if there was no draw."""
    hedged: bool = False
    speculated: bool = False
    classifier: str = ""
    """Version of the classifier that estimated the difficulty."""
    embedder: str = ""
    head: str = ""
    """Version of the confidence head that calibrated the served answer's confidence."""
    slo: Mapping[str, bool] | None = None
    """Whether this request met each objective of its surface; None if no objective applies."""
    calls: Sequence[CallAccount] = ()
    stages: Mapping[str, float] | None = None
    """Milliseconds of each of `policies.model.STAGES` that the request had; None unless its policy limits some."""
    arm: str = ""
    """`candidate` or `control` while a canary runs, SHADOW or PLAYGROUND, else empty. `policy` is the arm's."""
    unit: str = ""
    """Hash of the unit that stays with its arm, such as the conversation; in hexadecimal digits."""
    dropped: tuple[str, ...] = ()
    """Paths of the client's fields that the answering backend was not sent: `x-tierline-dropped`."""
    conversation: str = ""
    """Name that the turns of a chat share (`gateway.request.options`); empty for what is not a chat."""
    session: str = ""
    """Name that the chats of a session share, sub-agents' included; that of the conversation if no id is told."""
    refused: bool = False
    """Whether a limit of its owners, or its own wish to be answered from the cache alone, turned it away."""
    kept: str = "head"
    """Why its hops are recorded: `head`, or what tail sampling keeps them for (see `telemetry.sampling`); empty if they
    are not. Set when the request is recorded."""

    _entry: ChargeEntry | None = None
    """Its entry in the journal of charges; None without one. No part of the record."""
    _discount_usd: float | None = 0.0
    """What prompt caches saved and the client is not told of; None if not known. No part of the record."""
    _tokens_exempt: int = 0
    """Of `tokens_in`, those that do not count against tokens a minute. No part of the record."""

    @classmethod
    def begun(cls, request_id: str) -> Ledger:
        """Return the ledger of a request that begins. It is `cls(request_id)` in a quarter of the time."""
        ledger = object.__new__(cls)
        ledger.__dict__.update(_UNUSED)
        ledger.request_id = request_id
        return ledger

    @property
    def entry(self) -> ChargeEntry | None:
        """Its entry in the journal of charges, from the reservation of its money on; None without one."""
        return self._entry

    @entry.setter
    def entry(self, entry: ChargeEntry | None) -> None:
        self._entry = entry

    @property
    def tokens_exempt(self) -> int:
        """Of `tokens_in`, those that do not count against tokens a minute: read from a prompt cache, and told."""
        return self._tokens_exempt

    def exempt(self, tokens: int) -> None:
        """Exempt `tokens` more of `tokens_in` from the limit of tokens a minute."""
        self._tokens_exempt += tokens

    def hide_discount(self, usd: float | None) -> None:
        """Add a discount, in US dollars, that `cost_shown` must not reveal; None, if not known, hides the cost."""
        self._discount_usd = None if usd is None or self._discount_usd is None else self._discount_usd + usd

    @property
    def cost_shown(self) -> str:
        """The cost in US dollars for a header, without hidden discounts; `unknown` if not known or to be hidden."""
        hidden = self._discount_usd
        return "unknown" if self.cost_unknown or hidden is None else f"{self.cost_usd + hidden:.8f}"


_UNUSED: Final = vars(Ledger(""))
"""The fields of a ledger in which nothing is noted; none of their values can change."""
SHADOW: Final = "shadow"
"""Arm of a request that was run again under a candidate policy; no client got the answer."""
PLAYGROUND: Final = "playground"
"""Arm of a request that somebody sent to try a policy (`x-tierline-try`)."""
ADJUSTMENT: Final = "adjustment"
"""Arm of what an operator did to an account, which is no request: `path` is `reset` or `topup`, `accounts` has its one
account, and its first hop the author and the reason."""
UNCOUNTED: Final = (SHADOW, PLAYGROUND, ADJUSTMENT)
"""Arms whose requests no figure of a surface counts."""

TRACES: Final = "tierline:traces"
"""Key of the store's stream of records, oldest first."""
TIER_WORTH: Final = "tierline:tier-worth"
"""Key of the store's hash of what tiers are worth, JSON by surface: parts that read records write it."""
ACCOUNT_PREFIX: Final = f"{{{TRACES}}}:quota:"
"""Prefix of the key of an account that records are charged to, in the slot of their stream."""

NEVER: Final = "never: "
"""How the reason of a lookup begins that a rule of `cache.never` forbids."""


CLIENT_LEFT: Final = frozenset({"client_gone", "client_cancel"})
"""Errors of requests whose client went away."""


_LOOKUPS: Final = frozenset({names.CACHE_EXACT, names.CACHE_SEMANTIC})
_VERSION: Final = 1
_BEGINNING: Final = b'{"v":%d,' % _VERSION


class DecisionEncoder(Protocol):
    """Encode decisions for records, off the request's path."""

    def encode(self, made: RecordedDecision) -> dict[str, Any]:
        """Return the part of a request's record that holds its decision, as JSON values."""

    def commands(self) -> list[Command]:
        """Return what writes to the store, before the records, what encoded decisions refer to."""

    def written(self) -> None:
        """Note that the store has carried out the commands."""


class ChargedAccounts(Protocol):
    """The accounts of money that records are charged to; the part that provides `limits` has them."""

    @property
    def worker(self) -> str:
        """Name under which this worker counts in the store."""

    def written(self, charges: Iterable[tuple[str, int]]) -> None:
        """Say that the store has added these nanodollars to these accounts, with their records."""

    def life_ms(self, account: str) -> int:
        """Return how long the counter of an account lives that had no end, once it is charged; 0 for no end."""


class RecordWriter:
    """Write the records of finished requests, with their charges. This class writes none; a part's does."""

    failing = ""
    """Reason why the store did not take the last batch; '' if it did."""
    waiting = 0
    """Records that are still to be written."""
    keep = 0
    """About how many of the latest records the store keeps."""

    @property
    def pause_s(self) -> float | None:
        """Seconds until the next try; None if nothing is to be written."""
        return None

    def charge(self, ledger: Ledger) -> None:
        """Take over the charge of a finished request: the next batch has it, whatever becomes of its record."""

    def add(self, records: Sequence[bytes]) -> None:
        """Take a batch over, which `write` then writes, with the charges up to now."""

    async def write(self, *, now: bool = False) -> None:
        """Write all batches, unless the store is given a pause and it need not be `now`. Raises nothing."""


def ledger_blob(trace: Trace, ledger: Ledger, decisions: DecisionEncoder | None = None) -> bytes:
    """Return the record of a finished request. Raises orjson.JSONEncodeError (a TypeError) for a non-JSON value."""
    root, first = trace.root, trace.first_span_id
    origin, end = root.start_ns, root.end_ns
    hops = []
    for hop in trace.hops if ledger.kept else lookups_of_record(trace.hops):
        span_id = (first + hop.number) & SPAN_ID_MASK or 1  # as `Trace.span_id` has it
        hops.append(
            {
                "name": hop.name,
                "number": hop.number,
                "span_id": span_id.to_bytes(8).hex(),
                "start_us": (hop.start_ns - origin) // 1000,
                "duration_us": ((hop.end_ns or end) - hop.start_ns) // 1000,
                "error": hop.error,
                "attributes": hop.attributes,
            }
        )
    record = {
        "v": _VERSION,
        "trace_id": trace.trace_id.to_bytes(16).hex(),
        "parent_id": trace.parent_id.to_bytes(8).hex() if trace.parent_id else None,
        "started": trace.started_unix_ns / 1e9,
        "ledger": ledger,
        "hops": hops,
        "decide": None if decisions is None or trace.decision is None else decisions.encode(trace.decision),
    }
    # orjson leaves the room in the result that it kept to grow, up to 15 times the text: a record may be kept for long.
    return bytes(memoryview(orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY)))


def lookups_of_record(hops: Sequence[Hop]) -> list[Hop]:
    """Return the hops that every record has: a cache hit's, and one that a rule of `cache.never` ended."""
    return [
        hop
        for hop in hops
        if hop.name in _LOOKUPS
        and (names.CACHE_ENTRY in hop.attributes or str(hop.attributes.get(names.CACHE_REASON)).startswith(NEVER))
    ]


def is_record(blob: bytes) -> bool:
    """Return whether `blob` begins like a record of this version; do not decode one that does not."""
    return blob.startswith(_BEGINNING)
