"""Run `tierline prices`: say what each backend costs and who says so, and read a newer map of prices."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, date, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.cli.commands import CommandError
from gateway.cli.flags import add_command, add_json_flag, whole
from gateway.config.backends import PROXIED, BackendConfig
from gateway.config.loader import load_deployment
from gateway.config.schema import Deployment
from gateway.exit_codes import Exit
from gateway.parts.prices.commands import _price_diff
from gateway.parts.prices.config import PricesSections
from gateway.parts.prices.model_facts import (
    FactsFile,
    HostedModel,
    KnownModels,
    known_providers,
    read_facts,
    shipped_facts,
)
from gateway.parts.prices.price_map import facts_from_price_map, unread_rates

_OLD_DAYS: Final = 90
_WIDTH: Final = 80


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `prices` to the command line."""
    parser = add_command(subparsers, "prices")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = add_command(actions, "prices check")
    check.add_argument("--config", type=Path, metavar="FILE", help="the config file (default: the one shipped)")
    check.add_argument(
        "--max-age", type=whole(1), default=_OLD_DAYS, metavar="DAYS", help=f"age of a file to tell of ({_OLD_DAYS})"
    )
    add_json_flag(check, "lines")
    diff = add_command(actions, "prices diff")
    diff.add_argument("--config", type=Path, metavar="FILE", help="the config file (default: the one shipped)")
    diff.add_argument("--all", action="store_true")
    add_json_flag(diff, "lines")
    import_ = add_command(actions, "prices import")
    import_.add_argument("map", type=Path, metavar="FILE")
    import_.add_argument("--write", type=Path, required=True, metavar="FILE")
    import_.add_argument("--dated", type=date.fromisoformat, metavar="DAY")


def _say(line: str, indent: int = 2) -> None:
    """Print a line, in lines of a terminal."""
    sys.stdout.write(textwrap.fill(line, _WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False) + "\n")


def run(args: argparse.Namespace) -> int:
    """Check prices, compare them or import a map of them; return the exit code. Raises CommandError, ConfigError."""
    return {"check": _check, "diff": _diff, "import": _import}[args.action](args)


