"""Say which kind of request a labelled prompt is, and what its request would hold besides the prompt.

A row may name its own `kind`. Otherwise the kind is that of its public data set, or where that is not known, its data
set is a kind of its own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

from gateway.parts.fit.datasets import Example, LabelledAnswer
from routing.difficulty.model import CHAT, TOOLS
from routing.features import Features, features_of_text

PLAIN: Final = "plain_requests"
"""Name of the data set of `plain_requests`."""

_PLAIN_FILE: Final = Path(__file__).parent / "training" / "plain_requests.toml"
_ASSUMED: Final = {"easy": (0.9, 0.97), "hard": (0.1, 0.9)}
"""How right the cheapest and the strongest tier are assumed to be on plain requests; tiers in between lie between."""

JUDGED: Final = frozenset({CHAT})
"""Kinds whose labels are verdicts on answers, whose level differs between data sets: they are compared by rank."""

OPEN: Final = frozenset({CHAT, "maths", "code"})
"""Kinds without a shape of their own: a request of them may be of any length, and far from those that are labelled."""

_KINDS: Final = {
    "alpaca_eval1": CHAT, "alpaca_eval2": CHAT, "qlora_oa": CHAT, "qlora_vicuna": CHAT, "mt_bench": CHAT,
    "bfcl": TOOLS,
    "cascade_mmlu": "choices", "cascade_medmcqa": "choices", "mmlu_pro": "choices", "routellm_mmlu": "choices",
    "routerbench_arc_challenge": "choices", "routerbench_winograde": "choices",
    "livecodebench": "code", "routerbench_mbpp": "code",
    "routellm_gsm8k": "maths",
}  # fmt: skip
_KINDS_OF_GROUPS: Final = {
    "mmlu_pro": {"math": "maths"},
    "routellm_mmlu": {"abstract_algebra": "maths", "college_mathematics": "maths", "elementary_mathematics": "maths",
                      "high_school_mathematics": "maths", "high_school_statistics": "maths"},
    "routerdc_7b": {"arc": "choices", "gsm8k": "maths", "humaneval": "code", "math": "maths", "mbpp": "code",
                    "mmlu": "choices"},
}  # fmt: skip
"""By data set, the kind of groups whose task is another than most of the set's: by the group's name in lower case, or
by what stands before its first underscore."""

PUBLIC: Final = frozenset(_KINDS) | frozenset(_KINDS_OF_GROUPS)
"""Public data sets: nobody's traffic, so what is learned of them must hold for what was left out."""

BY_LANGUAGE: Final = frozenset({"qlora_oa"})
"""Public data sets whose groups are languages; a `+` behind one marks later turns."""

_TOOLS_OF_GROUPS: Final[Mapping[str, tuple[int, bool]]] = {
    "simple": (1, False),
    "relevance": (1, False),
    "java": (1, False),
    "javascript": (1, False),
    "multiple_function": (3, False),
    "parallel_function": (1, True),
    "parallel_multiple_function": (3, True),
}
"""BFCL's groups: the number of tools in a typical request, and whether it asks for several calls at once."""


def kind_of(example: Example, named: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the example's kind; `named` maps names of data sets to kinds, and comes before the tables here."""
    if example.kind:
        return example.kind
    if example.dataset in named:
        return named[example.dataset]
    by_group, group = _KINDS_OF_GROUPS.get(example.dataset, {}), example.group.lower()
    named_by_group = by_group.get(group) or by_group.get(group.split("_", 1)[0])
    return named_by_group or _KINDS.get(example.dataset, example.dataset)


@cache
def plain_requests(tiers: int) -> tuple[Example, ...]:
    """Return plain requests of each kind, written for this project, with assumed labels for so many tiers.

    Exams and problem books have no `what is 12 + 7?` and no `hi`: these say what kind such requests are, and that they
    are easier than hard ones.
    """
    made: list[Example] = []
    for kind, levels in tomllib.loads(_PLAIN_FILE.read_text(encoding="utf-8")).items():
        for level, prompts in levels.items():
            low, high = _ASSUMED[level]
            answers = tuple(LabelledAnswer(low + (high - low) * tier / max(tiers - 1, 1)) for tier in range(tiers))
            made += [Example(prompt.strip(), PLAIN, level, answers, kind) for prompt in prompts]
    return tuple(made)


def features_of_example(example: Example) -> Features:
    """Return the features that a request with this labelled prompt as its last message would have.

    Where the data set says more than the prompt, that is taken too: BFCL's group says which tools the request has, and
    a group of qlora_oa that ends with `+` means a second turn.
    """
    features = features_of_text(example.prompt)
    if example.dataset == "bfcl" and example.group in _TOOLS_OF_GROUPS:
        tools, parallel = _TOOLS_OF_GROUPS[example.group]
        return features._replace(has_tools=True, tools=tools, parallel_tools=parallel)
    if example.dataset == "qlora_oa" and example.group.endswith("+"):
        return features._replace(turns=2)
    return features
