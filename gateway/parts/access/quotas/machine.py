"""Decide, for one worker and one account, which requests get in: a state machine without I/O or clock.

    lease       what the store has set aside for this worker, until a deadline; the sum of four parts
    under       what requests under way hold of it: of money what is reserved for them, else what they are expected to
    unwritten   what ended requests used and the store does not know yet: of money until its records are written, of
                requests and tokens until the next exchange
    returned    what is given back with the exchange that is under way
    idle        the rest, which requests may take without asking

    event           | what changes                                             | what is owed
    ----------------+----------------------------------------------------------+--------------------------------------
    check, fits     | nothing                                                  | GRANTED: `take`, and later `settle`
    check, no lease | nothing                                                  | DRY: an exchange, then check again
    check, held     | nothing                                                  | HELD: others' requests or leases hold
                    |                                                          | the rest; an exchange a little later
    check, full     | nothing                                                  | FULL: refuse; a minute's limit is used
    check, spent    | nothing                                                  | EXHAUSTED: refuse; the money is spent
    take            | idle -> under                                            | an exchange soon
    settle          | under -> unwritten (what was used) and idle (the rest),  | of money, `written`
                    | which is returned if others wait for it or may need it   |
    send            | idle -> returned, if unused for long, if others wait for | `heard` or `failed`
                    | it, or if requests here need more than it                |
    heard           | the lease is what the store says; what was reported is   | nothing
                    | no longer unwritten                                      |
    failed          | returned is gone; the rest is as it was                  | the next exchange, with a new number
    written         | unwritten and the lease shrink: it counts as spent       | nothing
    deadline passes | idle is void; what is under way stays until it is settled| an exchange
    limit changes   | what was refused is checked again; of a lower one, idle  | an exchange
                    | is returned                                              |

Rules of money

    spent so far | reserved for a request                   | one that does not fit
    -------------+------------------------------------------+------------------------------------------------------
    under 80%    | what nine of ten such requests cost      | is refused, as those under way may need the rest: at
                 |                                          | once, unless other workers have what it needs idle
    80 to 90%    | the same                                 | waits, unless what is under way and those that wait
                 |                                          | before it are expected to need the rest
    over 90%     | the most that it can cost                | so too

A lease covers what is reserved for the requests under way, so that what is spent and all leases stay within the limit
and one lease (a tenth of the limit, or what one request needs). Besides, what is spent and what requests under way are
expected to cost must leave something of the limit: whatever is left lets one more request in, however much it may cost.
Only when all is spent is a budget exhausted.

Count what one worker lets in by itself while the store does not answer: a state machine without I/O or clock.

A limit holds for each worker alone then: what all workers had used when the store answered last, and what the others
had leased, counts for a minute from that answer, and what this worker has let in since counts for a minute from when it
did. Requests at once are those of this worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from gateway.parts.access.quotas.accounts import Unit

GRANTED: Final = 0
DRY: Final = 1
HELD: Final = 2
FULL: Final = 3
EXHAUSTED: Final = 4

LIFE_S: Final[dict[Unit, float]] = {"requests": 4.0, "tokens": 4.0, "concurrent": 4.0, "usd": 15.0}
"""How long a lease lasts after an exchange: of money long enough for a restarted worker to settle what it left."""
BEAT_S: Final = 1.0
"""Longest time between two exchanges of an account of which something is leased."""
RETRY_S: Final = 0.1
"""Shortest time between two exchanges for the same refusal."""
RECHECK_S: Final = 0.25
"""How long what was heard of a full or exhausted account is good for."""
_WAITS_FROM: Final = 0.8
"""Share of a budget that is spent from which on requests wait for the rest of it."""
_WORST_FROM: Final = 0.9
"""Share of a budget that is spent from which on the most that a request can cost is reserved for it."""
_IDLE_S: Final = 1.0
"""What nobody took for so long is returned."""


class WaitingRequest(NamedTuple):
    """A request that waits until an account has room for it. `expected` is what it will use, in the account's unit."""

    expected: int
    needed: int
    """What its lease must cover."""
    turn: int = 0
    """Its place among all requests of the worker that ever waited: who came first has the lowest."""


