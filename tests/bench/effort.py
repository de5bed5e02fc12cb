"""Measure the order by effort on prompts never fitted: `python -m tests.bench.effort`.

Whether hard requests rank above trivial ones of about the same length within each language, how many change their
tier by what people put around a request, and where the shipped policies start them. With `--traffic FILE` (JSON lines
with a `prompt`), how many of its prompts the classifier claims as its domain, and how many start small.
"""

from __future__ import annotations

import argparse
import math
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from gateway.cli.flags import add_json_flag
from gateway.parts.fit.datasets import read_rows
from gateway.parts.fit.evaluation.artefact import ServedArtefact
from gateway.parts.fit.figures import Interval
from gateway.parts.fit.flags import add_seed_flag, add_state_flag
from gateway.parts.measures.intervals import wilson
from gateway.report import WIDE, OnProgress, Report, table
from policies.loader import read_policy
from policies.model import Policy
from routing.decide import start_by_rules
from routing.difficulty.effort import effort_head
from routing.difficulty.text_statistics import tokenise
from routing.features import features_of_text
from tools import command
from tools.effort_texts import EffortPrompt, read_frames
from tools.train_effort import matched_auroc, scored

EXAM: Final = Path(__file__).with_name("effort_exam.toml")
_POLICIES: Final = Path(__file__).parents[2] / "policies"
_PLAIN: Final = Path(__file__).parents[2] / "gateway" / "parts" / "fit" / "training" / "plain_requests.toml"
_RESAMPLES: Final = 400
_SURFACES: Final = ("chat", "batch")


def exam_prompts(path: Path = EXAM) -> list[EffortPrompt]:
    """Return the prompts of the exam, by language."""
    read = tomllib.loads(path.read_text("utf-8"))
    return [
        EffortPrompt(text, language, "exam", label == "hard")
        for language, own in read.items()
        for label in ("hard", "trivial")
        for text in own[label]
    ]


def changed_texts() -> Iterator[tuple[str, str, Callable[[str], str]]]:
    """Yield what leaves the work that a request asks for as it is: its name, the language it is of, the change."""
    yield "capitals", "en", str.upper
    yield "capitals", "de", str.upper
    yield "no full stop", "en", lambda text: text.rstrip(".?!")
    for language, frames in read_frames().items():
        for name, own in (("in training", frames.fitted), ("held out", frames.held_out)):
            for frame in own:
                yield f"{frame} ({name})", language, lambda text, frame=frame: frame.replace("{}", text)


def resampled(hard: Sequence[tuple[str, float]], trivial: Sequence[tuple[str, float]], seed: int) -> Interval:
    """Return `matched_auroc` with its 95% interval, by resamples of both sides."""
    draw = np.random.default_rng(seed)
    value = matched_auroc(hard, trivial)[0]
    drawn = [
        matched_auroc(*([side[at] for at in draw.integers(0, len(side), len(side))] for side in (hard, trivial)))[0]
        for _ in range(_RESAMPLES)
    ]
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return Interval(value, float(low), float(high))


