"""Write the manual page of the command line from its parsers, with the macros of man(7)."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

from gateway.version import version

_SUMMARY = "one OpenAI-compatible URL in front of several tiers of models"


def manual_of(parser: argparse.ArgumentParser) -> str:
    """Return the page of a whole command line: what it is, and every command and action with its options."""
    name = parser.prog
    lines = [f'.TH {name.upper()} 1 "" "{name} {_escaped(version())}" "User Commands"']
    lines += [".SH NAME", _escaped(f"{name} - {_SUMMARY}")]
    lines += [".SH SYNOPSIS", *_as_it_is([parser.format_usage().removeprefix("usage: ").strip()])]
    lines += [".SH DESCRIPTION", *_prose(parser.description), *_prose(parser.epilog)]
    lines.append(".SH COMMANDS")
    for command in _commands(parser):
        lines += _described(command)
    return "\n".join(lines) + "\n"


def _described(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the lines of a command, and then of its actions."""
    parser.format_help()  # which gives options their texts
    yield f".SS {_escaped(parser.prog)}"
    yield from _prose(parser.description)
    yield from _as_it_is(parser.format_usage().removeprefix("usage: ").splitlines())
    formatter = parser._get_formatter()
    for action in parser._actions:
        if not action.help or action.help == argparse.SUPPRESS or isinstance(action, argparse._SubParsersAction):
            continue
        yield ".TP"
        yield f"\\fB{_escaped(formatter._format_action_invocation(action))}\\fR"
        yield _escaped(formatter._expand_help(action))
    yield from _prose(parser.epilog)
    for inner in _commands(parser):
        yield from _described(inner)


def _commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from dict.fromkeys(action.choices.values())


def _prose(text: str | None) -> Iterator[str]:
    """Yield the paragraphs of a text; those with indented lines, such as examples, are not filled."""
    for paragraph in (text or "").strip().split("\n\n"):
        yield ".PP"
        lines = paragraph.splitlines()
        yield from _as_it_is(lines) if any(line.startswith(" ") for line in lines) else map(_escaped, lines)


def _as_it_is(lines: Iterable[str]) -> Iterator[str]:
    yield ".nf"
    yield from map(_escaped, lines)
    yield ".fi"


def _escaped(text: str) -> str:
    """Return a line in which nothing is a command of roff."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return f"\\&{text}" if text.startswith(".") else text
