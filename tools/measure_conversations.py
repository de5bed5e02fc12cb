"""Measure where the turns of conversations start: `python -m tools.measure_conversations`.

A follow-up of a hard turn says little by itself ("go on"), and must not start at the cheapest tier because of that; an
easy new topic after a hard turn must not start at a stronger one because of what was said before.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from gateway.cli.commands._flags import add_json_flag, add_state_flag, options_of
from gateway.fit.datasets import DataError
from gateway.fit.evaluation.artefact import ServedArtefact
from gateway.measures.intervals import wilson
from gateway.progress import OnProgress
from gateway.report import Report, table
from policies.loader import read_policy
from policies.model import Policy
from routing.decide import start_by_rules
from routing.features import Features, features_of
from tools import command

_ROOT = Path(__file__).parent
_CONVERSATIONS = _ROOT / "conversations" / "conversations.toml"
_POLICIES = tuple(_ROOT.parent / "policies" / f"{name}.yaml" for name in ("chat", "batch"))
_FOLLOW_UPS = 3  # of each hard first turn
_CHANGES, _CHATS = 5, 4  # conversations of a language that change their topic, and easy ones
_CHAT_TURNS = 6
_REPLY = "Here is what I have so far, with the reasons for it."


@dataclass(frozen=True, slots=True)
class ConversationOptions:
    """`policy` are the files whose start rules are measured; `artefact` is the classifier's folder or a shipped one."""

    conversations: Path
    policy: list[Path]
    artefact: str
    state: Path


class AskedTurn(NamedTuple):
    """A turn to measure: the user's messages up to it, its role (first, follow_up, topic or chat) and language."""

    asked: tuple[str, ...]
    role: str
    language: str


def conversations_of(parts: Mapping[str, Any]) -> Iterator[tuple[str, list[AskedTurn]]]:
    """Yield conversations made of the parts, each with what it is: `hard`, `change` or `easy`."""
    for language, own in parts.items():
        hard, follow_ups, topics = own["hard"], own["follow_ups"], own["topics"]
        for number, first in enumerate(hard):
            more = [follow_ups[(_FOLLOW_UPS * number + at) % len(follow_ups)] for at in range(_FOLLOW_UPS)]
            yield "hard", _turns(language, [first, *more], ["first", *["follow_up"] * _FOLLOW_UPS])
        for number in range(_CHANGES):
            more = [topics[(2 * number + at) % len(topics)] for at in range(2)]
            asked = [hard[-1 - number], follow_ups[-1 - number], *more]
            yield "change", _turns(language, asked, ["first", "follow_up", "topic", "topic"])
        for number in range(_CHATS):
            asked = [topics[(3 * number + at) % len(topics)] for at in range(_CHAT_TURNS)]
            yield "easy", _turns(language, asked, ["chat"] * _CHAT_TURNS)


def _turns(language: str, asked: Sequence[str], roles: Sequence[str]) -> list[AskedTurn]:
    return [AskedTurn(tuple(asked[: at + 1]), role, language) for at, role in enumerate(roles)]


def evaluate_conversations(options: ConversationOptions, on_progress: OnProgress) -> Report:
    """Return how many follow-ups start small and how many easy topics start big. Raises DataError, ConfigError."""
    try:
        parts = tomllib.loads(options.conversations.read_text())
        conversations = list(conversations_of(parts))
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ZeroDivisionError) as error:
        raise DataError(f"{options.conversations} is not a file of parts of conversations: {error}") from None
    served = ServedArtefact.open(options.artefact, None, options.state)
    values: dict[str, Any] = {"conversations": len(conversations), "artefact": served.model.version}
    made = table("surface", "judged by", "follow-ups", "start small", "easy topics", "start big")
    languages = table("surface", "language", "follow-ups", "start small", "easy topics", "start big")
    for path in options.policy or _POLICIES:
        policy = read_policy(path)[0]
        for how, rated in (("last message alone", _alone), ("its conversation", _in_conversation)):
            measured = list(_measured(policy, served, conversations, rated, on_progress))
            figures = _failures(measured)
            values.setdefault(policy.surface, {})[how] = {name: _as_json(found) for name, found in figures.items()}
            made.add_row(policy.surface, how, *_cells(figures))
        for language in parts:
            own = _failures([one for one in measured if one[0].language == language])
            languages.add_row(policy.surface, language, *_cells(own))
    notes = [
        "a hard turn is one that starts above the cheapest tier; follow-ups of other first turns are left out",
        "intervals take every turn for itself (Wilson's)",
        "the parts of the conversations were written for this project, by those who wrote the rules",
    ]
    return Report({**values, "notes": notes}, [made, "", languages, ""], notes, f"{len(conversations)} conversations")


