"""Say what a conversation's change from one model to another cost: prompt that was read again, reasoning that was lost.

A conversation keeps its prompt in the cache of the backend that answered its last turn. A turn that another one answers
is read there from the beginning. All here is computed from the ledgers of its requests, at the prices of the config.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from gateway.chat.usage import Usage
from gateway.config.prices import Price
from routing.decide import GOES_ON

Row = Mapping[str, Any]
"""A row of the archive's view `requests`, with the parts of its decision that `views.conversation` selects."""
Cause = Literal["client", "holdout", "escalation", "health", "late", "policy", "back", "chosen", "spread"]

FORCED: Final = frozenset({"escalation", "health", "late", "policy", "holdout", "client"})
"""Causes that lie outside of the request: the router would have stayed, or did not choose."""
REASONING: Final = "reasoning"
"""Entry of a ledger's `dropped` for reasoning of another backend that was left out."""
_SHRINKS: Final = 0.75
"""A prompt may be counted this much shorter than the turn before: tokenizers differ that much, conversations grow."""
_ERROR: Final = 400


@dataclass(frozen=True, slots=True)
class TierFlip:
    """One change of the model that answers. `tokens_again` is prompt of earlier turns that was not read from the cache
    of the new backend, and `usd_again` what it cost more than cached; None where its provider tells nothing of a cache.
    """

    before: str
    """Tier of the turn before, or its backend where the tier is the same."""
    after: str
    within_tier: bool
    cause: Cause
    why: str
    tokens_again: int | None
    usd_again: float | None

    @property
    def forced(self) -> bool:
        """Whether the cause lies outside of the request."""
        return self.cause in FORCED


@dataclass(frozen=True, slots=True)
class ConversationTurn:
    """One request of a conversation, with the call that answered it; `tokens_in` is that call's prompt.

    Without a call (`backend` is '') it was a cache hit, or failed. `tokens_cached` is None where it is not known.
    """

    number: int
    request_id: str
    entry_ms: int
    started_s: float
    path: str
    status: int
    error: str
    tier: str
    backend: str
    model: str
    policy: str
    tokens_in: int | None
    tokens_cached: int | None
    tokens_out: int | None
    cost_usd: float
    cost_unknown: bool
    saved_usd: float | None
    """What the call cost less because a part of its prompt was cached; None if not known."""
    alone_usd: float | None
    """What the strongest tier alone would have cost; None if that, or what the turn cost, is not known."""
    dropped: Sequence[str]
    lost_reasoning: bool
    flip: TierFlip | None
    stayed: str
    """What it would have cost to go to the weaker tier that was wanted, in words; '' if none was."""

    @property
    def failed(self) -> bool:
        """Whether the client got an error."""
        return self.status >= _ERROR


@dataclass(frozen=True, slots=True)
class ConversationSums:
    """What a conversation's flips came to. Sums of tokens and US dollars are of the flips for which both are known."""

    flips: int
    forced: int
    moves: int
    """Changes of the backend within a tier."""
    stayed: int
    """Turns that went on at a stronger tier than was wanted, as that cost less."""
    tokens_again: int
    usd_again: float
    unknown: int
    """Flips and moves for which no backend reported cached tokens."""
    usd_unpriced: int
    """Flips and moves whose cached tokens are known, at an unknown price."""
    lost_reasoning: int
    """Turns that were asked without the reasoning of earlier ones."""
    cached_share: float | None
    """Share of earlier turns' prompt that was cached where the backend stayed; None without such turns."""
    saved_usd: float
    cost_usd: float
    cost_unknown: bool
    compared: int
    """Turns of which it is known what they cost, and what the strongest tier alone would have cost."""
    alone_usd: float
    """What the strongest tier alone would have cost for those."""
    less_usd: float
    """What they cost less than that."""


