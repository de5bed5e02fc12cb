"""Evaluate how often two texts that ask the same go to the same tier: `python -m tests.bench.measure_robustness`.

A router that ranks by chance keeps a pair together half the time where both tiers get half of the traffic, and nearly
always where one tier gets nearly all of it: so agreement is measured where each tier has a substantial share.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from gateway.cli.flags import add_json_flag, whole
from gateway.parts.fit.curves import Floats
from gateway.parts.fit.datasets import DataError, read_pairs, sampled
from gateway.parts.fit.evaluation.artefact import ServedArtefact
from gateway.parts.fit.evaluation.prompts import interval_json, percents
from gateway.parts.fit.figures import Interval, mean_share
from gateway.parts.fit.flags import add_seed_flag, add_state_flag, options_of
from gateway.report import OnProgress, Report, table
from policies.loader import read_policy
from policies.model import Policy
from routing.decide import start_by_rules
from routing.difficulty.model import Difficulty
from routing.embedder import EmbedderKind
from routing.features import features_of_text
from tools import command

CUTS = (20, 35, 50, 65, 80)
"""The small tier's target share of the traffic at each cut, in percent."""

_LEAST_SHARE = 0.195  # of either tier, for a cut to count: a fifth, with tolerance for texts at the threshold
_FEWEST_INSIDE = 30


@dataclass(frozen=True, slots=True)
class RobustnessOptions:
    """`limit` is the number of random pairs to use, 0 for all; `policy` the file of start rules to measure as well."""

    pairs: Path
    artefact: str
    embedding: EmbedderKind | None
    limit: int
    policy: Path | None
    seed: int
    state: Path


def evaluate_robustness(options: RobustnessOptions, on_progress: OnProgress) -> Report:
    """Score both texts of every pair that asks the same, and return how often they go to the same tier.

    Raises DataError, ConfigError, ArtefactError, EmbedderUnavailable.
    """
    policy = read_policy(options.policy)[0] if options.policy else None
    every = read_pairs(options.pairs)
    questions = [(pair, pair.a, pair.b) for pair in every if isinstance(pair.a, str) and isinstance(pair.b, str)]
    same = [question for question in questions if question[0].same_answer]
    if not same:
        raise DataError(f"{options.pairs}: none of the {len(questions)} pairs has same_answer true")
    left_out = len(every) - len(questions)
    notes = [f"{left_out:,} pairs of conversations were skipped"] if left_out else []
    chosen = sampled(same, options.limit, options.seed)
    if len(chosen) < len(same):
        notes.append(f"{len(chosen):,} of {len(same):,} pairs, at random; --limit 0 takes all")
    served = ServedArtefact.open(options.artefact, options.embedding, options.state)
    texts = [text for _, a, b in chosen for text in (a, b)]
    scores = list(served.assess([features_of_text(text) for text in texts], on_progress))
    assessed = Assessed(
        np.array([difficulty.p_adequate for difficulty in scores]).reshape(-1, 2),
        np.array([difficulty.in_domain for difficulty in scores]).reshape(-1, 2),
    )
    under = None if policy is None else _under(policy, texts, scores, options.seed)
    stability, lines, comments = _stability(assessed, [pair.group for pair, _, _ in chosen], under, options.seed)
    values = {
        **stability,
        "n": len(chosen),
        "pairs": options.pairs.name,
        "artefact": {"path": options.artefact, "version": served.model.version},
        "embedding": served.embedder.name,
        "seed": options.seed,
        "notes": notes,
    }
    title = f"{options.pairs.name}: n = {len(chosen):,} pairs; artefact {served.model.version}, {served.embedder.name}"
    return Report(values, lines, [*comments, *notes], title)


