"""Run `tierline fit collect`: ask a model prompts whose answers are known, and record its graded answers as labels."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from gateway.backends.base import Backend
from gateway.backends.http1_transport import Http1Transport
from gateway.backends.http_backend import Common
from gateway.backends.server_forms import new_field_memory
from gateway.cascade.fields import with_set_fields
from gateway.cli.commands import CommandError
from gateway.cli.flags import whole
from gateway.config.backends import BackendConfig
from gateway.config.loader import load_deployment
from gateway.exit_codes import Exit
from gateway.parts.fit.commands._collect_model import OnAnswer, OnFailure, Respondent, Stopped
from gateway.parts.fit.commands._collect_rows import CollectTask, Labels, read_tasks
from gateway.parts.fit.commands._collect_words import JudgedRows, JudgingRespondent
from gateway.parts.fit.datasets import DataError, Json
from gateway.parts.local import CannotStart
from gateway.parts.local.local_model import find_gguf, shipped_model
from gateway.report import NONE, Report, progress, show, table
from gateway.tiers.endpoint import Endpoint
from gateway.tiers.tier import build_tiers, endpoints_of
from policies.errors import did_you_mean

_CONNECT_S = 10.0
_MAX_REPLY = 32 << 20
_STDERR = Console(stderr=True)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give the parser of `fit collect` its options."""
    parser.add_argument("--prompts", type=Path, required=True, metavar="FILE")
    parser.add_argument("--answers", type=Path, metavar="FILE")
    parser.add_argument("--base-url", type=_url, metavar="URL")
    parser.add_argument("--model", metavar="NAME")
    parser.add_argument("--backend", metavar="NAME")
    parser.add_argument("--config", type=Path, metavar="FILE")
    parser.add_argument("--key-env", metavar="VAR")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--concurrency", type=whole(1), default=4, metavar="N")
    parser.add_argument("--max-tokens", type=whole(1), default=256, metavar="N")
    parser.add_argument("--limit", type=whole(1), metavar="N")
    parser.add_argument("--judge", action="store_true")
    parser.add_argument("--of", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Ask the prompts that have no answer yet, write the rows, and print how often the model was right."""
    if args.backend is None and bool(args.base_url) != bool(args.model):
        raise CommandError("--base-url and --model go together; without both, the shipped model is asked")
    if args.backend is not None and (args.base_url or args.key_env):
        raise CommandError(
            "--backend takes the address and the key from the config; leave out --base-url and --key-env"
        )
    args.endpoint = None if args.backend is None else _configured(args)
    try:
        if args.judge:
            return _judge(args)
        every, ungraded = read_tasks(args.prompts, args.answers)
        if ungraded:
            _say(f"{ungraded} prompts are left out: they have no accepted answers")
        tasks = every[: args.limit]
        model = args.model or (find_gguf(None)[1] if args.endpoint is None else args.endpoint.config.model)
        labels = Labels.open(args.out, model, resume=args.resume)
        failures = _ask(args, labels, tasks)
        labels.finish(tasks)
    except (DataError, CannotStart, OSError) as error:
        raise CommandError(str(error)) from None
    if failures:
        task, reason = failures[0]
        _say(f"{len(failures)} prompts got no answer, --resume asks them again; the first, {task.id}: {reason}")
    show(_report(args, labels, tasks), as_json=args.json)
    return Exit.FINDINGS if failures else Exit.OK


def _judge(args: argparse.Namespace) -> int:
    """Have the answers judged that have no word yet, and write the rows. Raises DataError, CannotStart, OSError."""
    words = JudgedRows.open(args.prompts, args.out, resume=args.resume)
    tasks = words.missing(args.limit, args.of)
    if not tasks and not args.resume:
        raise CommandError(f"{args.prompts} has no answers to judge{' of these models (--of)' if args.of else ''}")
    failures: list[str] = []
    with progress() as on_progress:
        done = 0

        def on_answer(task: Any, word: Json) -> None:
            nonlocal done
            words.add(task, word)
            done += 1
            on_progress("judging", done, len(tasks))

        try:
            asyncio.run(_ask_all(args, tasks, on_answer, lambda task, why: failures.append(f"{task.id}: {why}")))
        except Stopped as error:
            raise CommandError(f"{error}\n{done} of {len(tasks)} answers are judged; --resume continues") from None
    judged = words.finish()
    if failures:
        _say(f"{len(failures)} answers got no word; the first, {failures[0]}")
    show(Report({"judged": judged, "out": str(args.out)}, [f"{judged} answers have a judge's word in {args.out}"]),
         as_json=args.json)  # fmt: skip
    return Exit.FINDINGS if failures else Exit.OK


def _ask(args: argparse.Namespace, labels: Labels, tasks: Sequence[CollectTask]) -> list[tuple[CollectTask, str]]:
    """Ask the missing prompts and add their answers to `labels`; return those that got none, with the reason."""
    missing = labels.missing(tasks)
    failures: list[tuple[CollectTask, str]] = []
    try:
        with progress() as on_progress:
            answered = len(tasks) - len(missing)
            on_progress(labels.model, answered, len(tasks))

            def on_answer(task: CollectTask, answer: Json) -> None:
                nonlocal answered
                labels.add(task, answer)
                answered += 1
                on_progress(labels.model, answered, len(tasks))

            def on_failure(task: CollectTask, reason: str) -> None:
                failures.append((task, reason))

            if missing:
                asyncio.run(_ask_all(args, missing, on_answer, on_failure))
    except (Stopped, KeyboardInterrupt) as error:
        status = f"{len(tasks) - len(labels.missing(tasks))} of {len(tasks)} prompts are answered; --resume continues"
        if isinstance(error, Stopped):
            raise CommandError(f"{error}\n{status}") from None
        _say(status)
        raise
    return failures


async def _ask_all(args: argparse.Namespace, tasks: Sequence[Any], on_answer: OnAnswer, on_failure: OnFailure) -> None:
    kind = JudgingRespondent if args.judge else Respondent
    async with _endpoint(args) as (base_url, model, key):
        backend: Backend
        if args.endpoint is None:
            config = BackendConfig(name="asked", base_url=base_url, model=model)
            common = Common(model=model, key=key, maker=config.maker(), refused=new_field_memory("asked"))
            limits = {"max_in_flight": args.concurrency, "connect_timeout_s": _CONNECT_S, "max_reply": _MAX_REPLY}
            backend = config.make(common, lambda path: Http1Transport(f"{base_url}{path}", **limits), None)
            respondent = kind(backend, base_url, args.max_tokens)
        else:
            backend = args.endpoint.backend
            respondent = kind(backend, base_url, args.max_tokens, partial(with_set_fields, endpoint=args.endpoint))
        try:
            await respondent.answer_all(tasks, args.concurrency, on_answer, on_failure)
        finally:
            await backend.aclose()
            if count := respondent.without_logprobs:
                _say(f"{count} answers came without log-probabilities: a confidence head cannot be fitted to them")


def _configured(args: argparse.Namespace) -> Endpoint:
    """Return the endpoint of --backend. Raises CommandError."""
    deployment = load_deployment(args.config, os.environ)
    endpoints = endpoints_of(build_tiers(deployment, lambda *_: None))
    endpoint = endpoints.get(args.backend)
    if endpoint is None:
        raise CommandError(f"the config has no backend {args.backend!r}{did_you_mean(args.backend, endpoints)}")
    if not endpoint.config.configured:
        reason = endpoint.config.unconfigured_reason or "it has no URL"
        raise CommandError(f"the backend {args.backend!r} is not configured: {reason}")
    return endpoint


@asynccontextmanager
async def _endpoint(args: argparse.Namespace) -> AsyncIterator[tuple[str, str, str | None]]:
    """Provide the base URL, the model and the key; start the shipped model if no endpoint is named."""
    if args.endpoint is not None:
        yield args.endpoint.config.base_url, args.endpoint.config.model, None
        return
    if args.base_url is None:
        async with shipped_model(_say) as endpoint:
            yield endpoint
        return
    key = os.environ.get(args.key_env) if args.key_env else None
    if args.key_env and not key:
        raise CommandError(f"the environment variable {args.key_env} (--key-env) is not set")
    yield args.base_url, args.model, key


def _report(args: argparse.Namespace, labels: Labels, tasks: Sequence[CollectTask]) -> Report:
    """Return by data set how often the model was right, over all prompts and over the fifth of highest confidence."""
    answers: dict[str, list[Json]] = {}
    for task in tasks:
        if task.id in labels.rows and labels.model in labels.rows[task.id]["models"]:
            answers.setdefault(task.dataset, []).append(labels.rows[task.id]["models"][labels.model])
    figures = {dataset: _figures(some) for dataset, some in answers.items()}
    shown = table("data set", "n", "right", "mean confidence", "right among the surest fifth")
    for dataset, figure in figures.items():
        shares = (figure["right"], figure["confidence"], figure["right_surest_fifth"])
        shown.add_row(dataset, str(figure["n"]), *(NONE if share is None else f"{share:.3f}" for share in shares))
    values = {"model": labels.model, "out": str(args.out), "datasets": figures}
    return Report(values, [shown], title=labels.model, done=[f"written to {args.out}"], width=120)


def _figures(answers: Sequence[Json]) -> dict[str, Any]:
    sure = sorted((one for one in answers if "confidence" in one), key=lambda answer: -float(answer["confidence"]))
    fifth = sure[: math.ceil(len(sure) / 5)]
    return {
        "n": len(answers),
        "right": _mean([float(answer["correct"]) for answer in answers]),
        "confidence": _mean([math.exp(answer["confidence"]) for answer in sure]),
        "right_surest_fifth": _mean([float(answer["correct"]) for answer in fifth]),
    }


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(f"{text!r} is not a URL like http://127.0.0.1:8000/v1")
    return text.rstrip("/")


def _say(line: str) -> None:
    _STDERR.print(line, markup=False, highlight=False, soft_wrap=True)
