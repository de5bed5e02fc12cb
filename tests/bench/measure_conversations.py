"""Measure where the turns of conversations start: `python -m tests.bench.measure_conversations`.

A follow-up of a hard turn says little by itself ("go on"), and must not start at the cheapest tier because of that; an
easy new topic after a hard turn must not start at a stronger one because of what was said before.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from gateway.cli.flags import add_json_flag
from gateway.parts.agents.turns import rated_in_conversation
from gateway.parts.fit.datasets import DataError
from gateway.parts.fit.evaluation.artefact import ServedArtefact
from gateway.parts.fit.flags import add_state_flag, options_of
from gateway.parts.measures.intervals import wilson
from gateway.report import OnProgress, Report, table
from policies.loader import read_policy
from policies.model import Policy
from routing.decide import start_by_rules
from routing.features import Features, features_of
from tools import command

_ROOT = Path(__file__).parent
_CONVERSATIONS = _ROOT / "conversations" / "conversations.toml"
_POLICIES = tuple(_ROOT.parents[1] / "policies" / f"{name}.yaml" for name in ("chat", "batch"))
_FOLLOW_UPS = 3  # of each hard first turn
_CHANGES, _CHATS = 5, 4  # most conversations of a language that change their topic, and easy ones
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
    """A turn to measure: the user's messages up to it, its role (first, follow_up, last, topic, chat) and language."""

    asked: tuple[str, ...]
    role: str
    language: str


def conversations_of(parts: Mapping[str, Any]) -> Iterator[list[AskedTurn]]:
    """Yield conversations made of the parts by language: see the examples of the command."""
    for language, own in parts.items():
        topics = own["topics"]
        about = own.get("about") or list(_about(own["hard"], own["follow_ups"]))
        for one in about:
            follow_ups = one["follow_ups"]
            yield _turns(language, [one["hard"], *follow_ups], ["first", *["follow_up"] * len(follow_ups)])
        for number in range(min(_CHANGES, len(about))):
            one = about[-1 - number]
            changed = [topics[(2 * number + at) % len(topics)] for at in range(2)]
            asked = [one["hard"], one["follow_ups"][-1], *changed]
            yield _turns(language, asked, ["first", "last", "topic", "topic"])
        for asked in own.get("chats") or _chats(topics):
            yield _turns(language, asked, ["chat"] * len(asked))