def _stability(
    assessed: Assessed, groups: Sequence[str], under: dict[str, Any] | None, seed: int
) -> tuple[dict[str, Any], list[str | Table], list[str]]:
    """Return the figures as JSON values, as lines, and the comments on them. `under` are those of a policy's rules."""
    measured = cuts(assessed, seed)
    top = best(measured)
    in_domain, flips = (
        mean_share(assessed.in_domain.mean(axis=1), seed),
        mean_share(1.0 - agreement(assessed.in_domain), seed),
    )
    values: dict[str, Any] = {
        "agreement": {str(cut.asked): interval_json(cut.same) for cut in measured},
        "agreement_in_domain": {
            str(cut.asked): interval_json(cut.same_inside) for cut in measured if cut.same_inside is not None
        },
        "small_share": {str(cut.asked): round(cut.small_share, 4) for cut in measured},
    }
    by_cut = table("small tier's share", "p_adequate >=", "same tier", "same tier, both in domain", "")
    for cut in measured:
        both = percents(cut.same), percents(cut.same_inside)
        by_cut.add_row(f"{cut.small_share:.1%}", f"{cut.threshold:.3f}", *both, "best" if cut is top else "")
    lines: list[str | Table] = [
        f"in domain: {percents(in_domain)} of the texts; of {percents(flips)} of the pairs only one is",
        "", by_cut, "",
    ]  # fmt: skip
    comments: list[str] = []
    if top is None:
        comments.append("no cut leaves each tier a fifth of the traffic: too many texts have one score")
    else:
        values["same_tier"] = {**interval_json(top.same), "at": top.asked, "threshold": round(top.threshold, 4)}
        names, same = np.array(groups), agreement(assessed.p_adequate >= top.threshold)
        of_group = {name: same[names == name] for name in dict.fromkeys(groups)}
        if len(of_group) > 1:
            each = {name: (len(own), mean_share(own, seed)) for name, own in of_group.items()}
            values["groups"] = {name: {**interval_json(own), "n": count} for name, (count, own) in each.items()}
            by_group = table("group", "n", f"same tier, at {top.small_share:.0%}")
            for name, (count, own) in each.items():
                by_group.add_row(name, f"{count:,}", percents(own))
            lines += [by_group, ""]
    values |= {"in_domain": interval_json(in_domain), "in_domain_flips": interval_json(flips)}
    if under is not None:
        values["policy"] = {**under, "same_tier": interval_json(under["same_tier"])}
        shares = ", ".join(f"{name} {part:.0%}" for name, part in under["share_per_tier"].items())
        comments.append(f"{under['policy']}: same tier for {percents(under['same_tier'])} of the pairs; {shares}")
    return values, lines, comments


def _under(policy: Policy, texts: Sequence[str], scores: Sequence[Difficulty], seed: int) -> dict[str, Any]:
    """Measure agreement under the policy's start rules, with the whole deadline left and every tier ready."""
    tiers = np.array([_start(policy, *each) for each in zip(texts, scores, strict=True)]).reshape(-1, 2)
    shares = {name: round(float((tiers == number).mean()), 4) for number, name in enumerate(policy.tiers)}
    return {"policy": policy.label, "same_tier": mean_share(agreement(tiers), seed), "share_per_tier": shares}


def _start(policy: Policy, text: str, difficulty: Difficulty) -> int:
    tier, _ = start_by_rules(policy, difficulty, features_of_text(text), policy.slo.deadline)
    return policy.tiers.index(tier)


# --- cuts -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assessed:
    """The classifier's results for pairs of paraphrases: shapes (pairs, 2)."""

    p_adequate: Floats
    in_domain: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Cut:
    """One threshold on p_adequate, for a target share of `asked` percent of the texts.

    `small_share` is the share that reaches it, which can differ where scores are equal. `same` is the share of pairs
    whose texts go to one tier; `same_inside` is that of pairs with both texts in the domain (None if they are too few).
    """

    asked: int
    threshold: float
    small_share: float
    same: Interval
    same_inside: Interval | None


def cuts(assessed: Assessed, seed: int) -> list[Cut]:
    """Measure agreement at each of CUTS, with thresholds from the pairs' own texts."""
    both_inside = assessed.in_domain.all(axis=1)
    results = []
    for asked in CUTS:
        threshold = float(np.quantile(assessed.p_adequate, 1 - asked / 100, method="higher"))
        small = assessed.p_adequate >= threshold
        same = agreement(small)
        inside = mean_share(same[both_inside], seed) if both_inside.sum() >= _FEWEST_INSIDE else None
        results.append(Cut(asked, threshold, float(small.mean()), mean_share(same, seed), inside))
    return results


def best(measured: Sequence[Cut]) -> Cut | None:
    """Return the cut with the highest agreement of those that give each tier a fifth of the traffic; None without."""
    balanced = [cut for cut in measured if _LEAST_SHARE <= cut.small_share <= 1 - _LEAST_SHARE]
    return max(balanced, key=lambda cut: cut.same.value, default=None)


def agreement(tiers: NDArray[np.generic]) -> Floats:
    """Return 1 for each pair (pairs, 2) that goes to one tier, else 0."""
    return np.asarray(tiers[:, 0] == tiers[:, 1], np.float64)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure a classifier on pairs and print how often both texts go to the same tier."""
    parser = command.parser("measure_robustness", "tests.bench")
    parser.add_argument("--pairs", type=Path, required=True, metavar="FILE")
    parser.add_argument("--artefact", default="static", metavar="PATH")
    parser.add_argument("--embedding", choices=get_args(EmbedderKind))
    parser.add_argument("--limit", type=whole(0), default=5000, metavar="N")
    parser.add_argument("--policy", type=Path, metavar="FILE")
    add_seed_flag(parser, " of the sample and the resamples")
    add_state_flag(parser)
    add_json_flag(parser)
    return command.run(
        parser, lambda args, watch: evaluate_robustness(options_of(RobustnessOptions, args), watch), argv
    )


if __name__ == "__main__":
    sys.exit(main())
