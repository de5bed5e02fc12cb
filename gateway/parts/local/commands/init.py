"""Run `tierline init`: look for keys and servers, propose a ladder, write a config for it, check and try it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import sys
import tempfile
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from gateway.cli.commands import CommandError
from gateway.cli.flags import Subparsers, add_command, add_json_flag
from gateway.config.loader import default_config
from gateway.exit_codes import Exit
from gateway.parts.lint.commands import check
from gateway.parts.lint.edit import CannotEdit
from gateway.parts.local.judge_choice import judge_of, verifier_advice
from gateway.parts.local.judged_policies import judged_policies
from gateway.parts.local.ladder import ModelServer, Rung, costs, ladder, look_around, tiers_text
from gateway.parts.prices.model_facts import known_providers
from gateway.report import print_json

_OF_A_TRY: Final = """surface: chat
slo: {{deadline: 30s}}
tiers: [{tiers}]
route: {{classifier: none, start: {{{first}: otherwise}}}}
escalate: {{no_signal: accept}}
"""
"""The policy by which --try asks each tier by its name: the shipped ones do not name all."""
_AFTER_TIERS: Final = "# services:"
_KEPT: Final = "\ufffc"
"""Stands for a space at which no line is broken."""
_COMMENT: Final = textwrap.TextWrapper(
    100, initial_indent="# ", subsequent_indent="# ", break_long_words=False, break_on_hyphens=False
)
_WRAPPER: Final = textwrap.TextWrapper(80, subsequent_indent=" " * 24, break_long_words=False, break_on_hyphens=False)


def add_parser(subparsers: Subparsers) -> None:
    """Add `init` to the command line."""
    parser = add_command(subparsers, "init")
    parser.add_argument("--out", type=Path, default=Path("tierline.yaml"), metavar="FILE")
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--server", action="append", default=[], metavar="URL")
    parser.add_argument("--key-env", default="", metavar="VAR")
    parser.add_argument("--try", action="store_true", dest="try_out")
    add_json_flag(parser, "text")


def run(args: argparse.Namespace) -> int:
    """Write the config, if the check finds no mistake in it, and return the exit code. Raises CommandError."""
    if args.out.exists() and not args.force:
        raise CommandError(f"{args.out} is there already: --force writes over it, --out FILE writes another")
    servers = {url: url.rstrip("/") for url in args.server} or known_providers().servers
    places = asyncio.run(look_around(os.environ, servers, args.key_env))
    rungs = ladder(places, servers.values() if args.server else ())
    text = default_config().read_text()
    if rungs:
        before, tiers = text[: text.index("\ntiers:") + 1], text[text.index("\ntiers:") + 1 : text.index(_AFTER_TIERS)]
        advice = verifier_advice(rungs)
        comment = _as_comment(advice)
        text = before + comment + tiers_text(rungs, tiers) + text[text.index(_AFTER_TIERS) :]
    findings = _written(args.out, text)
    wrong = [str(problem) for problem in findings.problems]
    folder = args.out.with_name(f"{args.out.stem}-policies")
    judged = [] if wrong else _write_policies(args.out, folder, rungs, force=args.force)
    tried = asyncio.run(_try_out(args.out, rungs)) if args.try_out and not wrong else {}
    used = {place.url for rung in rungs for place in (rung.place, *rung.also)}
    result = {
        "config": str(args.out),
        "key_env": args.key_env,
        "silent": sorted(url for url in servers.values() if args.server and url not in {place.url for place in places}),
        "found": [
            {"name": one.name, "url": one.url, "models": one.models, "wants_key": one.refused, "used": one.url in used}
            for one in places
        ],
        "rungs": [_row(rung) for rung in rungs],
        "costs": costs(rungs),
        "judge": _judge(rungs),
        "policies": str(folder) if judged else None,
        "judged_policies": judged,
        "advice": _advice(rungs),
        "written": not wrong,
        "problems": wrong,
        "warnings": [str(warning) for warning in findings.warnings if warning.file == args.out],
        "tried": tried,
    }
    if args.json:
        print_json(result)
    else:
        sys.stdout.write(_as_text(places, rungs, result))
    return Exit.FINDINGS if wrong or any(result_of_try != "answers" for result_of_try in tried.values()) else Exit.OK


def _written(out: Path, text: str) -> check.Findings:
    """Check the config, write it if there is no mistake in it, and return the findings. Raises CommandError."""
    draft = out.with_name(f".{out.name}.draft")
    try:
        draft.write_text(text)
        findings = check.findings_of(argparse.Namespace(config=draft, policies=None))
        if not findings.problems:
            draft.replace(out)
    except OSError as error:
        raise CommandError(f"cannot write {out}: {error.strerror or error}") from None
    finally:
        draft.unlink(missing_ok=True)
    problems, warnings = (
        tuple(replace(finding, file=out) if finding.file == draft else finding for finding in some)
        for some in (findings.problems, findings.warnings)
    )
    return replace(findings, problems=problems, warnings=warnings)


def _write_policies(out: Path, folder: Path, rungs: list[Rung], *, force: bool) -> list[str]:
    """Write policies with a judge into `folder`; return which have one. Raises CommandError."""
    if folder.exists() and not force and judge_of(rungs) is not None:
        raise CommandError(f"{folder} is there already, and {out} is written: --force writes over both")
    try:
        return judged_policies(out, folder, rungs)
    except (OSError, CannotEdit) as error:
        raise CommandError(f"{out} is written, {folder} is not: {error}") from None


def _row(rung: Rung) -> dict[str, Any]:
    price = None if rung.facts is None or rung.facts.price is None else rung.facts.price
    return {
        "tier": rung.tier,
        "model": rung.model,
        "at": rung.place.name,
        "base_url": rung.place.url,
        "also_at": [place.url for place in rung.also],
        "price": None if price is None else {"input": price.input, "output": price.output},
        "context": rung.place.contexts.get(rung.model) if rung.facts is None else rung.facts.context,
        "logprobs": rung.logprobs,
        "why": rung.why,
    }


def _as_comment(advice: str) -> str:
    """Return the advice as lines of a YAML comment; what is to be copied, in backquotes, stays on one line."""
    whole = re.sub("`.*?`", lambda copied: copied[0].replace(" ", _KEPT), advice)
    return f"{_COMMENT.fill(whole)}\n".replace(_KEPT, " ") if advice else ""


def _judge(rungs: list[Rung]) -> dict[str, Any] | None:
    if (choice := judge_of(rungs)) is None:
        return None
    usd = None if choice.usd is None else round(choice.usd, 4)
    tokens_in = choice.tokens_in
    return {"backend": choice.backend, "rule": choice.rule, "usd_per_1000_drafts": usd, "tokens_in": tokens_in}


def _advice(rungs: list[Rung]) -> list[str]:
    advice = [said] if (said := verifier_advice(rungs)) else []
    if any(rung.tier == "large" for rung in rungs):
        advice.append(
            "of the shipped policies only agent asks large: write `tiers: [local, hosted, large]` in a copy of others"
        )
    return advice


def _as_text(places: list[ModelServer], rungs: list[Rung], result: dict[str, Any]) -> str:
    lines = []
    used = {server["url"] for server in result["found"] if server["used"]}
    for place in places:
        state = "does not list its models" if place.models is None else f"{len(place.models)} models"
        if place.refused:
            state = "refuses the key" if result["key_env"] else "wants a key: name its variable with --key-env"
        elif place.provider is None and place.url not in used:
            state += ", not used: name it with --server, once for each that you want"
        lines.append(f"found    {place.name:<14} {place.url}: {state}")
    lines += [f"nothing  {'':<14} {url}: no server lists models there within 0.5 s" for url in result["silent"]]
    if not rungs:
        lines.append("found no key and no model server: this is the shipped ladder")
    for rung in rungs:
        price = None if rung.facts is None else rung.facts.price
        cost = "free" if rung.place.provider is None else "price not known"
        if price is not None:
            cost = f"${price.input:g} in, ${price.output:g} out per million tokens"
        signal = "" if rung.logprobs else ", no log-probabilities"
        lines.append(f"rung     {rung.tier:<14} {rung.model} ({rung.place.name}): {cost}{signal}")
        lines += [f"{'':<24}why: {rung.why}"] if rung.why else []
    if rungs:
        lines.append("cost     in US dollars of 1,000 typical requests, were all answered by one tier:")
        lines.append(f"{'':<24}{''.join(f'{rung.tier:>11}' for rung in rungs)}  tokens in, out")
    for surface, row in result["costs"].items() if rungs else ():
        by_tier = "".join(f"{'not known' if usd is None else f'{usd:.2f}':>11}" for usd in row["usd"].values())
        lines.append(f"{'':<9}{surface:<15}{by_tier}  {row['tokens_in']}, {row['tokens_out']}")
    lines += [f"advice   {said}" for said in result["advice"]]
    lines += [*result["problems"], *(f"{warning} (warning)" for warning in result["warnings"])]
    lines += [f"tried    {tier:<14} {said}" for tier, said in result["tried"].items()]
    if not result["written"]:
        lines.append(f"{result['config']} is not written: `tierline up` would refuse it")
        return "".join(f"{part}\n" for line in lines for part in _WRAPPER.wrap(line))
    start = f"tierline up --config {result['config']}"
    if result["policies"]:
        names = ", ".join(name.removesuffix(".yaml") for name in result["judged_policies"])
        lines.append(f"wrote {result['policies']}: the shipped policies, with that in {names}")
        start += f" --policies {result['policies']}"
    lines.append(f"wrote {result['config']}; start with `{start}`")
    return "".join(f"{part}\n" for line in lines for part in _WRAPPER.wrap(line))


async def _try_out(config: Path, rungs: list[Rung]) -> dict[str, str]:
    """Send one short request through each rung, by this gateway; return by tier `answers`, or why not."""
    from gateway.parts.local.embedded import RequestFailed, Tierline

    said: dict[str, str] = {}
    if not rungs:
        return said
    tiers = ", ".join(rung.tier for rung in rungs)
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "chat.yaml").write_text(_OF_A_TRY.format(tiers=tiers, first=rungs[0].tier))
        tierline = await stack.enter_async_context(Tierline(config=config, policies=folder))
        for rung in rungs:
            try:
                await tierline.chat.completions.create(
                    model=f"tier:{rung.tier}",
                    messages=[{"role": "user", "content": "Say hello."}],
                    max_tokens=16,
                    timeout=30,
                    extra_headers={"x-tierline-cache": "no-store"},
                )
                said[rung.tier] = "answers"
            except RequestFailed as error:
                said[rung.tier] = f"{error.status_code}: {error}"
    return said
