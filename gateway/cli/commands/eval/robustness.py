"""Run `tierline eval robustness`: measure how often a rephrased question goes to the same tier."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from rich.table import Table

from gateway.cli.commands._flags import seed_number
from gateway.cli.commands._output import console_of_stdout, print_json
from gateway.cli.commands.eval import _report
from gateway.cli.commands.eval._artefact import ServedArtefact
from gateway.cli.commands.eval._data import whole
from gateway.cli.commands.eval._pairs import QuestionPair, read_pairs
from gateway.exit_codes import Exit
from offline.datasets import DataError
from offline.evaluation.figures import Interval, share
from offline.evaluation.stability import Assessed, Cut, agreement, best, cuts
from offline.progress import progress
from policies.loader import read_policy
from policies.model import Policy
from routing.decide import rule_values
from routing.difficulty.model import Difficulty
from routing.embedding.embedder import EmbedderKind
from routing.features import features_of_text

_EXAMPLES = """examples:
  tierline eval robustness --pairs paraphrases.jsonl.gz
                              with the shipped classifier, on 5,000 random pairs
  tierline eval robustness --pairs paraphrases.jsonl.gz --artefact my-classifier --limit 0
                              with your own classifier, on all pairs
  tierline eval robustness --pairs paraphrases.jsonl.gz --policy policies/chat.yaml
                              also under the start rules of a policy

