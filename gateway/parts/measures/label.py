"""Encode and decode labels: what a judge said of two tiers' answers to one request; stored in a stream.

A label holds what the classifier reads of the request (its vector and its counts) and the evidence in the answers, so
that classifier and confidence heads can be fitted to it without the text. The text is there only if the policy's
`learn.keep_text` says so.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson

from cache.store.base import Append
from gateway.parts.measures.reader import entries

if TYPE_CHECKING:
    from cache.store.base import Store
    from routing.confidence.judge import Evidence

LABELS: Final = "tierline:labels"
"""Key of the store's stream of labels, oldest first."""

_VERSION: Final = 1
_BEGINNING: Final = b'{"v":%d,' % _VERSION
_EVIDENCE_TOKENS: Final = 512


@dataclass(frozen=True, slots=True)
class LabelledReply:
    """One of the two answers. `adequate` is 0, 0.5 or 1; `served` is whether the client got it.

    `confidence` is as it was served, None where the answer was not judged then. `evidence` is what `packed_evidence`
    returns, None where there is none.
    """

    tier: str
    backend: str
    model: str
    served: bool
    adequate: float
    cost_usd: float
    tokens_out: int | None
    confidence: float | None
    evidence: Mapping[str, Any] | None
    text: str | None = None
    verified: Mapping[str, float] | None = None
    """What the verifier of the policy said of it, by its name, as `Evidence.verified`."""

    @staticmethod
    def packed_evidence(evidence: Evidence | None) -> dict[str, Any] | None:
        """Return what a confidence head reads of a whole answer; None without log-probabilities.

        `logprobs` and `top_logprobs` are of the first 512 tokens, in float16 and base64; `alternatives` is how many of
        the latter each token has.
        """
        if evidence is None or not evidence.logprobs:
            return None
        tops = [list(logprob) for logprob in evidence.top_logprobs or ()][:_EVIDENCE_TOKENS]
        width = min((len(top) for top in tops), default=0)
        return {
            "finish_reason": evidence.finish_reason,
            "logprobs": PairLabel.packed_vector(evidence.logprobs[:_EVIDENCE_TOKENS]),
            "alternatives": width,
            "top_logprobs": PairLabel.packed_vector([top[:width] for top in tops]) if width else "",
        }


@dataclass(frozen=True, slots=True)
class PairLabel:
    """One judged pair of answers, with the request as the classifier saw it."""

    request_id: str
    tenant: str
    surface: str
    policy: str
    judged_at: float
    """Unix seconds of the verdict."""
    conversation: int
    """32 bits of the name of its session: the same for all turns of a conversation, and its sub-agents'."""
    better: str
    """small, strong or tie."""
    agreed: bool
    """Whether the judge named the same better answer with the answers in either order."""
    judge: str
    """Model of the judge."""
    judge_usd: float
    small: LabelledReply
    strong: LabelledReply
    classifier: str
    """Version of the classifier that rated the request now; it is asked even where the policy does not."""
    embedder: str
    in_domain: bool
    kind: str
    quantile: float | None
    p_right: Sequence[float]
    """Of each of the classifier's tiers, cheapest first; a guess where `in_domain` is false."""
    tokens_in: int
    has_tools: bool
    vector: str
    """The prompt's unit vector: float16 in base64."""
    counts: Sequence[float]
    """`routing.difficulty.text_statistics.COUNTS` of the request."""
    messages: Sequence[Mapping[str, Any]] | None = None
    candidate: str = ""
    """Policy in shadow mode whose answer `strong` is, `small` then being the served one; '' for all other labels.

    Such a label says nothing of tiers: classifier, embedder, vector and counts are empty.
    """

    @staticmethod
    def packed_vector(vector: Any) -> str:
        """Return a vector as float16 in base64."""
        return base64.b64encode(np.asarray(vector, np.float16).tobytes()).decode()

    @staticmethod
    def conversation_of(session: str) -> int:
        """Return a number that all labels of one session share, from the 16 hex digits of its name."""
        return int(session[:8] or "0", 16)

    def append(self, keep: int) -> Append:
        """Return the command that appends it to the stream, which keeps so many."""
        return Append(LABELS, self.encode(), keep)

    def encode(self) -> bytes:
        """Return the bytes to append to the stream."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return orjson.dumps({"v": _VERSION, **fields}, option=orjson.OPT_SERIALIZE_NUMPY)


def decode_label(blob: bytes) -> dict[str, Any] | None:
    """Return the fields of one entry of the stream; None for an entry of another version."""
    if not blob.startswith(_BEGINNING):
        return None
    fields: dict[str, Any] = orjson.loads(blob)
    del fields["v"]
    return fields


def of_served(fields: Mapping[str, Any]) -> float:
    """Return how adequate a decoded label says that the served answer was, 0..1."""
    served = fields["small"] if fields["small"]["served"] else fields["strong"]
    return float(served["adequate"])


async def stored_labels(store: Store) -> list[dict[str, Any]]:
    """Return every stored label of two tiers' answers, decoded, oldest first. Raises StoreUnavailable."""
    decoded = [decode_label(blob) async for _, blob in entries(store, LABELS)]
    return [entry for entry in reversed(decoded) if entry is not None and not entry.get("candidate")]
