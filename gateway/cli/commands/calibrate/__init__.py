"""Run `tierline calibrate`: choose a surface's thresholds from labelled requests, so that a target provably holds."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gateway.cli.commands import CommandError
from gateway.cli.commands._flags import add_config_flags, launch_of, share_number
from gateway.cli.commands.calibrate import view
from gateway.cli.commands.calibrate.change import Change, change_to
from gateway.cli.commands.calibrate.from_data import Scorers, from_data, sheet_of
from gateway.cli.commands.calibrate.from_ledger import from_ledger
from gateway.cli.commands.calibrate.labelled import LabelledSurface, LabelledTraffic, find_surface
from gateway.config.schema import Deployment
from gateway.exit_codes import Exit
from offline.calibration.cases import Cases
from offline.calibration.check import Check, check
from offline.calibration.choose import Choice, Target, choose
from offline.datasets import DataError
from offline.progress import OnProgress, progress
from offline.report import print_json
from policies.loader import SHIPPED
from routing.confidence.head import ConfidenceHead, shipped_head
from routing.confidence.judge import ScoringHead
from routing.difficulty.model import ArtefactError, DifficultyModel, shipped_artefact
from routing.embedding.embedder import EmbedderUnavailable, load_embedder

_EXAMPLES = """examples:
  tierline calibrate --surface chat --target quality=0.97 --data mine.jsonl --small llama-8b --large gpt-4o
                              print the change to the policy of chat, from rows of graded answers
  tierline calibrate --surface chat --target error=0.02 --data mine.jsonl --delta 0.05 --out chat.diff
                              write the change to a file
  tierline trace list -n 10000 --json > ledger.jsonl
  tierline calibrate --surface chat --target cost=0.4 --ledger ledger.jsonl --labels labels.jsonl --write
                              change the policy, from recorded traffic and labels for it

targets:
  quality=0.97  the served answers are right at least 0.97 times as often as the large model's answers would be
  error=0.02    at most 2% of all requests get a wrong answer from the small model that the large one would get right
  cost=0.4      the best quality at no more than 40% of the cost of always asking the large model

