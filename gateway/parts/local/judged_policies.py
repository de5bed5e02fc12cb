"""Write the shipped policies with a judge of drafts for a ladder whose rungs give no log-probabilities.

A policy is changed where its rule of confidence would have no signal (finding T709 of `tierline check`): it gets the
judge, and the rung `large` where the ladder has one, as drafts of the last tier are not judged. Surfaces that cannot
wait for a verdict stay as they are. All others are copied, so that the folder is a whole set.
"""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gateway.parts.lint.commands import check
from gateway.parts.lint.edit import CannotEdit
from gateway.parts.lint.mends import mended
from gateway.parts.local.judge_choice import JudgeChoice, judge_of
from gateway.parts.local.ladder import Rung
from policies.errors import Edit
from policies.loader import SHIPPED, policy_files

_NO_SIGNAL: Final = "T709"
_SHORT, _LONG = "tiers: [local, hosted]       ", "tiers: [local, hosted, large]"
_IN_HASTE: Final = frozenset({"autocomplete.yaml", "search.yaml", "voice.yaml"})
"""Policies whose answers are worth less than the time of a verdict and of a large model."""
_PATIENCE_S: Final = 0.8
"""How long a judge may take, in seconds, and a stream is held for it: some thousand tokens are to be read for it."""
_COMMENT: Final = textwrap.TextWrapper(
    116, initial_indent="# ", subsequent_indent="# ", break_long_words=False, break_on_hyphens=False
)


def judged_policies(config: Path, folder: Path, rungs: Sequence[Rung]) -> list[str]:
    """Write the policies into `folder`, and return the names of the changed ones; none, and nothing, if none needs it.

    `config` is the written one, which names the rungs. Raises OSError, and CannotEdit where a
    policy has no place for the judge, or would not load with it.
    """
    if (choice := judge_of(rungs)) is None:
        return []
    shipped = {file.name: file.read_text() for file in policy_files(SHIPPED)}
    long = any(rung.tier == "large" for rung in rungs)
    texts = {
        name: text.replace(_SHORT, _LONG, 1) if long and name not in _IN_HASTE else text
        for name, text in shipped.items()
    }
    draft = folder.with_name(f".{folder.name}.draft")
    try:
        _write(draft, texts)
        warnings = check.findings_of(argparse.Namespace(config=config, policies=draft)).warnings
        silent = {warning.file.name for warning in warnings if warning.code == _NO_SIGNAL}
        if not silent:
            return []
        texts = {name: with_judge(texts[name], choice) if name in silent else text for name, text in shipped.items()}
        _write(draft, texts)
        if wrong := check.findings_of(argparse.Namespace(config=config, policies=draft)).problems:
            raise CannotEdit(str(wrong[0]))
        _write(folder, texts)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return sorted(silent)


def with_judge(text: str, choice: JudgeChoice) -> str:
    """Return a policy's text with this judge, and with why and what it costs as a comment on top."""
    held = f"{_PATIENCE_S * 1000:g}ms"
    edits = [
        Edit(("escalate", "judge"), choice.rule.removeprefix("judge: ")),
        Edit(("escalate", "judge", "within"), held),
        Edit(("escalate", "stream", "hold_max"), held),
    ]
    why = f"escalate.judge is written by `tierline init`, as a tier gives no log-probabilities: {choice.reason}."
    first, rest = mended(text, edits).split("\n", 1)
    return f"{first}\n{_COMMENT.fill(why)}\n{rest}"


def _write(folder: Path, texts: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
    schema = "policy.schema.json"
    (folder / schema).write_bytes((SHIPPED / schema).read_bytes())