def conversations_in(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the requests of each conversation, in order; `rows` share a name, and are the oldest first.

    Conversations that begin with the same words have the same name. A prompt only grows, so a request belongs to the
    conversation that went on last among those whose latest prompt is no longer than its own. Tokenizers differ: where
    there is none, one that is a little longer will do. A request that fits none begins another. One whose length is
    not known belongs to the latest. Where the client names its session (`gateway.request.session`) there is one, whose
    prompt is short again once the client has cut its history.
    """
    if rows and rows[0].get("session") not in (None, "", rows[0]["conversation"]):
        return [list(rows)]
    found: list[list[Row]] = []
    lengths: list[int] = []
    for row in rows:
        length = row["answer_tokens_in"]
        if length is None:
            fitting = list(range(len(found)))
        else:
            fitting = [place for place, last in enumerate(lengths) if length >= last]
            fitting = fitting or [place for place, last in enumerate(lengths) if length >= last * _SHRINKS]
        if fitting:
            place = max(fitting, key=lambda place: found[place][-1]["started_s"])
            found[place].append(row)
            lengths[place] = length or lengths[place]
        else:
            found.append([row])
            lengths.append(length or 0)
    return found


def turns_of(
    rows: Iterable[Row],
    ladders: Mapping[str, Sequence[str]],
    prices: Mapping[str, Price | None],
    telling: frozenset[str],
) -> list[ConversationTurn]:
    """Return the turns of one conversation. `ladders` has the tiers of each decision's basis, the weakest first.

    `prices` are by backend, and `telling` are the backends whose providers have said what was cached.
    """
    turns: list[ConversationTurn] = []
    before: tuple[Row, Mapping[str, Any]] | None = None
    for number, row in enumerate(rows, 1):
        call = served_call(row)
        tells = call is not None and call["backend"] in telling and not call["estimated"]
        price = prices.get(call["backend"]) if call is not None else None
        flip = None
        if call is not None:
            if before is not None and before[1]["backend"] != call["backend"]:
                flip = _flip(before, row, call, ladders.get(row["basis"] or "", ()), price, tells)
            before = row, call
        turns.append(_turn(number, row, call, price, flip, tells))
    return turns


def _turn(
    number: int, row: Row, call: Mapping[str, Any] | None, price: Price | None, flip: TierFlip | None, tells: bool
) -> ConversationTurn:
    cached = saved = None
    if call is not None and tells:
        cached = call["tokens_cached"] or 0
        saved = None if price is None else price.of(_usage(call, 0)) - price.of(_usage(call, cached))
    dropped = row["dropped"] or ()
    return ConversationTurn(
        number=number,
        request_id=row["request_id"],
        entry_ms=row["entry_ms"],
        started_s=row["started_s"],
        path=row["path"],
        status=row["status"],
        error=row["error"] or "",
        tier=row["tier"],
        backend=call["backend"] if call else "",
        model=row["model"],
        policy=row["policy"],
        tokens_in=call["tokens_in"] if call else None,
        tokens_cached=cached,
        tokens_out=call["tokens_out"] if call else None,
        cost_usd=row["cost_usd"],
        cost_unknown=bool(row["cost_unknown"]),
        saved_usd=saved,
        alone_usd=None if row["cost_unknown"] else row["counterfactual_usd"],
        dropped=dropped,
        lost_reasoning=REASONING in dropped,
        flip=flip,
        stayed=next((part for part in (row["reason"] or "").split("; ") if part.startswith(GOES_ON)), ""),
    )


def sums_of(turns: Sequence[ConversationTurn]) -> ConversationSums:
    """Add up what a conversation's flips cost."""
    flips = [turn.flip for turn in turns if turn.flip is not None]
    known = [flip for flip in flips if flip.tokens_again is not None]
    stayed = read = 0
    before: ConversationTurn | None = None
    for turn in turns:
        if turn.tokens_in is None:
            continue
        if before is not None and before.tokens_in and turn.flip is None and turn.tokens_cached is not None:
            common = min(before.tokens_in, turn.tokens_in)
            stayed += common
            read += min(turn.tokens_cached, common)
        before = turn
    return ConversationSums(
        flips=sum(not flip.within_tier for flip in flips),
        forced=sum(flip.forced for flip in flips if not flip.within_tier),
        moves=sum(flip.within_tier for flip in flips),
        stayed=sum(bool(turn.stayed) for turn in turns),
        tokens_again=sum(flip.tokens_again or 0 for flip in known),
        usd_again=sum(flip.usd_again or 0.0 for flip in known),
        unknown=len(flips) - len(known),
        usd_unpriced=sum(flip.usd_again is None for flip in known),
        lost_reasoning=sum(turn.lost_reasoning for turn in turns),
        cached_share=read / stayed if stayed else None,
        saved_usd=sum(turn.saved_usd or 0.0 for turn in turns),
        cost_usd=sum(turn.cost_usd for turn in turns),
        cost_unknown=any(turn.cost_unknown for turn in turns),
        compared=len(compared := [turn for turn in turns if turn.alone_usd is not None]),
        alone_usd=(alone := sum(turn.alone_usd or 0.0 for turn in compared)),
        less_usd=alone - sum(turn.cost_usd for turn in compared),
    )


def served_call(row: Row) -> Mapping[str, Any] | None:
    """Return the call whose text the client got, the first where another continued it; None if there was none."""
    if row["status"] >= _ERROR or not row["served"]:
        return None
    own: Iterable[Mapping[str, Any]] = row["calls"] or ()
    return next((call for call in own if call["attempt"] in row["served"]), None)


def _usage(call: Mapping[str, Any], cached: int) -> Usage:
    """Return a call's usage as if so much of its prompt had been cached. What is cached need not be written."""
    written = min(call["tokens_cache_write"] or 0, call["tokens_in"] - cached)
    for_an_hour = min(call.get("tokens_hour_write") or 0, written)
    return Usage(
        call["tokens_in"],
        call["tokens_out"],
        tokens_cached=cached,
        tokens_cache_write=written,
        tokens_hour_write=for_an_hour,
    )


def _flip(
    before: tuple[Row, Mapping[str, Any]],
    row: Row,
    call: Mapping[str, Any],
    ladder: Sequence[str],
    price: Price | None,
    tells: bool,
) -> TierFlip:
    within = before[1]["tier"] == call["tier"]
    cause, why = _cause(before[0], row, ladder) if not within else _cause_of_move(row)
    key = "backend" if within else "tier"
    if not tells:
        return TierFlip(before[1][key], call[key], within, cause, why, None, None)
    cached = call["tokens_cached"] or 0
    again = max(0, min(before[1]["tokens_in"], call["tokens_in"]) - cached)
    usd = None
    if price is not None:
        usd = max(0.0, price.of(_usage(call, cached)) - price.of(_usage(call, cached + again)))
    return TierFlip(before[1][key], call[key], within, cause, why, again, usd)


def _cause(before: Row, row: Row, ladder: Sequence[str]) -> tuple[Cause, str]:
    """Return why a turn was answered by another tier than the one before."""
    limits = {name: row[name] for name in ("min_tier", "max_tier") if row[name] and row[name] != before[name]}
    unavailable = dict(zip(ladder, row["unavailable"] or (), strict=False))
    if limits:
        return "client", "the client asked for " + " and ".join(f"{k.replace('_', ' ')} {v}" for k, v in limits.items())
    if row["holdout"]:
        return "holdout", "it was held out: sent to the strongest tier by chance"
    if row["path"] == "escalated":
        return "escalation", f"the answer of {_first_tier(row)} was not good enough"
    if row["path"] in ("fallback", "degraded"):
        return "health", _failure(row)
    if row["stand_in"]:
        return "late", row["stand_in"]
    if reason := unavailable.get(before["tier"]):
        return "health", f"{before['tier']} could not be had: {reason}"
    if row["policy"] != before["policy"]:
        return "policy", f"the policy became {row['policy']}"
    if before["path"] in ("escalated", "fallback", "degraded") or before["holdout"]:
        return "back", "back to the tier where such a turn starts"
    return "chosen", row["reason"] or "the router chose it"


def _cause_of_move(row: Row) -> tuple[Cause, str]:
    if row["path"] in ("fallback", "degraded"):
        return "health", _failure(row)
    return "spread", "the tier's backends share its load (`select: sticky` keeps a conversation with one)"


def _first_tier(row: Row) -> str:
    return next((call["tier"] for call in row["calls"] or () if call["tier"] != row["tier"]), "a weaker tier")


def _failure(row: Row) -> str:
    """Return in words which call failed before the one that answered."""
    failed = [call for call in row["calls"] or () if call["wasted"] and call["attempt"]]
    if failed:
        return f"{failed[0]['tier'] or failed[0]['backend']} did not answer: {failed[0]['outcome']}"
    return "the tiers before it could not be had"
