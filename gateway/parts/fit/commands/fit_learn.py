"""Run `tierline fit learn`: fit the classifier and the confidence heads to a surface's own judged traffic."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from rich.table import Table

from gateway.cli.commands import CommandError
from gateway.cli.flags import add_command, add_config_flags, add_json_flag, launch_of, whole
from gateway.cli.store_flags import take_running
from gateway.exit_codes import Exit
from gateway.parts.fit.commands._own_labels import add_label_flags, labels_named
from gateway.parts.fit.datasets import DataError
from gateway.parts.fit.flags import add_seed_flag, add_state_flag
from gateway.parts.fit.libraries import LibraryMissing
from gateway.parts.ledger.quality import SurfaceLabels
from gateway.parts.lint.edit import CannotEdit, with_value
from gateway.parts.lint.warnings import doubts_about
from gateway.parts.rollout.commands._learnt_canary import in_force, start_canary
from gateway.parts.rollout.policy import RolloutSections
from gateway.report import Report, progress, show, table
from policies.errors import did_you_mean
from policies.loader import policy_files, read_policy
from policies.model import Policy
from policies.quantities import percent
from routing.difficulty.model import ArtefactError, shipped_artefact, version_in

if TYPE_CHECKING:
    from gateway.parts.fit.learning.measured import Measured, RouterFigures
    from gateway.parts.fit.learning.own_head import OwnHead


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give the parser of `fit learn` its options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=False)
    parser.set_defaults(action=None)
    _add_source(parser)
    parser.add_argument("--out", type=Path, metavar="DIR")
    add_seed_flag(parser)
    parser.add_argument("--store", metavar="URL")
    quality = add_command(actions, "fit learn quality")
    _add_source(quality)
    export = add_command(actions, "fit learn export")
    _add_source(export)
    export.add_argument("--chat", type=Path, required=True, metavar="FILE")
    export.add_argument("--tools", action="store_true")
    export.add_argument("--max-chars", type=whole(1), default=32_000, metavar="N")


def run(args: argparse.Namespace) -> int:
    """Run the chosen action. Raises CommandError."""
    take_running(args)
    labels = labels_named(args)
    if not labels.rows and not labels.unjudged and not labels.shadows:
        raise CommandError(f"there are no labels of {args.surface} yet; its policy's `learn` section makes them")
    try:
        return {"quality": _quality, "export": _export, None: _learn}[args.action](args, labels)
    except (DataError, LibraryMissing, ArtefactError) as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(f"{error.filename} cannot be written: {error.strerror}") from None


def _add_source(parser: argparse.ArgumentParser) -> None:
    add_label_flags(parser)
    add_json_flag(parser)
    add_state_flag(parser)
    add_config_flags(parser)


def _learn(args: argparse.Namespace, found: SurfaceLabels) -> int:
    """Fit and measure; write artefacts and the proposed policy if the classifier is better."""
    from gateway.parts.fit.learning.labels import chosen_labels, held_out
    from gateway.parts.fit.learning.measured import head_figures
    from gateway.parts.fit.learning.own_fit import fit_own
    from gateway.parts.fit.learning.own_head import own_heads
    from gateway.parts.measures.quality import agreement
    from routing.difficulty.model import DifficultyModel

    if args.out is None:
        raise CommandError("name the folder for what is learnt with --out, such as --out policies/learned")
    launch = launch_of(args)
    deployment = launch.deployment(reads=True)
    source = launch.policy_source(deployment)
    folder, live = source.directory, None
    if deployment.policies.source == "store":
        live = in_force(args, source)
        file, policy, text = Path(f"{args.surface}.yaml"), live.policy, live.text
    else:
        file, policy = _policy(args.surface, folder)
        text = file.read_bytes().decode("utf-8-sig")
        for doubt in doubts_about(policy, deployment):
            if doubt.code == "T716":
                raise CommandError(f"{file}: learn.apply: {doubt.message}; {doubt.mend}")
    if len(policy.tiers) < 2:
        raise CommandError(f"{args.surface} has one tier, {policy.tiers[0]}: there is nothing to route")
    base = deployment.classifier or shipped_artefact(deployment.embedding.kind)
    model = DifficultyModel.load(base)
    with progress(quiet=args.json or not sys.stderr.isatty()) as on_progress:
        ends = policy.tiers[0], policy.tiers[-1]
        heads = list(own_heads(found.rows, found.rated, args.seed))
        try:
            chosen = chosen_labels(found.rows, args.surface, ends, version_in(base), model.embedder)
        except DataError as too_few:
            if not heads:
                raise
            return _heads_alone(args, heads, str(too_few))
        labels, kinds = chosen.labels, len(model.kinds)
        held = held_out(labels)
        earlier = fit_own(labels.take(~held), kinds, args.seed, on_progress)
        figures = head_figures(labels.take(held), earlier.heads, args.seed, labels.take(~held))
        proposed: dict[str, Any] = {}
        if not figures.verdict:
            whole_fit = fit_own(labels, kinds, args.seed, on_progress)
            proposed = _write(args, file, text, base, whole_fit.heads, figures, len(labels), folder, whole_fit.kind)
            if live is not None and (learn := policy.of(RolloutSections).learn) is not None and learn.apply == "canary":
                made = Path(proposed["policy"]).read_bytes().decode()
                proposed["canary"] = start_canary(args, source, live, made, _canary_reason(figures, len(labels)))
        proposed |= _written(args, heads)
    people = agreement(found.rows, found.feedback)
    values = {
        "surface": args.surface,
        "labels": len(labels),
        "left_out": chosen.left_out,
        "kind": earlier.kind,
        "setting": earlier.setting,
        "log_losses": earlier.losses,
        "measured": asdict(figures),
        "verdict": figures.verdict or "better",
        "heads": list(map(_head_values, heads)),
        "judge_and_people": people.as_json(),
        "proposed": proposed,
    }
    lines, title = _lines(figures, earlier.kind, heads, str(people)), _title(args.surface, figures, len(labels))
    show(Report(values, lines, title=title, width=120, done=_done(args.surface, proposed)), as_json=args.json)
    return Exit.OK if proposed else Exit.FINDINGS


def _heads_alone(args: argparse.Namespace, heads: Sequence[OwnHead], why: str) -> int:
    """Write the heads that are better, where the labels do not suffice for the classifier; `why` says so."""
    proposed = _written(args, heads)
    values = {"surface": args.surface, "verdict": why, "heads": list(map(_head_values, heads)), "proposed": proposed}
    lines = [f"the classifier is left as it is: {why}", *_head_lines(heads)]
    title = f"{args.surface}: confidence heads"
    show(Report(values, lines, title=title, width=120, done=_done(args.surface, proposed)), as_json=args.json)
    return Exit.OK if proposed else Exit.FINDINGS


def _written(args: argparse.Namespace, heads: Sequence[OwnHead]) -> dict[str, Any]:
    written = {head.tier: str(_write_head(args, head)) for head in heads if head.better}
    return {"heads": written} if written else {}


def _policy(surface: str, folder: Path) -> tuple[Path, Policy]:
    """Return the policy of a surface and its file. Raises CommandError, and ConfigError for a bad policy."""
    read = {policy.surface: (file, policy) for file in policy_files(folder) for policy, _ in [read_policy(file)]}
    if surface not in read:
        raise CommandError(
            f"{folder} has no surface {surface!r}{did_you_mean(surface, read)}; it has {', '.join(read)}"
        )
    return read[surface]


def _write(
    args: argparse.Namespace,
    file: Path,
    text: str,
    base: Path,
    heads: Any,
    figures: Measured,
    labels: int,
    folder: Path,
    kind: str,
) -> dict[str, Any]:
    """Write the artefact, and the policy that pins it; return where."""
    from gateway.parts.fit.learning.own_artefact import save_own
    from gateway.parts.fit.training.sheet import Remade, data_sheet

    again = ("tierline", "fit", "learn", "--surface", args.surface, "--out", str(args.out), "--seed", str(args.seed))
    what = f"difficulty of the requests of {args.surface}: {kind} on top of another classifier, by {labels} own labels"
    facts = {"labels": labels, "measured": {"held_out": asdict(figures)}}
    notes = ("the figures are of a fit to the earlier labels alone; the numbers here are fitted to all of them",)
    artefact = save_own(base, heads, args.out, args.surface, data_sheet(what, facts, Remade(again, notes)))
    version = artefact.name.removeprefix(f"{args.surface}-")
    pinned = f"{Path(os.path.relpath(artefact, folder)).as_posix()}@{version}"
    policy = args.out / file.name
    try:
        made = with_value(text, ("route", "classifier"), pinned)
    except CannotEdit as error:
        raise DataError(f"{file}: {error}") from None
    policy.write_text(made, encoding="utf-8", newline="")
    return {"artefact": str(artefact), "policy": str(policy), "classifier": pinned}


def _write_head(args: argparse.Namespace, head: OwnHead) -> Path:
    from gateway.parts.fit.training.answer_heads import save_head

    path = Path(args.out / f"{args.surface}-{head.tier}-head.json")
    what = f"confidence: P(an answer of {head.model} is adequate), from the evidence it leaves, by a judge's labels"
    save_head(head.head, path, {"what": what, "labels": head.answers, "held_out": _head_values(head)})
    return path


def _head_values(head: OwnHead) -> dict[str, Any]:
    return {
        "tier": head.tier,
        "model": head.model,
        "answers": head.answers,
        "held_out": head.held,
        "other": head.other,
        "log_loss_saved": asdict(head.loss_saved),
        "ece": round(head.ece, 4),
        "better": head.better,
        "order": {name: part["order"] for name, part in head.head.metrics["parts"].items()},
    }


def _canary_reason(figures: Measured, labels: int) -> str:
    """Return why the canary is started: what was measured."""
    own, other = figures.own, figures.other
    return (
        f"own classifier, fitted to {labels} labels: APGR {own.apgr} against {other.apgr} on {figures.labels} held-out "
        f"labels of {figures.conversations} later conversations, higher by {figures.apgr_gain}"
    )


def _title(surface: str, figures: Measured, labels: int) -> str:
    return (
        f"{surface}: {labels} labels; measured on {figures.labels} of {figures.conversations} later conversations, "
        "fitted to the others"
    )


def _lines(figures: Measured, kind: str, heads: Sequence[OwnHead], people: str) -> list[str | Table | Any]:
    made = table("classifier", "APGR", "AUROC, small adequate", "calibration error", "abstains")
    made.add_row("in use", *_cells(figures.other))
    made.add_row(f"own ({kind})", *_cells(figures.own))
    made.add_row("table of sources", str(figures.table), "", "", "")
    verdict = figures.verdict
    lines: list[str | Table | Any] = [
        made,
        f"not better: {verdict}" if verdict else f"better: APGR higher by {figures.apgr_gain}",
    ]
    return [*lines, *_head_lines(heads), people]


def _head_lines(heads: Sequence[OwnHead]) -> Iterator[str]:
    from gateway.parts.fit.training.answer_heads import orders_of

    for head in heads:
        judged = "better than" if head.better else "not surely better than"
        yield (
            f"confidence head of {head.tier} ({head.model}), {head.answers} answers by "
            f"{', '.join(head.head.metrics['parts'])}: {judged} {head.other}; log-loss on {head.held} later answers "
            f"lower by {head.loss_saved}, calibration error {head.ece:.3f}"
        )
        yield from orders_of(head.head.metrics)


def _cells(figures: RouterFigures) -> list[str]:
    return [str(figures.apgr), str(figures.auroc), str(figures.ece), f"{percent(figures.abstains, 0)}"]


def _done(surface: str, proposed: dict[str, Any]) -> list[str]:
    done = []
    if "policy" in proposed:
        done += [f"written: {proposed['artefact']} and {proposed['policy']}"]
        if canary := proposed.get("canary"):
            share, workers = canary["share"], canary["workers"]
            done += [f"started {canary['policy']} as a canary at {100 * share:.3g}%, as `learn.apply` says; see"]
            done += [f"  tierline policy status {surface}"]
            if not workers["judged"]:
                done += ["no `tierline policy judge` is at work: until one is, the candidate gets no requests"]
        else:
            done += ["look at what it would change:", f"  tierline policy plan {proposed['policy']}"]
    for tier, file in proposed.get("heads", {}).items():
        done.append(f"written: {file}; for {tier}'s backend, the config says `confidence_head: {file}`")
    return done


def _quality(args: argparse.Namespace, labels: SurfaceLabels) -> int:
    """Print one quality figure for each tier, and how reliable the predictions of it are."""
    from gateway.parts.fit.reliability import head_claims, head_reliabilities
    from gateway.parts.measures.quality_view import surface_view

    heads = head_reliabilities(head_claims(labels.rows, labels.rated, labels.ladder))
    quality, lines, shadows = surface_view(labels.rows, labels.feedback, labels.unjudged, labels.shadows)
    if any(head["reliability"] for head in heads):
        lines.append(_reliability_table(heads))
    lines += [_missing_line(head) for head in heads if head["reliability"] is None]
    lines += shadows
    values = {"surface": args.surface, **quality, "heads": heads}
    show(Report(values, lines, title=f"{args.surface}: quality of answers", width=120), as_json=args.json)
    return Exit.OK


def _reliability_table(heads: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of heads with a reliability, as `head_reliabilities` gives them."""
    made = table(
        "head", "tier", "predictions", "predicted", "observed", "95% interval", "ECE", "by chance", "whose word"
    )
    for head in heads:
        if (figures := head["reliability"]) is not None:
            made.add_row(
                head["head"],
                f"{head['tier']} ({head['model']})" if head["model"] else head["tier"],
                str(figures["count"]),
                f"{percent(figures['predicted'])}",
                f"{percent(figures['observed'])}, {figures['verdict']}",
                f"{percent(figures['low'])} to {percent(figures['high'])}",
                f"{figures['ece']:.3f}",
                f"{figures['ece_by_chance']:.3f}",
                "the judge's" if head["whose"] == "judge" else "people's",
            )
    return made


