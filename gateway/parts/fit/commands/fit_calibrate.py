"""Run `tierline fit calibrate`: choose thresholds of a surface from labelled requests: a target provably holds."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from rich.table import Table
from rich.text import Text

from gateway.cli.commands import CommandError
from gateway.cli.flags import add_config_flags, add_json_flag, launch_of, whole
from gateway.cli.store_flags import take_running
from gateway.config.backends import BackendConfig
from gateway.config.schema import Deployment
from gateway.encoders import load_embedder
from gateway.exit_codes import Exit
from gateway.parts.fit.calibration.change import Change, change_of_traffic, change_to
from gateway.parts.fit.calibration.check import check
from gateway.parts.fit.calibration.choose import Target, TargetKind, choose
from gateway.parts.fit.calibration.from_data import Scorers, from_data
from gateway.parts.fit.calibration.start import StartRules
from gateway.parts.fit.calibration.traffic import LabelledSurface, LabelledTraffic, TierModel
from gateway.parts.fit.calibration.view import calibration_report, plot, refusal
from gateway.parts.fit.commands._ledger_labels import from_ledger
from gateway.parts.fit.commands._ledger_traffic import traffic_of
from gateway.parts.fit.datasets import DataError
from gateway.parts.fit.flags import add_state_flag, share_number
from gateway.parts.heads.head import ConfidenceHead, shipped_head
from gateway.parts.lint.rule_values import asks_for_quantiles
from gateway.parts.rollout.commands._policies_in_force import policies_in_force
from gateway.report import OnProgress, Report, progress, show
from policies.errors import did_you_mean
from policies.loader import DEFAULTS, SHIPPED, PolicySource, policy_files, read_policy
from routing.confidence.judge import ScoringHead
from routing.difficulty.model import SHEET_FILE, ArtefactError, DifficultyModel, shipped_artefact
from routing.embedder import EmbedderUnavailable


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give the parser of `fit calibrate` its options."""
    parser.add_argument("--surface", required=True, metavar="NAME")
    parser.add_argument("--target", type=_target, metavar="TARGET")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--data", type=Path, nargs="+", metavar="FILE")
    source.add_argument("--ledger", type=Path, metavar="FILE")
    parser.add_argument("--labels", type=Path, metavar="FILE")
    parser.add_argument("--traffic", type=Path, metavar="FILE")
    for role, tier in (("small", "first"), ("large", "second")):
        parser.add_argument(
            f"--{role}", metavar="NAME", help=f"the {role} model's name in --data (default: the {tier} tier's model)"
        )
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--delta", type=share_number, default=0.1, metavar="SHARE")
    parser.add_argument("--artefact", type=Path, metavar="DIR")
    parser.add_argument("--head", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    parser.add_argument("--check", type=whole(1, 100_000), metavar="N")
    add_json_flag(parser, "text")
    add_state_flag(parser)
    add_config_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Choose thresholds, print them, and write the change.

    Raises CommandError, with Exit.FINDINGS if the labels cannot prove the target for any setting.
    """
    if (args.ledger is None) != (args.labels is None):
        raise CommandError("--ledger and --labels belong together: give both, or --data instead")
    labels = args.data is not None or args.ledger is not None
    if labels != (args.target is not None) or not (labels or args.traffic):
        raise CommandError("give --target with --data (or --ledger and --labels), or --traffic, or all of them")
    with tempfile.TemporaryDirectory(prefix="tierline-calibrate-") as scratch:
        return _run(args, Path(scratch), labels=labels)


def _run(args: argparse.Namespace, scratch: Path, *, labels: bool) -> int:
    take_running(args)
    launch = launch_of(args)
    deployment = launch.deployment(reads=True)
    folder = args.policies or SHIPPED
    if deployment.policies.source == "store":
        if args.write:
            raise CommandError(
                "policies come from the store here, so there is no file to write; `tierline policy show "
                f"{args.surface} > {args.surface}.yaml` makes one, and --policies with TIERLINE_POLICY_SOURCE=files "
                "names its folder"
            )
        folder = _from_store(args, deployment, launch.policy_source(deployment), scratch)
    surface, small, large = _surface(args.surface, folder, deployment)
    try:
        notes: tuple[str, ...] = ()
        if args.traffic is not None:
            traffic, note = traffic_of(args.surface, args.traffic)
            surface, notes = surface.measured(traffic), (note,)
        if not labels:
            return _write_traffic(args, surface, notes)
        with progress(quiet=args.json) as on_progress:
            if args.ledger is not None:
                labelled = from_ledger(surface, args.ledger, args.labels)
            else:
                labelled = _from_data(args, surface, small, large.model, deployment, on_progress)
            labelled = replace(labelled, notes=(*notes, *labelled.notes))
            if not labelled.cases.large.any():
                raise DataError("the large model is never right in these labels, so there is no quality to keep")
            choice = choose(labelled.cases, args.target, args.delta)
            if args.check is not None and len(labelled.cases) < 2:
                raise DataError("--check needs at least two labels, one for each half")
            checked = check(labelled.cases, args.target, args.delta, args.check, on_progress) if args.check else None
        change = change_to(surface, choice.setting, labelled.basis) if choice.setting else None
        if args.plot is not None:
            try:
                plot(choice, args.plot)
            except OSError as error:
                raise CommandError(f"{args.plot} cannot be written: {error.strerror or error}") from None
    except (DataError, ArtefactError, EmbedderUnavailable) as error:
        raise CommandError(str(error)) from None
    show(calibration_report(surface, labelled, choice, checked, change), as_json=args.json)
    if change is None:
        raise CommandError(refusal(choice), Exit.FINDINGS)
    _write(args, change)
    return Exit.OK


def _from_store(args: argparse.Namespace, deployment: Deployment, source: PolicySource, scratch: Path) -> Path:
    """Write the policies in force in the store into a folder, and return it. Raises CommandError."""
    in_force = policies_in_force(args, deployment, source)
    if (defaults := source.directory / DEFAULTS).is_file():
        shutil.copy(defaults, scratch)
    for surface, text in in_force.texts.items():
        (scratch / f"{surface}.yaml").write_text(text, encoding="utf-8", newline="")
    if args.surface in in_force.texts:
        live, made = in_force.by_surface[args.surface][0], read_policy(scratch / f"{args.surface}.yaml")[0]
        if made.version != live.version:
            raise CommandError(
                f"{live.label} is in force, but its text makes {made.label} with the {DEFAULTS} of "
                f"{source.directory}: name the gateway's folder with --policies"
            )
    return scratch


def _surface(name: str, folder: Path, deployment: Deployment) -> tuple[LabelledSurface, BackendConfig, BackendConfig]:
    """Return the surface of that name, and the first backends of its first two tiers.

    Raises CommandError if it cannot be calibrated, ConfigError for a bad policy.
    """
    read = {policy.surface: (file, policy) for file in policy_files(folder) for policy, _ in [read_policy(file)]}
    if name not in read:
        raise CommandError(f"{folder} has no surface {name!r}{did_you_mean(name, read)}; it has {', '.join(read)}")
    file, policy = read[name]
    if len(policy.tiers) < 2:
        raise CommandError(f"{name} has one tier, {policy.tiers[0]}: there is no threshold to choose")
    if policy.escalate.max_attempts < 2:
        raise CommandError(f"{name} never escalates (max_attempts is 1): there is no threshold to choose")
    backends = {tier.name: tier.backends[0] for tier in deployment.tiers}
    for tier in policy.tiers[:2]:
        if tier not in backends:
            raise CommandError(f"{file}: the deployment has no tier {tier!r}; it has {', '.join(backends)}")
    small, large = (backends[tier] for tier in policy.tiers[:2])
    prices = [backend.price for backend in (small, large)]
    if prices[0] is None or prices[1] is None:
        unknown = small if prices[0] is None else large
        raise CommandError(
            f"the price of backend {unknown.name!r} is unknown; write price: {{input: ..., output: ...}}"
        )
    models = [
        TierModel(tier.model, price.input, price.output)
        for tier, price in zip((small, large), prices, strict=True)
        if price is not None
    ]
    return LabelledSurface(file, policy, StartRules.of(policy), models[0], models[1]), small, large


def _write_traffic(args: argparse.Namespace, surface: LabelledSurface, notes: Sequence[str]) -> int:
    """Write the surface's traffic alone. Raises CommandError, DataError."""
    change = change_of_traffic(surface)
    values = {"surface": args.surface, "policy": surface.policy.label, "notes": list(notes), "diff": change.diff}
    lines: list[str | Text | Table] = [*notes]
    if not asks_for_quantiles(surface.policy):
        lines.append(Text("note: no rule asks for `quantile` or for the easiest of a kind yet", "yellow"))
    show(Report(values, lines, title=f"{args.surface}: its own traffic", width=120), as_json=args.json)
    _write(args, change)
    return Exit.OK


def _from_data(
    args: argparse.Namespace,
    surface: LabelledSurface,
    backend: BackendConfig,
    large: str,
    deployment: Deployment,
    on_progress: OnProgress,
) -> LabelledTraffic:
    """Label the rows of --data by the deployment's classifier, and by the small model's head if there is one."""
    small = args.small or backend.model
    kind = deployment.embedding.kind
    artefact = args.artefact or deployment.classifier or shipped_artefact(kind)
    embedder = load_embedder(kind, args.state)
    file = args.head or shipped_head(small)
    head: ScoringHead | None = ConfidenceHead.load(file) if file else None
    if args.head is None and small == backend.model:
        head = backend.head  # the config's, which may be another than the shipped one, or None
    sheets = (artefact / SHEET_FILE, file) if file else (artefact / SHEET_FILE,)
    first = surface.policy.escalate.stream.hold_tokens if args.stream else None
    scorers = Scorers(embedder, DifficultyModel.load(artefact, embedder), head, sheets, first)
    return from_data(surface, args.data, (small, args.large or large), scorers, on_progress)


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
    same = f"{change.file} has these thresholds already\n"
    sys.stdout.write(f"the diff is in {args.out}\n" if args.out else change.diff or same)
    if args.write:
        sys.stdout.write(f"{change.file} is changed\n")


def _target(text: str) -> Target:
    name, _, level = text.partition("=")
    for kind in get_args(TargetKind):
        if name == kind:
            return Target(kind, share_number(level))
    raise argparse.ArgumentTypeError(f"{text!r} is not a target; write quality=0.97, error=0.02 or cost=0.4")