A row is a line of JSON: {"id", "dataset", "group", "a", "b", "same_answer"}; pairs with same_answer true are used.
Thresholds on p_adequate are set so that the small tier gets 20 to 80% of the pairs' texts; for each, the command prints
the share of pairs whose texts go to the same tier. `same tier` in the JSON is the best of those at which each tier gets
at least a fifth of the texts. Intervals are the central 95% of 1,000 bootstrap resamples of the pairs."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `robustness` to the subcommands of `tierline eval`."""
    parser = subparsers.add_parser(
        "robustness",
        help="measure how often a rephrased question goes to the same tier",
        description="Measure how often two texts that ask the same go to the same tier.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--pairs", type=Path, required=True, metavar="FILE", help="labelled pairs: JSON lines, plain or .gz"
    )
    parser.add_argument(
        "--artefact",
        default="static",
        metavar="PATH",
        help="the classifier: its folder, or 'static' (default) or 'minilm' for a shipped one",
    )
    parser.add_argument(
        "--embedding", choices=get_args(EmbedderKind), help="the text encoder (default: the artefact's)"
    )
    parser.add_argument(
        "--limit", type=whole(0), default=5000, metavar="N", help="use N random pairs; 0 for all (default: 5000)"
    )
    parser.add_argument(
        "--policy", type=Path, metavar="FILE", help="also measure agreement under this policy's start rules"
    )
    parser.add_argument(
        "--seed",
        type=seed_number,
        default=0,
        metavar="N",
        help="random seed of the sample and the resamples (default: 0)",
    )
    parser.add_argument(
        "--state", type=Path, default=Path(".state"), metavar="DIR", help="the folder of the text encoder's files"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.set_defaults(evaluate=evaluate)


@dataclass(frozen=True, slots=True)
class _Stability:
    """Results. `flips`: the share of pairs with one text in the classifier's domain and the other outside."""

    cuts: list[Cut]
    best: Cut | None
    groups: dict[str, tuple[int, Interval]]
    in_domain: Interval
    flips: Interval
    policy: dict[str, Any] | None


def evaluate(args: argparse.Namespace) -> int:
    """Score both texts of every pair, and print how often they go to the same tier."""
    policy = read_policy(args.policy)[0] if args.policy else None
    pairs, notes = _chosen(args)
    with progress() as on_progress:
        served = ServedArtefact.open(args.artefact, args.embedding, args.state)
        texts = [text for pair in pairs for text in (pair.a, pair.b)]
        scores = list(served.assess(texts, on_progress))
    stability = _stability(pairs, scores, policy, args.seed)
    artefact = {"path": args.artefact, "version": served.model.version}
    facts = {"artefact": artefact, "embedding": served.embedder.name, "seed": args.seed, "notes": notes}
    if args.json:
        print_json({**_as_json(stability), "n": len(pairs), "pairs": args.pairs.name, **facts})
    else:
        title = f"{args.pairs.name}: n = {len(pairs):,} pairs; artefact {served.model.version}, {served.embedder.name}"
        _print(title, stability, notes)
    return Exit.OK


def _chosen(args: argparse.Namespace) -> tuple[list[QuestionPair], list[str]]:
    """Return the pairs that ask the same, or a sample of them, and notes on what was left out. Raises DataError."""
    pairs, conversations = read_pairs(args.pairs)
    same = [pair for pair in pairs if pair.same_answer]
    if not same:
        raise DataError(f"{args.pairs}: none of the {len(pairs)} pairs has same_answer true")
    notes = [f"{conversations:,} pairs of conversations were skipped"] if conversations else []
    if 0 < args.limit < len(same):
        rows = np.random.default_rng(args.seed).choice(len(same), args.limit, replace=False)
        notes.append(f"{args.limit:,} of {len(same):,} pairs, at random; --limit 0 takes all")
        same = [same[row] for row in np.sort(rows)]
    return same, notes


def _stability(
    pairs: Sequence[QuestionPair], scores: Sequence[Difficulty], policy: Policy | None, seed: int
) -> _Stability:
    assessed = Assessed(
        np.array([difficulty.p_adequate for difficulty in scores]).reshape(-1, 2),
        np.array([difficulty.in_domain for difficulty in scores]).reshape(-1, 2),
    )
    every = cuts(assessed, seed)
    top = best(every)
    names = np.array([pair.group for pair in pairs])
    groups: dict[str, tuple[int, Interval]] = {}
    if top is not None:
        same = agreement(assessed.p_adequate >= top.threshold)
        for name in dict.fromkeys(names.tolist()):
            own = same[names == name]
            groups[name] = (len(own), share(own, seed))
    return _Stability(
        every,
        top,
        groups if len(groups) > 1 else {},
        share(assessed.in_domain.mean(axis=1), seed),
        share(1.0 - agreement(assessed.in_domain), seed),
        None if policy is None else _under(policy, pairs, scores, seed),
    )


def _under(policy: Policy, pairs: Sequence[QuestionPair], scores: Sequence[Difficulty], seed: int) -> dict[str, Any]:
    """Measure agreement under the policy's start rules, with the whole deadline left and every tier ready."""
    texts = [text for pair in pairs for text in (pair.a, pair.b)]
    tiers = np.array([_start(policy, *each) for each in zip(texts, scores, strict=True)]).reshape(-1, 2)
    shares = {name: round(float((tiers == number).mean()), 4) for number, name in enumerate(policy.tiers)}
    return {"policy": policy.label, "same_tier": share(agreement(tiers), seed), "share_per_tier": shares}


def _start(policy: Policy, text: str, difficulty: Difficulty) -> int:
    values = rule_values(difficulty, features_of_text(text), policy.slo.deadline)
    return policy.tiers.index(next(tier for tier, rule in policy.route.start.items() if rule.holds(values)))


def _as_json(found: _Stability) -> dict[str, Any]:
    report: dict[str, Any] = {"agreement": {}, "agreement_in_domain": {}, "small_share": {}}
    for cut in found.cuts:
        report["agreement"][str(cut.asked)] = _report.interval_json(cut.same)
        report["small_share"][str(cut.asked)] = round(cut.small_share, 4)
        if cut.same_inside is not None:
            report["agreement_in_domain"][str(cut.asked)] = _report.interval_json(cut.same_inside)
    if found.best is not None:
        at = {"at": found.best.asked, "threshold": round(found.best.threshold, 4)}
        report["same_tier"] = {**_report.interval_json(found.best.same), **at}
        groups = {name: {**_report.interval_json(same), "n": n} for name, (n, same) in found.groups.items()}
        report |= {"groups": groups} if groups else {}
    report["in_domain"] = _report.interval_json(found.in_domain)
    report["in_domain_flips"] = _report.interval_json(found.flips)
    if found.policy is not None:
        report["policy"] = {**found.policy, "same_tier": _report.interval_json(found.policy["same_tier"])}
    return report


def _print(title: str, found: _Stability, notes: Sequence[str]) -> None:
    console = console_of_stdout(_report.WIDTH)
    console.print(title, style="bold")
    console.print(f"in domain: {_report.percent(found.in_domain)} of the texts; ", end="")
    console.print(f"of {_report.percent(found.flips)} of the pairs only one is")
    console.print()
    console.print(_cuts_table(found))
    console.print()
    if found.groups and found.best is not None:
        console.print(_groups_table(found, found.best))
        console.print()
    if found.best is None:
        console.print("- no cut leaves each tier a fifth of the traffic: too many texts have one score", style="dim")
    if found.policy is not None:
        shares = ", ".join(f"{name} {part:.0%}" for name, part in found.policy["share_per_tier"].items())
        same = _report.percent(found.policy["same_tier"])
        console.print(f"- {found.policy['policy']}: same tier for {same} of the pairs; {shares}", style="dim")
    _report.print_notes(console, notes)


def _cuts_table(found: _Stability) -> Table:
    table = _report.table("small tier's share", "p_adequate >=", "same tier", "same tier, both in domain", "")
    for cut in found.cuts:
        mark = "best" if cut is found.best else ""
        same, inside = _report.percent(cut.same), _report.percent(cut.same_inside)
        table.add_row(f"{cut.small_share:.1%}", f"{cut.threshold:.3f}", same, inside, mark)
    return table


def _groups_table(found: _Stability, top: Cut) -> Table:
    table = _report.table("group", "n", f"same tier, at {top.small_share:.0%}")
    for name, (count, same) in found.groups.items():
        table.add_row(name, f"{count:,}", _report.percent(same))
    return table