class LeaseRequest(NamedTuple):
    """What a worker tells the store of an account: where it stands, not what changed, so it may be told twice."""

    unit: Unit
    limit: int
    kept: int
    """What it goes on using of its lease while this is under way."""
    held: int
    """Of that, what cannot be returned: under way, and of money unwritten."""
    expected: int
    """What `held` will probably come to."""
    need: int
    """What the requests that wait need beyond `kept`."""
    need_expected: int
    """What those requests will probably come to."""
    least: int
    """What the next of them needs beyond `kept`, of money the first and else the smallest: less is of no use."""
    least_expected: int
    comfort: int
    """What is welcome beyond, so that the next requests need not ask."""
    used: int
    """Of requests and tokens: all that this worker used since it began."""
    reported: int
    """Of that, what the store has confirmed."""


class LeaseReply(NamedTuple):
    """The store's reply to one worker on one account. Amounts are in the account's unit."""

    lease: int
    spent: int
    """Money spent in the window; requests or tokens used in the last minute."""
    others: int
    """Leases of other workers."""
    others_held: int
    others_expected: int
    pressed: int
    """1 if a worker lately got less than it needed, so that nothing is to be kept idle."""
    denied: int
    """1 if those that wait got nothing."""
    retry_ms: int
    """When denied: milliseconds until enough of the minute has passed; 0 if that is not known."""
    reset_ms: int
    """Milliseconds until all of the minute's use has passed; 0 of other units."""


