"""List every code of a finding in a policy: `tierline policy lint` and `tierline check` show them.

A code keeps its meaning for ever; one that is given up is not used again. The first digit says what it is about:
1 the file, 2 tiers and rules, 3 times, 4 escalation, 5 the cache, 6 load and measurement, 7 the deployment, 8 what was
recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

Severity = Literal["error", "warning"]


class Code(NamedTuple):
    """What a code stands for: a title, how bad it is, and why it matters."""

    title: str
    severity: Severity
    reason: str


CODES: Final[Mapping[str, Code]] = {
    "T101": Code("file cannot be read", "error", "Nothing of it is in force."),
    "T102": Code("not YAML", "error", "The file is not YAML, or uses a part of it that is not read here."),
    "T103": Code("unknown key", "error", "It would change nothing, so it is mostly a slip of the pen."),
    "T104": Code("required key missing", "error", "There is no sensible default."),
    "T105": Code("wrong value", "error", "The key does not take such a value."),
    "T106": Code("not a rule", "error", "The text is no expression, or asks for a value that it does not know here."),
    "T107": Code("key that may not be here", "error", "Tierline sets it itself, or it belongs in another file."),
    "T108": Code("no line break at the end", "error", "It may be cut off, or still being written: it is not taken."),
    "T201": Code("tier named twice", "error", "The order of tiers is the order of escalation."),
    "T202": Code("start at a tier that is not used", "error", "The policy's `tiers` do not have it."),
    "T203": Code("no `otherwise`", "error", "Some requests would have nowhere to start."),
    "T204": Code("tier never reached", "error", "No request starts there or below, and escalation only goes up."),
    "T205": Code("rule can never hold", "error", "No request has such values."),
    "T206": Code("rule always holds", "warning", "It reads like a choice and is none."),
    "T207": Code("rule never reached", "warning", "Rules above take every request for which it could hold."),
    "T208": Code("rule without a classifier", "warning", "`route.classifier` is none, so the value is always missing."),
    "T209": Code("measured traffic unused", "warning", "No rule asks for quantiles."),
    "T210": Code("alias given twice", "warning", "The second one changes nothing."),
    "T211": Code("switching weighed in vain", "warning", "A rule holds the tier, or there is no other."),
    "T301": Code("objectives out of order", "warning", "A lower percentile cannot be longer than a higher one."),
    "T302": Code("objective longer than the deadline", "warning", "The deadline ends every request before."),
    "T303": Code("hold longer than the first token's budget", "warning", "Holding back alone breaks the objective."),
    "T304": Code("hold longer than the deadline", "warning", "A stream is past its deadline before it is judged."),
    "T305": Code("wait longer than the deadline", "warning", "The deadline ends the wait first."),
    "T306": Code("cross-encoder slower than the first token", "warning", "Its call alone breaks the objective."),
    "T307": Code("hedge too late", "warning", "The other tier is asked when its answer can no longer count."),
    "T308": Code("pace too slow for the whole", "warning", "At that pace the longest answer misses its objective."),
    "T309": Code("stages exceed the whole", "warning", "Each may keep its objective and the request miss its own."),
    "T401": Code("nothing to escalate to", "warning", "The threshold changes nothing."),
    "T402": Code("uncalibrated threshold below the calibrated", "warning", "Uncalibrated scores tend to be too high."),
    "T403": Code("samples drawn but unused", "warning", "Each is paid for, or none is ever drawn."),
    "T404": Code("schema checked but not JSON", "warning", "JSON without a schema is then never parsed."),
    "T405": Code("second attempt that never comes", "warning", "`max_attempts` or the number of tiers rules it out."),
    "T406": Code("start during a lookup that is never made", "warning", "There is no semantic cache."),
    "T407": Code("start during a check that is never made", "warning", "No cross-encoder is asked."),
    "T408": Code("arguments checked but not calls", "warning", "Calls that the request does not allow are accepted."),
    "T409": Code("verifier never asked", "warning", "`verify` leaves it out, or names it and it has no section."),
    "T501": Code("semantic cache without an exact one", "warning", "Even equal requests pay for an embedding."),
    "T502": Code("nothing is ever cached", "warning", "A rule of `cache.never` holds for every request."),
    "T503": Code("semantic cache on a surface with tools", "warning", "Requests that offer tools cannot use it."),
    "T504": Code("cross-encoder set but never asked", "warning", "`verify` leaves it out."),
    "T505": Code("cross-encoder that refuses nothing", "warning", "A threshold of 0 serves all."),
    "T506": Code("answers kept longer for other words", "warning", "The exact cache forgets first."),
    "T507": Code("exact cache switched off by its lifetime", "warning", "A lifetime of 0 keeps nothing."),
    "T601": Code("large holdout", "warning", "These requests are answered by the strongest tier only to be compared."),
    "T602": Code("canary without steps", "error", "What is learnt could not be tried step by step."),
    "T603": Code("quality unguarded", "warning", "The change can make answers worse, and its canary would not notice."),
    "T604": Code("session that ends at once", "warning", "Its first request is told to conclude, and calls no tool."),
    "T605": Code("input step that does nothing", "warning", "Another of its keys leaves nothing to it."),
    "T701": Code("tier unknown to the config", "error", "The policy cannot be loaded in this deployment."),
    "T702": Code("backend or service unknown", "error", "The policy cannot be loaded in this deployment."),
    "T703": Code("surface or alias taken twice", "error", "A request's `model` or header would mean two surfaces."),
    "T704": Code("cache wider than the key", "error", "A tenant without a team would share answers with nobody known."),
    "T705": Code("cross-encoder missing or unmeasured", "error", "The config's cannot do what the policy asks."),
    "T706": Code("traffic measured with another classifier", "warning", "Its quantiles do not fit the one in use."),
    "T707": Code("kind unknown to the classifier", "warning", "No comparison with it holds."),
    "T708": Code("no calibrated confidence", "warning", "A backend without a head is judged by another threshold."),
    "T709": Code("escalation without a signal", "warning", "Answers come without confidence: all are treated alike."),
    "T710": Code("judge that judges nothing", "warning", "It has no verdict, on drafts or on stored answers."),
    "T712": Code("load limit beyond the config's", "warning", "The config's cap comes first."),
    "T713": Code("price unknown", "warning", "No cost counts its calls; no hedge, shadow or comparison makes one."),
    "T714": Code("judge of its own answers", "error", "A model prefers its own answers to those of others."),
    "T715": Code("pinned classifier unusable", "error", "It is missing, or another than the policy was made for."),
    "T716": Code("canary without a registry", "error", "Policies come from files: nothing could start or end it."),
    "T717": Code("judge among the tiers", "error", "It answers typed questions about drafts, and no requests."),
    "T718": Code("field set that a backend refuses", "warning", "It is never sent there."),
    "T801": Code("threshold outside the scores seen", "warning", "Nearly all answers, or none, would be escalated."),
    "T802": Code("budget under the first tier's median", "warning", "Half of the answers of that tier come too late."),
    "T803": Code("rule that never held", "warning", "Of the requests recorded it took none."),
    "T804": Code("cache rule that kept nothing out", "warning", "Of the requests recorded it held for none."),
    "T805": Code("cache rule that keeps nearly all out", "warning", "The cache serves hardly anybody."),
}  # fmt: skip
"""Every code. policies/README.md has the same table."""


def is_error(code: str) -> bool:
    """Return whether findings with this code are errors; a problem without a code is one."""
    return code not in CODES or CODES[code].severity == "error"