Measured: TypeAlias = tuple[AskedTurn, bool, bool]
"""A turn, whether it starts at the cheapest tier, and whether it counts."""


def _failures(measured: Sequence[Measured]) -> dict[str, list[bool]]:
    """Return of each follow-up of a hard turn whether it starts small, and of each easy topic whether it starts big."""
    return {
        "follow_ups_small": [small for turn, small, counts in measured if turn.role == "follow_up" and counts],
        "topics_big": [not small for turn, small, counts in measured if turn.role in {"topic", "chat"} and counts],
    }


def _as_json(failures: Sequence[bool]) -> dict[str, Any]:
    if not failures:
        return {"n": 0}
    n, mean = len(failures), sum(failures) / len(failures)
    return {"value": round(mean, 4), "interval": [round(end, 4) for end in wilson(mean, n)], "n": n}


def _cells(figures: Mapping[str, Sequence[bool]]) -> Iterator[str]:
    for failures in figures.values():
        own = _as_json(failures)
        yield str(own["n"])
        ends = [f"{end:.1%}" for end in own.get("interval", ())]
        yield f"{sum(failures)}: {own['value']:.1%} [{', '.join(ends)}]" if failures else "not known"


def _measured(
    policy: Policy,
    served: ServedArtefact,
    conversations: Sequence[tuple[str, list[AskedTurn]]],
    rated: Callable[[Sequence[str]], Features],
    on_progress: OnProgress,
) -> Iterator[Measured]:
    """Yield each turn behind the first: a follow-up counts if the first is hard, a topic if it is easy by itself."""

    def small(features: Features) -> bool:
        vector = served.embedder.embed((features.rated_text,))[0]
        difficulty = served.model.assess(vector, features)
        tier, _ = start_by_rules(policy, difficulty, features, policy.slo.deadline)
        return tier == policy.tiers[0]

    for done, (_, turns) in enumerate(conversations):
        on_progress("conversations", done, len(conversations))
        is_hard = not small(_in_conversation(turns[0].asked))
        for turn in turns[1:]:
            counts = is_hard if turn.role == "follow_up" else small(_in_conversation(turn.asked[-1:]))
            yield turn, small(rated(turn.asked)), counts
    on_progress("conversations", len(conversations), len(conversations))


def _in_conversation(asked: Sequence[str]) -> Features:
    messages = [{"role": "user", "content": asked[0]}]
    for text in asked[1:]:
        messages += [{"role": "assistant", "content": _REPLY}, {"role": "user", "content": text}]
    return features_of({"messages": messages})


def _alone(asked: Sequence[str]) -> Features:
    return _in_conversation(asked)._replace(in_context="")


_EXAMPLES = """examples:
  python -m tools.measure_conversations
                              under the start rules of the shipped surfaces chat and batch
  python -m tools.measure_conversations --policy policies/voice.yaml --artefact minilm

Per language a file has `hard` first turns, `follow_ups` and easy `topics`. From these conversations are made: each hard
turn with three follow-ups; hard turns with a follow-up and two easy topics; and easy topics, six in a row. The share of
follow-ups of a hard turn that start at the cheapest tier, and of easy topics that start there alone but not in the
conversation, are printed with 95% intervals."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure where turns of conversations start, and print how many start too low or too high."""
    parser = command.parser("measure_conversations", "Measure where the turns of conversations start.", _EXAMPLES)
    parser.add_argument(
        "--conversations", type=Path, default=_CONVERSATIONS, metavar="FILE", help="parts of conversations, as TOML"
    )
    parser.add_argument(
        "--policy",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="policies (default: the shipped chat and batch)",
    )
    parser.add_argument(
        "--artefact",
        default="static",
        metavar="PATH",
        help="the classifier: its folder, or 'static' (default) or 'minilm' for a shipped one",
    )
    add_state_flag(parser)
    add_json_flag(parser)
    return command.run(
        parser, lambda args, watch: evaluate_conversations(options_of(ConversationOptions, args), watch), argv
    )


if __name__ == "__main__":
    sys.exit(main())