class AccountLease:
    """One worker's side of one account. Times are seconds of one monotonic clock of the caller's."""

    __slots__ = (
        "_asked_least",
        "_before",
        "_denied",
        "_denied_least",
        "_reported",
        "_reporting",
        "_sent_at",
        "_taken",
        "_taken_at",
        "_until",
        "_written",
        "denied_until",
        "dirty",
        "expected",
        "free_at",
        "heard_at",
        "lease",
        "limit",
        "money",
        "others",
        "others_expected",
        "others_held",
        "pressed",
        "retry_at",
        "spent",
        "under",
        "unit",
        "unwritten",
        "waiting",
    )

    def __init__(self, unit: Unit, limit: int) -> None:
        self.unit: Unit = unit
        self.money = unit == "usd"
        self.limit = limit
        self.lease = self.under = self.expected = self.unwritten = 0
        self.spent = self.others = self.others_held = self.others_expected = self.pressed = 0
        self.heard_at = self.free_at = self.denied_until = self.retry_at = self._until = self._sent_at = (
            self._taken_at
        ) = _NEVER
        self.waiting: list[WaitingRequest] = []
        """The requests that wait for this account, in their turn."""
        self.dirty = False
        """Whether the store is to be told something soon."""
        self._denied = GRANTED
        self._denied_least = self._taken = 0
        self._reported = self._reporting = self._asked_least = 0
        self._written = self._before = 0

    def recall(self, before: AccountLease) -> None:
        """Go on from an earlier lease of this worker's: the store may know it still, and compare with what it said."""
        self.heard_at, self.spent, self._reported = before.heard_at, before.spent, before._reported

    def check(self, expected: int, needed: int, now: float) -> int:
        """Return whether a request gets in: GRANTED, or why not. `needed` is `expected` of all units but money."""
        if self.money:
            if self.spent >= self.limit:
                return EXHAUSTED if now < self.heard_at + RECHECK_S else DRY
            known = self.known
            under_way = self.under or self.others_held
            if known >= self.limit or (under_way and known + self.others_expected + self.expected >= self.limit):
                return HELD if now < self.heard_at + RETRY_S else DRY
        if needed <= self.lease - self.under - self.unwritten and now < self._until:
            return GRANTED
        return self._denied if now < self.denied_until and needed >= self._denied_least else DRY

    @property
    def is_nearly_spent(self) -> bool:
        """Whether so much of the money is spent that a request must be covered to the most that it can cost."""
        return self.known > _WORST_FROM * self.limit

    @property
    def is_tight(self) -> bool:
        """Whether so much of the money is spent or leased that nothing of it is to be kept idle."""
        return self.money and 2 * (self.spent + self._written + self.others + self.lease) > self.limit

    def is_worth_waiting(self, needed: int, ahead: Sequence[WaitingRequest]) -> bool:
        """Return whether a request that does not fit may yet get in if it waits behind those `ahead`."""
        known = self.known
        if known >= self.limit:
            return self.spent < self.limit  # a record may be counted twice until its writer hears that it is written
        if known + self.expected + self.others_expected + sum(request.expected for request in ahead) >= self.limit:
            return False
        held = known + self.under + self.others_held + sum(request.needed for request in ahead)
        return known >= _WAITS_FROM * self.limit or held + needed <= self.limit  # then others will return what is idle

    def take(self, expected: int, needed: int, now: float) -> None:
        """Hold `needed` of the account for a request, though `check` may not grant it; `expected` is its likely use."""
        self.under += needed
        self.expected += expected
        self._taken += needed
        self._taken_at = now
        self.free_at = now + 60.0
        self.dirty = True

    def settle(self, expected: int, needed: int, used: int) -> None:
        """End the hold of a request (as it was taken), and count what it has used."""
        self.under -= needed
        self.expected -= expected
        self.dirty = True
        if used < needed and (self.pressed or self.is_tight):  # whose turn it is, the store knows
            self.lease -= needed - used
        if self.unit != "concurrent":
            self.unwritten += used
        if self.unit == "tokens" and used > needed:  # the next requests will probably use more than is expected, too
            self._taken += used - needed

    def written(self, amount: int) -> None:
        """Note that records of this worker were written that add `amount` to what is spent."""
        amount = min(amount, self.unwritten)
        self.unwritten -= amount
        self.lease -= amount
        self._written += amount
        self.dirty = True

    def change_limit(self, limit: int) -> None:
        """Go by another limit from now on."""
        if limit < self.limit:
            self.lease = min(self.lease, self.under + self.unwritten)
        self.limit = limit
        self.denied_until = _NEVER
        self.dirty = True

    def give_back(self) -> None:
        """Return with the next exchange all that no request holds."""
        self._taken, self._taken_at, self.dirty = 0, _NEVER, True

    @property
    def known(self) -> int:
        """Nanodollars that are spent as far as this worker knows, its own unreported ones included."""
        return self.spent + self._written + self.unwritten

    @property
    def written_since(self) -> int:
        """Nanodollars of this worker's records that were written since the store was heard last."""
        return self._written

    @property
    def confirmed(self) -> int:
        """Requests or tokens that this worker used since it began, as far as the store has confirmed them."""
        return self._reported

    @property
    def used(self) -> int:
        """What is used, and what requests under way hold: of money what they probably cost."""
        if self.money:
            return self.known + self.expected + self.others_expected
        return self.spent + self.unwritten + self.under + self.others_held

    def is_due(self, now: float) -> bool:
        """Return whether the store is to hear of this account: something changed, or the lease needs its beat."""
        return self.dirty or (self.lease > 0 and now >= self._sent_at + BEAT_S)

    @property
    def is_done(self) -> bool:
        """Whether nothing is held, leased or waited for, so that it can be forgotten."""
        return not (self.under or self.unwritten or self.lease > 0 or self.waiting or self.dirty)

    def send(self, now: float) -> LeaseRequest:
        """Return what this worker reports and asks of the account, to be sent to the store.

        `heard` or `failed` must follow before the next `send`.
        """
        over = self.is_tight if self.money else self.spent + self.others + self.lease > self.limit
        lapsed, unused = now >= self._until, now >= self._taken_at + _IDLE_S
        waiting = self.waiting
        least = (waiting[0] if self.money else min(waiting, key=_NEEDED)) if waiting else _NOBODY
        short = self.lease - self.under - self.unwritten < least.needed  # else those that wait are about to take it
        if short or (not waiting and (self.pressed or over or unused)) or lapsed:
            self.lease = min(self.lease, self.under + self.unwritten)
        self._reporting = 0 if self.money else self.unwritten
        held = self.under + self.unwritten - self._reporting
        kept = max(self.lease - self._reporting, held)
        spare, needed = kept - held, sum(request.needed for request in waiting)
        self._sent_at, self._before, self._asked_least, self.dirty = now, self._written, least.needed, False
        comfort = 0 if self.money and over else max(2 * self._taken - spare, 0)
        self._taken = 0
        return LeaseRequest(
            self.unit, self.limit, kept, held, self.expected + (self.unwritten if self.money else 0),
            max(needed - spare, 0), sum(request.expected for request in waiting),
            max(least.needed - spare, 0), least.expected, comfort,
            self._reported + self._reporting, self._reported,
        )  # fmt: skip

    def heard(self, reply: LeaseReply, now: float) -> None:
        """Take what the store replied to the last `send`."""
        self.lease = reply.lease - (self._written - self._before)
        self._written = 0
        self.unwritten -= self._reporting
        self._reported += self._reporting
        self._reporting = 0
        self._until = self._sent_at + LIFE_S[self.unit]
        self.spent, self.others = reply.spent, reply.others
        self.others_held, self.others_expected, self.pressed = reply.others_held, reply.others_expected, reply.pressed
        self.heard_at, self.free_at = now, max(self.free_at, now + reply.reset_ms / 1000)
        self.denied_until = _NEVER
        if reply.denied:
            self._denied_least = self._asked_least
            free = self.limit - reply.spent - reply.others_held - self.under - self.unwritten
            passes = self.unit in ("requests", "tokens") and free < self._denied_least  # only time makes room
            self._denied = FULL if passes else HELD
            self.denied_until = now + (RECHECK_S if self._denied == FULL else RETRY_S)
            self.retry_at = now + reply.retry_ms / 1000

    def failed(self, *, lasting: bool) -> None:
        """Note that no reply came to the last `send`; a `lasting` lease has no deadline until one comes."""
        self._reporting = 0
        self.dirty = True
        if lasting and self.lease > 0:
            self._until = _EVER


