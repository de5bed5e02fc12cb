"""What the benches share: the command line of `python -m tests.bench.NAME`, and a table of figures with targets."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import aiohttp


def bench_parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """Return the parser of a bench: the first paragraph of its docstring describes it, the rest stands below."""
    summary, _, rest = (doc or "").partition("\n\n")
    return argparse.ArgumentParser(
        prog=f"python -m tests.bench.{name}",
        description=summary,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


async def asked(client: aiohttp.ClientSession, url: str, key: str, text: str) -> int:
    """Send a question with a key past the cache; return the status of the reply, which is read. Raises ClientError."""
    body = {"model": "chat", "messages": [{"role": "user", "content": text}]}
    headers = {"authorization": f"Bearer {key}", "x-tierline-cache": "no-store, no-cache"}
    async with client.post(f"{url}/chat/completions", json=body, headers=headers) as reply:
        await reply.read()
        return reply.status


@dataclass(frozen=True, slots=True)
class BenchFigure:
    """One figure of a bench; `target` is the most it may be, None where it has none."""

    what: str
    value: float
    target: float | None = None

    @property
    def met(self) -> bool:
        """Whether it is no more than that."""
        return self.target is None or self.value <= self.target


def report(figures: Sequence[BenchFigure], *, as_json: bool = False) -> int:
    """Print the figures, each with its target and whether it is met; return the exit code, 1 where one is not."""
    if as_json:
        print(json.dumps([asdict(figure) | {"met": figure.met} for figure in figures]))
    else:
        for figure in figures:
            target = "" if figure.target is None else f"{figure.target:>9g}  {'met' if figure.met else 'OVER'}"
            print(f"{figure.what:52}{figure.value:>9.2f}{target}")
    return 0 if all(figure.met for figure in figures) else 1