def effort_of(text: str) -> float | None:
    """Return what the head that ships says of a text."""
    return effort_head().rate(tokenise(text))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures of the order by effort."""
    parser = command.parser("effort", "tests.bench")
    parser.add_argument("--traffic", type=Path, nargs="+", default=[], metavar="FILE")
    add_state_flag(parser)
    add_seed_flag(parser, " of the resamples")
    add_json_flag(parser, "tables")

    def work(args: argparse.Namespace, on_progress: OnProgress) -> Report:
        prompts = exam_prompts()
        served = ServedArtefact.open("static", None, args.state)
        values: dict[str, Any] = {"version": effort_head().version, "classifier": served.model.version}
        ranked, values["auroc"] = _ranking(prompts, args.seed, on_progress)
        policies = [read_policy(_POLICIES / f"{name}.yaml")[0] for name in _SURFACES]
        started, values["starts"] = _starts(policies, served, prompts)
        moved, values["moved"] = _moved(policies, served, prompts)
        others, values["others"] = _others()
        tables = [ranked, "", others, "", started, "", moved]
        if args.traffic:
            traffic, values["traffic"] = _traffic(policies, served, args.traffic)
            tables += ["", traffic]
        return Report(values, tables, title=f"effort by head {values['version']}, exam never fitted", width=WIDE)

    return command.run(parser, work, argv)


def _ranking(prompts: Sequence[EffortPrompt], seed: int, on_progress: OnProgress) -> tuple[Any, dict[str, Any]]:
    made = table(
        "language", "hard", "trivial", "hard over trivial: AUROC, lengths matched", "length alone", "not known"
    )
    values = dict[str, Any]()
    languages = list(dict.fromkeys(prompt.language for prompt in prompts))
    for done, language in enumerate(languages):
        on_progress("ranking", done, len(languages))
        own = [(prompt, effort_of(prompt.text)) for prompt in prompts if prompt.language == language]
        sides = [[(p.text, scored(rate)) for p, rate in own if p.is_hard is is_hard] for is_hard in (True, False)]
        lengths = [[(text, float(len(text))) for text, _ in side] for side in sides]
        found, length = resampled(*sides, seed), matched_auroc(*lengths)[0]
        unknown = sum(rate is None for _, rate in own)
        made.add_row(language, *(str(len(side)) for side in sides), str(found), f"{length:.3f}", str(unknown))
        values[language] = {"auroc": [found.value, found.lo, found.hi], "length": length, "n": len(own)}
    known = [one["auroc"][0] for one in values.values() if not math.isnan(one["auroc"][0])]
    made.add_row("mean", "", "", f"{sum(known) / len(known):.3f}", "", "")
    return made, {**values, "mean": sum(known) / len(known)}


def _start(policy: Policy, served: ServedArtefact, text: str) -> str:
    features = features_of_text(text)
    difficulty = served.model.assess(served.embedder.embed((text,))[0], features)
    return start_by_rules(policy, difficulty, features._replace(before=0.0), policy.slo.deadline)[0]


def _starts(
    policies: Sequence[Policy], served: ServedArtefact, prompts: Sequence[EffortPrompt]
) -> tuple[Any, dict[str, Any]]:
    made = table("surface", "hard prompts that start small", "trivial prompts that start above")
    values = dict[str, Any]()
    for policy in policies:
        small = [(prompt.is_hard, _start(policy, served, prompt.text) == policy.tiers[0]) for prompt in prompts]
        wrong = [
            [is_small for is_hard, is_small in small if is_hard],
            [not one for is_hard, one in small if not is_hard],
        ]
        made.add_row(policy.surface, *map(_share, wrong))
        values[policy.surface] = {
            name: [sum(one), len(one)] for name, one in zip(("hard", "trivial"), wrong, strict=True)
        }
    return made, values


def _moved(
    policies: Sequence[Policy], served: ServedArtefact, prompts: Sequence[EffortPrompt]
) -> tuple[Any, Mapping[str, Any]]:
    made = table("language", "changed by", *(f"moved in {policy.surface}" for policy in policies))
    values = dict[str, Any]()
    for name, language, change in changed_texts():
        texts = [prompt.text for prompt in prompts if prompt.language == language]
        if texts:
            moved = [[_start(p, served, t) != _start(p, served, change(t)) for t in texts] for p in policies]
            made.add_row(language, name, *map(_share, moved))
            values[f"{language}: {name}"] = {
                policy.surface: [sum(one), len(one)] for policy, one in zip(policies, moved, strict=True)
            }
    return made, values


def _others() -> tuple[Any, dict[str, Any]]:
    """Return how the plain requests that were written for the classifier's kinds rank, easy and hard, by kind."""
    made = table("plain requests", "easy", "hard", "hard over easy: AUROC", "length alone")
    values = dict[str, Any]()
    for kind, own in tomllib.loads(_PLAIN.read_text("utf-8")).items():
        sides = [[(text, scored(effort_of(text))) for text in own[label]] for label in ("hard", "easy")]
        lengths = [[(text, float(len(text))) for text, _ in side] for side in sides]
        figures = [matched_auroc(*both, as_long=math.inf)[0] for both in (sides, lengths)]
        made.add_row(kind, str(len(sides[1])), str(len(sides[0])), *(f"{figure:.3f}" for figure in figures))
        values[kind] = figures
    return made, values


def _traffic(
    policies: Sequence[Policy], served: ServedArtefact, paths: Sequence[Path]
) -> tuple[Any, dict[str, dict[str, list[int]]]]:
    """Return of each file's prompts, without instructions around a question, how many are claimed and start small."""
    made = table("prompts", "called the domain", *(f"start small in {policy.surface}" for policy in policies))
    values = dict[str, dict[str, list[int]]]()
    for path in paths:
        texts = [
            row.prompt.rpartition("Question:")[2].strip().removesuffix("Answer:").strip() for row in read_rows(path)
        ]
        rated = list(served.assess([features_of_text(text) for text in texts], lambda *_: None))
        flags = {"claimed": [difficulty.in_domain for difficulty in rated]}
        for policy in policies:
            flags[policy.surface] = [_start(policy, served, text) == policy.tiers[0] for text in texts]
        made.add_row(path.name, *map(_share, flags.values()))
        values[path.name] = {name: [sum(own), len(own)] for name, own in flags.items()}
    return made, values


def _share(flags: Sequence[bool]) -> str:
    count, share = len(flags), sum(flags) / len(flags)
    low, high = wilson(share, count)
    return f"{sum(flags)} of {count}: {share:.1%} [{low:.1%}, {high:.1%}]"


if __name__ == "__main__":
    sys.exit(main())