def _missing_line(head: Mapping[str, Any]) -> str:
    """Say how many more answers must be labelled or rated before a head's reliability is known."""
    return (
        f"{head['head']} of {head['tier']}: {head['count']} answers labelled or rated; {head['missing']} more to tell"
    )


def _export(args: argparse.Namespace, labels: SurfaceLabels) -> int:
    """Write the fine-tuning data."""
    from gateway.parts.fit.learning.fine_tuning import Exported, ExportRules, chat_rows

    exported = Exported()
    scratch = args.chat.with_name(f".{args.chat.name}.new")
    with scratch.open("wb") as file:
        file.writelines(chat_rows(labels.rows, ExportRules(args.tools, args.max_chars), exported))
    scratch.replace(args.chat)
    if args.json:
        values = {"written": exported.written, "left_out": exported.left_out, "redacted": exported.redacted}
        sys.stdout.write(orjson.dumps(values).decode() + "\n")
    else:
        sys.stdout.write(f"{exported.written} pairs written to {args.chat}\n")
        for heading, counts in (("left out", exported.left_out), ("redacted", exported.redacted)):
            for what, count in counts.most_common():
                sys.stdout.write(f"  {heading}: {count} {what if heading == 'redacted' else f'because {what}'}\n")
    return Exit.OK if exported.written else Exit.FINDINGS
