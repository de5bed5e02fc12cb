"""Measure what n-gram speculation does for the local model: `python -m tests.bench.speculation [--rounds N]`.

The shipped model fills in records from short texts, after one example, at temperature 0: text that is extracted is said
again word by word, which is what n-grams propose. Two engines of the same options stand side by side, one of which
speculates; each text goes to both, one after the other, so that both have the same machine. Printed are tokens a
second of each, the ratio of their times with its 95% interval over the texts (bootstrap), and how many answers are
equal.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx2

from gateway.parts.local.child import Child
from gateway.parts.local.config import LocalModel
from gateway.parts.local.local_model import find_gguf, local_child
from gateway.parts.local.state import claimed_folder

EXAMPLE: Final = (
    "Text: Invoice INV-104 of 3 May 2025 from Harbour Supplies, Rotterdam, to Anna Visser: 3 brackets, 13.50 EUR.\n"
    'Record: {"number": "INV-104", "date": "3 May 2025", "vendor": "Harbour Supplies, Rotterdam", '
    '"customer": "Anna Visser", "items": "3 brackets", "total": "13.50 EUR"}\n\n'
)
DATES: Final = ("14 March 2025", "1 June 2024", "30 April 2025", "9 October 2023")
VENDORS: Final = ("Northwind Traders, Leeds", "Blue Mountain Coffee Roasters, Kingston", "The Old Paper Mill, Gent")
CUSTOMERS: Final = ("Peter Holm", "Maria da Silva", "Jan van den Berg")
ITEMS: Final = ("12 hexagon bolts, 89.00 EUR", "40 bags of coffee, 512.00 EUR", "500 sheets of paper, 75.25 EUR")


def texts(rounds: int) -> list[str]:
    """Return that many invoices, the same each time."""
    drawn = random.Random(7)
    return [
        f"Invoice INV-{drawn.randrange(10, 99999)} of {drawn.choice(DATES)} from {drawn.choice(VENDORS)}, "
        f"to {drawn.choice(CUSTOMERS)}: {drawn.choice(ITEMS)}."
        for _ in range(rounds)
    ]


@asynccontextmanager
async def served(model: LocalModel) -> AsyncIterator[httpx2.AsyncClient]:
    """Serve the shipped model with these options; provide a client of its server."""
    with TemporaryDirectory(prefix="tierline-bench-") as folder, claimed_folder(Path(folder)) as state:
        spec, base_url, key = local_child(model, state)
        child = Child(replace(spec, vital=True), lambda line: None)
        life = asyncio.create_task(child.run())
        try:
            await child.settled.wait()
            headers = {"Authorization": f"Bearer {key}"}
            async with httpx2.AsyncClient(base_url=base_url, headers=headers, timeout=120, trust_env=False) as client:
                yield client
        finally:
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)


async def asked(client: httpx2.AsyncClient, text: str) -> tuple[str, dict[str, Any]]:
    """Return the record of a text, and the engine's own times."""
    body = {"prompt": f"{EXAMPLE}Text: {text}\nRecord:", "max_tokens": 96, "temperature": 0, "stop": ["\n"]}
    reply = (await client.post("/completions", json={**body, "model": find_gguf(None)[1]})).json()
    return reply["choices"][0]["text"], reply["timings"]


async def main(rounds: int) -> None:
    """Measure, and print a table."""
    async with AsyncExitStack() as stack:
        one_slot = {"slots": 1, "context": 1024}
        plain = await stack.enter_async_context(served(LocalModel.model_validate(one_slot)))
        ngram = await stack.enter_async_context(served(LocalModel.model_validate({**one_slot, "speculate": "ngram"})))
        pairs = [(await asked(plain, text), await asked(ngram, text)) for text in texts(rounds)]
    for name, side in (("none", 0), ("ngram", 1)):
        times = [pair[side][1] for pair in pairs]
        tokens = sum(one["predicted_n"] for one in times)
        proposed, taken = (sum(one.get(key, 0) for one in times) for key in ("draft_n", "draft_n_accepted"))
        print(
            f"{name:<6} {1000 * tokens / sum(one['predicted_ms'] for one in times):5.1f} tokens/s, {tokens} tokens, "
            f"{taken} of {proposed} proposed ones taken"
        )
    ratios = [ngram[1]["predicted_ms"] / plain[1]["predicted_ms"] for plain, ngram in pairs]
    drawn = random.Random(1)
    medians = sorted(statistics.median(drawn.choices(ratios, k=len(ratios))) for _ in range(2000))
    equal = sum(plain[0] == ngram[0] for plain, ngram in pairs)
    print(
        f"time of ngram beside none, median of texts: {statistics.median(ratios):.2f} "
        f"[{medians[50]:.2f}, {medians[1949]:.2f}]"
    )
    print(f"equal answers: {equal} of {len(pairs)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="texts that both engines are asked about")
    asyncio.run(main(parser.parse_args().rounds))