_NEVER: Final = float("-inf")
_EVER: Final = float("inf")
_NEEDED: Final = attrgetter("needed")
_NOBODY: Final = WaitingRequest(0, 0)


MINUTE_S = 60.0
_SLOT_S = 0.25
"""What is let in within so many seconds is kept in one entry, and counts as let in at their end."""


class OwnCount:
    """This worker's own count of an account's use, since the first request that it admitted without the store."""

    def __init__(self, lease: AccountLease) -> None:
        self._before = lease.confirmed
        """All that this worker had used a minute ago, and before it."""
        self._samples: deque[tuple[float, int]] = deque()
        """What it had used in all by certain times within the last minute."""

    def fits(self, lease: AccountLease, amount: int, now: float) -> bool:
        """Return whether so much more fits into the limit; `amount` is of the unit of the lease."""
        if lease.unit == "concurrent":
            return lease.under + amount <= lease.limit
        total = lease.confirmed + lease.unwritten + lease.under
        while self._samples and self._samples[0][0] + _SLOT_S <= now - MINUTE_S:
            self._before = self._samples.popleft()[1]
        used = total - self._before
        if now < lease.heard_at + MINUTE_S:
            used += lease.spent + lease.others
        if not self._samples or now >= self._samples[-1][0] + _SLOT_S:
            self._samples.append((now, total))
        else:
            self._samples[-1] = (self._samples[-1][0], total)
        return used + amount <= lease.limit