def _about(hard: Sequence[str], follow_ups: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield hard first turns with follow-ups that may follow any."""
    for number, first in enumerate(hard):
        some = [follow_ups[(_FOLLOW_UPS * number + at) % len(follow_ups)] for at in range(_FOLLOW_UPS)]
        yield {"hard": first, "follow_ups": some}


def _chats(topics: Sequence[str]) -> list[list[str]]:
    return [[topics[(3 * number + at) % len(topics)] for at in range(_CHAT_TURNS)] for number in range(_CHATS)]


def recorded_conversations(path: Path) -> list[list[AskedTurn]]:
    """Return the conversations of a file of JSON lines, each ended by the first turn of the next one: a new topic."""
    rows = [orjson.loads(line) for line in path.read_bytes().splitlines() if line.strip()]
    every = [[str(turn["user"]) for turn in row["conversation"]] for row in rows]
    roles = ["first", *["follow_up"] * max(map(len, every))]
    return [
        _turns(
            str(row.get("category", "all")), [*asked, every[at - len(every) + 1][0]], [*roles[: len(asked)], "topic"]
        )
        for at, (row, asked) in enumerate(zip(rows, every, strict=True))
    ]


def _turns(language: str, asked: Sequence[str], roles: Sequence[str]) -> list[AskedTurn]:
    return [AskedTurn(tuple(asked[: at + 1]), role, language) for at, role in enumerate(roles)]


def evaluate_conversations(options: ConversationOptions, on_progress: OnProgress) -> Report:
    """Return how many follow-ups start small and how many easy topics start big. Raises DataError, ConfigError."""
    try:
        if options.conversations.suffix == ".toml":
            conversations = list(conversations_of(tomllib.loads(options.conversations.read_text())))
        else:
            conversations = recorded_conversations(options.conversations)
    except (tomllib.TOMLDecodeError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise DataError(f"{options.conversations} is not a file of conversations: {error}") from None
    served = ServedArtefact.open(options.artefact, None, options.state)
    values: dict[str, Any] = {"conversations": len(conversations), "artefact": served.model.version}
    made = table(
        "surface", "judged by", "follow-ups", "start small", "new topics", "start big", "easy chats", "start big"
    )
    languages = table(
        "surface", "of", "follow-ups", "start small", "new topics", "start big", "easy chats", "start big"
    )
    for path in options.policy or _POLICIES:
        policy = read_policy(path)[0]
        for how, rated in _JUDGED.items():
            measured = list(_measured(policy, served, conversations, rated, on_progress))
            figures = _failures(measured)
            values.setdefault(policy.surface, {})[how] = {name: _as_json(found) for name, found in figures.items()}
            made.add_row(policy.surface, how, *_cells(figures))
        for language in dict.fromkeys(turns[0].language for turns in conversations):
            own = _failures([one for one in measured if one[0].language == language])
            languages.add_row(policy.surface, language, *_cells(own))
    notes = [
        "a hard turn is one that starts above the cheapest tier; follow-ups of other first turns are left out",
        "intervals take every turn for itself (Wilson's)",
        "a new topic or an easy chat counts if the turn starts small alone",
    ]
    return Report({**values, "notes": notes}, [made, "", languages, ""], notes, f"{len(conversations)} conversations")


Measured: TypeAlias = tuple[AskedTurn, bool, bool]
"""A turn, whether it starts at the cheapest tier, and whether it counts."""


def _failures(measured: Sequence[Measured]) -> dict[str, list[bool]]:
    """Return of each follow-up of a hard turn whether it starts small, and of each easy turn whether it starts big."""
    return {
        "follow_ups_small": [small for turn, small, counts in measured if turn.role == "follow_up" and counts],
        "topics_big": [not small for turn, small, counts in measured if turn.role == "topic" and counts],
        "chats_big": [not small for turn, small, counts in measured if turn.role == "chat" and counts],
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
    conversations: Sequence[list[AskedTurn]],
    rated: Callable[[Features], Features],
    on_progress: OnProgress,
) -> Iterator[Measured]:
    """Yield each turn behind the first: a follow-up counts if the first is hard, another if it is easy by itself."""

    def small(asked: Sequence[str], rated: Callable[[Features], Features] = lambda features: features) -> bool:
        features = rated(_features(asked))
        difficulty, known = rated_in_conversation(policy, served.model, served.embedder, features)
        if not features.earlier:
            known = features._replace(before=0.0)
        tier, _ = start_by_rules(policy, difficulty, known, policy.slo.deadline)
        return tier == policy.tiers[0]

    for done, turns in enumerate(conversations):
        on_progress("conversations", done, len(conversations))
        is_hard = not small(turns[0].asked)
        for turn in turns[1:]:
            counts = is_hard if turn.role == "follow_up" else small(turn.asked[-1:])
            yield turn, small(turn.asked, rated), counts
    on_progress("conversations", len(conversations), len(conversations))


def _features(asked: Sequence[str]) -> Features:
    messages = [{"role": "user", "content": asked[0]}]
    for text in asked[1:]:
        messages += [{"role": "assistant", "content": _REPLY}, {"role": "user", "content": text}]
    return features_of({"messages": messages})


_JUDGED: Final[Mapping[str, Callable[[Features], Features]]] = {
    "last message alone": lambda features: features._replace(in_context="", earlier=()),
    "what it hangs on": lambda features: features._replace(earlier=()),
    "its conversation": lambda features: features,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure where turns of conversations start, and print how many start too low or too high."""
    parser = command.parser("measure_conversations", "tests.bench")
    parser.add_argument("--conversations", type=Path, default=_CONVERSATIONS, metavar="FILE")
    parser.add_argument("--policy", type=Path, nargs="+", default=[], metavar="FILE")
    parser.add_argument("--artefact", default="static", metavar="PATH")
    add_state_flag(parser)
    add_json_flag(parser)
    return command.run(
        parser, lambda args, watch: evaluate_conversations(options_of(ConversationOptions, args), watch), argv
    )


if __name__ == "__main__":
    sys.exit(main())