def _diff(args: argparse.Namespace) -> int:
    deployment = load_deployment(args.config, os.environ, reads=True)
    own = deployment.of(PricesSections).prices.file
    facts = shipped_facts() if own is None else read_facts(own)
    proposed = [(entry.base_url, name) for entry in known_providers().providers for name in (entry.small, entry.large)]
    configured = [(backend.base_url, backend.model) for tier in deployment.tiers for backend in tier.backends]
    used = {(facts.provider(url) or "", name) for url, name in (*proposed, *configured)}
    other, rows = _price_diff.source(), list(_price_diff.differences(facts, used))
    shown = sorted((row for row in rows if row["used"] or args.all), key=lambda row: not row["used"])
    if args.json:
        value = {"ours": facts.name, "theirs": other, "differences": shown}
        sys.stdout.buffer.write(orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n")
    else:
        _say(f"ours: the {facts.name}")
        _say(f"theirs: {other}")
        for row in shown:
            times = "" if row["times"] is None else f" ({row['times']:.3g} times)"
            ours, theirs = ("none" if row[side] is None else row[side] for side in ("ours", "theirs"))
            newer = f"newer: {row['newer']}" + (f", theirs of {row['checked']}" if row["checked"] else "")
            at = f"{row['provider']} {row['model']}"
            _say(f"{at}: {row['field']} {ours}, theirs {theirs}{times}; {newer}")
        if shown:
            _say("ours is what calls are charged by, unless the config states a price or prices.file has another")
        rest = len(rows) - len(shown)
        sys.stdout.write(f"{len(shown)} differences{f', {rest} more of other models: --all' if rest else ''}\n")
    return Exit.FINDINGS if any(row["used"] for row in rows) else Exit.OK


def _check(args: argparse.Namespace) -> int:
    deployment = load_deployment(args.config, os.environ, reads=True)
    own = deployment.of(PricesSections).prices.file
    models = KnownModels() if own is None else KnownModels(read_facts(own))
    rows = list(_rows(deployment, models, datetime.now(tz=UTC).date(), args.max_age))
    found = any(row["finding"] for row in rows)
    if args.json:
        sys.stdout.buffer.write(orjson.dumps({"backends": rows}, option=orjson.OPT_INDENT_2) + b"\n")
        return Exit.FINDINGS if found else Exit.OK
    width = max([len(row["backend"]) for row in rows], default=0)
    for row in rows:
        _say(f"{row['backend']:{width}}  {row['model']}  {_shown(row['price'])}  {row['source']}", width + 2)
        if row["finding"]:
            _say(f"{'':{width}}  {row['finding']}", width + 2)
    return Exit.FINDINGS if found else Exit.OK


def _rows(deployment: Deployment, models: KnownModels, today: date, most_days: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each backend: its price, who states it, and what is wrong with that, '' if nothing is."""
    for tier in deployment.tiers:
        for backend in tier.backends:
            price, facts = backend.price, models.find(backend.base_url, backend.model)
            finding = _finding(backend, facts, today, most_days) or _disagreement(backend, facts, models)
            yield {
                "tier": tier.name,
                "backend": backend.name,
                "model": backend.model,
                "finding": "; ".join(filter(None, (finding, _second_source(backend, facts, models)))),
                "price": None if price is None else price.model_dump(exclude_none=True),
                "source": backend.price_source or "unknown",
            }


def _finding(backend: BackendConfig, facts: tuple[HostedModel, FactsFile] | None, today: date, most_days: int) -> str:
    """Return what is wrong with a backend's price; '' if nothing is."""
    if backend.price is None:
        if not backend.configured:
            return ""
        free = f" ({PROXIED}; write price: {{}} if nobody pays for it)" if backend.is_here else ""
        return (
            f"nobody states what {backend.model} at this address costs{free}; write price: {{input: ..., output: ...}} "
            "in the config, or add the model to the file that prices.file names"
        )
    stated = None if facts is None else facts[0].price
    if facts is None or stated is None:
        return ""
    file = facts[1]
    if backend.price_source != file.name:
        if backend.price == stated:
            return ""
        told = stated.model_dump(exclude_none=True)
        differs = _shown(told) != _shown(backend.price.model_dump(exclude_none=True))
        other = f"{_shown(told)}" if differs else "other rates of service tiers or long prompts"
        return f"the {file.name} says {other}; leave price out of the config, unless yours is another contract"
    age = (today - file.dated).days
    return f"the file is {age} days old; make a newer one with tierline prices import" if age > most_days else ""


def _disagreement(backend: BackendConfig, facts: tuple[HostedModel, FactsFile] | None, models: KnownModels) -> str:
    """Return both figures where the user's file and the shipped one differ, which counts, and why; '' if they agree."""
    if facts is None or facts[0].price is None or backend.price_source != facts[1].name or facts[1] is models.files[-1]:
        return ""
    shipped = models.files[-1]
    other = shipped.models.get(models.provider(backend.base_url), {}).get(backend.model)
    if other is None or other.price is None or other.price == facts[0].price:
        return ""
    own, theirs = (_shown(price.model_dump(exclude_none=True)) for price in (facts[0].price, other.price))
    own_file = f"the {facts[1].name} says {own}"
    return f"{own_file}, the {shipped.name} {theirs}; the first counts, as prices.file names it"


def _second_source(backend: BackendConfig, facts: tuple[HostedModel, FactsFile] | None, models: KnownModels) -> str:
    """Return what genai-prices, where it is installed, says otherwise of a price that a file states; '' if nothing."""
    if facts is None or backend.price_source != facts[1].name:
        return ""
    with contextlib.suppress(CommandError):
        name = _price_diff.source()
        model = (models.provider(backend.base_url), backend.model)
        alone = facts[1].model_copy(update={"models": {model[0]: {model[1]: facts[0]}}})
        rows = takewhile(lambda row: row["used"], _price_diff.differences(alone, {model}))
        rates = [row for row in rows if row["times"] is not None and row["field"] != "context"]
        told = ", ".join(
            f"{row['field']} {row['theirs']:g}, of which this is {row['times']:.3g} times" for row in rates
        )
        return f"{name} says {told}: see tierline prices diff" if told else ""
    return ""


def _shown(price: dict[str, Any] | None) -> str:
    """Return a price as text: US dollars per million tokens."""
    if price is None:
        return "unknown"
    if not price["input"] and not price["output"]:
        return "free"
    cached = f", {price['cached_input']:g} cached" if price.get("cached_input") is not None else ""
    long = "".join(f", {step['input']:g} over {step['over']} tokens" for step in price.get("long") or ())
    tiers = f", also {' and '.join(price['service_tiers'])}" if price.get("service_tiers") else ""
    return f"${price['input']:g}{cached}{long} in, ${price['output']:g} out per million{tiers}"


def _import(args: argparse.Namespace) -> int:
    try:
        price_map = orjson.loads(args.map.read_bytes())
        if not isinstance(price_map, dict):
            raise ValueError("it holds no object")
        dated = args.dated or datetime.now(tz=UTC).date()
        facts = facts_from_price_map(price_map, shipped_facts().hosts, dated, f"LiteLLM's map, {args.map.name}")
    except (OSError, ValueError) as error:
        raise CommandError(f"cannot read {args.map}: {error}") from None
    value = facts.model_dump(mode="json", exclude_defaults=True)
    models = value["models"]
    lines = [
        f"  {orjson.dumps(provider).decode()}: {{\n"
        + ",\n".join(f"   {orjson.dumps(n).decode()}: {orjson.dumps(f).decode()}" for n, f in sorted(by_name.items()))
        + "\n  }"
        for provider, by_name in models.items()
    ]
    head = orjson.dumps({name: value[name] for name in ("dated", "source", "hosts")}).decode()
    try:
        args.write.write_text(f'{head[:-1]},\n "models": {{\n' + ",\n".join(lines) + "\n }\n}\n")
    except OSError as error:
        raise CommandError(f"{args.write} cannot be written: {error.strerror or error}") from None
    count = sum(len(by_name) for by_name in models.values())
    sys.stdout.write(f"{args.write}: {count} models of {len(models)} providers\n")
    unread = sorted(unread_rates(price_map, facts.hosts).items(), key=lambda pair: (-pair[1], pair[0]))
    if unread:
        told = ", ".join(f"{name} ({number} model{'s' * (number > 1)})" for name, number in unread)
        _say(f"prices that no call is charged by, as they are not read: {told}")
    return Exit.OK