The target holds with probability 1 - delta for requests like the labelled ones, so label a random sample of the
surface's traffic. A row of --data is {"id", "dataset", "group", "prompt", "models": {name: {"correct": 0..1,
"confidence" or "logprobs", "cost_usd"?, "tok_in"?, "tok_out"?}}}; a label for --ledger is {"request_id", "small": 0..1,
"large": 0..1}.
Exit code 1: the data cannot prove the target; the message says about how many labels are missing."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `calibrate` to the command line."""
    parser = subparsers.add_parser(
        "calibrate",
        help="choose a surface's thresholds from labelled requests",
        description="Choose the thresholds that decide where a surface's requests start and which answers are "
        "escalated: the cheapest setting that meets the target with the given confidence. Print the curve of settings, "
        "and the change to the policy as a diff.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--surface", required=True, metavar="NAME", help="the surface whose policy to calibrate")
    parser.add_argument(
        "--target", type=_target, required=True, metavar="TARGET", help="quality=SHARE, error=SHARE or cost=SHARE"
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, nargs="+", metavar="FILE", help="rows of both models' graded answers")
    source.add_argument("--ledger", type=Path, metavar="FILE", help="the output of `tierline trace list --json`")
    parser.add_argument(
        "--labels", type=Path, metavar="FILE", help="which of the two models was right, by request, for --ledger"
    )
    for role, tier in (("small", "first"), ("large", "second")):
        parser.add_argument(
            f"--{role}", metavar="NAME", help=f"the {role} model's name in --data (default: the {tier} tier's model)"
        )
    parser.add_argument(
        "--stream",
        action="store_true",
        help="judge the answers of --data as streams: by the tokens that the policy holds back",
    )
    parser.add_argument(
        "--delta",
        type=share_number,
        default=0.1,
        metavar="SHARE",
        help="highest probability that the target does not hold (default: 0.1)",
    )
    parser.add_argument("--artefact", type=Path, metavar="DIR", help="the classifier's folder (default: the config's)")
    parser.add_argument(
        "--head", type=Path, metavar="FILE", help="the confidence head's file (default: the one shipped for the model)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the diff to this file (default: print it)")
    parser.add_argument("--write", action="store_true", help="change the policy file in place")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the curve to this file (needs matplotlib)")
    parser.add_argument(
        "--check",
        type=_rounds,
        metavar="N",
        help="also calibrate on N random halves of the labels, and print how often the target holds",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument(
        "--state", type=Path, default=Path(".state"), metavar="DIR", help="the folder of the text encoder's files"
    )
    add_config_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Choose thresholds, print them, and write the change.

    Raises CommandError, with Exit.FINDINGS if the labels cannot prove the target for any setting.
    """
    if (args.ledger is None) != (args.labels is None):
        raise CommandError("--ledger and --labels belong together: give both, or --data instead")
    deployment = launch_of(args).deployment()
    surface = find_surface(args.surface, args.policies or SHIPPED, deployment)
    try:
        with progress(quiet=args.json) as on_progress:
            labelled = _labelled(args, surface, deployment, on_progress)
            choice = choose(_usable(labelled), args.target, args.delta)
            checked = _checked(args, labelled, on_progress)
    except (DataError, ArtefactError, EmbedderUnavailable) as error:
        raise CommandError(str(error)) from None
    change = change_to(surface, choice.setting, labelled.basis) if choice.setting else None
    _print(args, surface, labelled, choice, checked, change)
    if change is None:
        raise CommandError(view.refusal(choice), Exit.FINDINGS)
    _write(args, change)
    return Exit.OK


def _labelled(
    args: argparse.Namespace, surface: LabelledSurface, deployment: Deployment, on_progress: OnProgress
) -> LabelledTraffic:
    if args.ledger is not None:
        return from_ledger(surface, args.ledger, args.labels)
    models = args.small or surface.small.model, args.large or surface.large.model
    scorers = _scorers(args, surface, models[0], deployment)
    return from_data(surface, args.data, models, scorers, on_progress)


def _scorers(args: argparse.Namespace, surface: LabelledSurface, small: str, deployment: Deployment) -> Scorers:
    """Load the deployment's classifier, and the small model's confidence head if there is one."""
    kind = deployment.embedding.kind
    artefact = args.artefact or deployment.classifier or shipped_artefact(kind)
    embedder = load_embedder(kind, args.state)
    file = args.head or shipped_head(small)
    head: ScoringHead | None = ConfidenceHead.load(file) if file else None
    if args.head is None and small == surface.small.model:
        head = surface.small.head  # the config's, which may be another than the shipped one, or None
    sheets = (sheet_of(artefact), file) if file else (sheet_of(artefact),)
    first = surface.policy.escalate.stream.hold_tokens if args.stream else None
    return Scorers(embedder, DifficultyModel.load(artefact, embedder), head, sheets, first)


def _usable(labelled: LabelledTraffic) -> Cases:
    cases = labelled.cases
    if not cases.large.any():
        raise CommandError("the large model is never right in these labels, so there is no quality to keep")
    return cases


def _checked(args: argparse.Namespace, labelled: LabelledTraffic, on_progress: OnProgress) -> Check | None:
    if args.check is None:
        return None
    if len(labelled.cases) < 2:
        raise CommandError("--check needs at least two labels, one for each half")
    return check(
        labelled.cases,
        args.target,
        args.delta,
        args.check,
        on_progress,
    )


def _print(
    args: argparse.Namespace,
    surface: LabelledSurface,
    labelled: LabelledTraffic,
    choice: Choice,
    checked: Check | None,
    change: Change | None,
) -> None:
    if args.plot is not None:
        from gateway.cli.commands.calibrate.plot import plot

        plot(choice, args.plot)
    if args.json:
        report = view.as_json(surface, labelled, choice, checked, change)
        print_json(report)
        return
    view.show(surface, labelled, choice)
    if checked is not None:
        view.show_check(checked, choice)


def _write(args: argparse.Namespace, change: Change) -> None:
    """Write the diff to --out or stdout, and with --write the policy file. Raises CommandError."""
    try:
        if args.out is not None:
            args.out.write_text(change.diff, encoding="utf-8")
        if args.write:
            change.write()
    except OSError as error:
        raise CommandError(f"{error.filename} cannot be written: {error.strerror}") from None
    if args.json:
        return
    if args.out is None:
        sys.stdout.write(change.diff or f"{change.file} has these thresholds already\n")
    for done in ([f"the diff is in {args.out}"] if args.out else []) + (
        [f"{change.file} is changed"] if args.write else []
    ):
        sys.stdout.write(done + "\n")


def _target(text: str) -> Target:
    name, _, level = text.partition("=")
    share = share_number(level) if name in ("quality", "error", "cost") else None
    if name == "quality" and share is not None:
        return Target("quality", share)
    if name == "error" and share is not None:
        return Target("error", share)
    if name == "cost" and share is not None:
        return Target("cost", share)
    raise argparse.ArgumentTypeError(f"{text!r} is not a target; write quality=0.97, error=0.02 or cost=0.4")


def _rounds(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 100000")
    return int(text)
