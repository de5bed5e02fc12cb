"""Measure how far a real server's log-probabilities can be trusted: `python -m tests.bench.drafters [--few N]`.

The shipped model stands behind a gateway three times, by llama.cpp: as it is, with a drafter (the same model, which
proposes best) and with n-grams. Printed are

    made sure      false answers that the gateway escalates without a drafter and serves with one, of 40
    no signal      answers of those that have no confidence with it, which is what speculation costs the cascade
    whole, stream  prompts in six scripts whose confidence differs by more than .01 between a whole answer and a stream

Questions and prompts are those of `drafters.toml`; answers have at most 24 tokens, at temperature 0, and a stream is
held to its end. The gateway has no confidence head and no cache.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2
import yaml

from tests.support.gateway import config, environment, running, write_policies
from tests.support.llama import KEY, llama, shipped

DATA: Final = Path(__file__).with_suffix(".toml")
BELOW: Final = 0.75
"""Confidence below which the gateway escalates."""
APART: Final = 0.01
FALSE: Final = 40
DRAFTERS: Final[Mapping[str, Sequence[str]]] = {
    "draft": ("--draft", str(shipped())),
    "ngram": ("--speculate", "ngram"),
}
_POLICY: Final = """
surface: {surface}
slo: {{deadline: 120s}}
holdout: 0
tiers: [local, hosted]
route: {{classifier: none, start: {{local: otherwise}}}}
escalate:
  when: {{uncalibrated_below: {below}, refusal: false, repetition: false}}
  no_signal: {no_signal}
  stream: {{hold_tokens: 256, hold_max: 60s}}
"""


class Served(NamedTuple):
    """What the gateway made of a prompt: the tier that answered, the text, and the confidence that this has."""

    tier: str
    text: str
    confidence: float | None


@contextmanager
def gateway_over(folder: Path, url: str, **backend: Any) -> Iterator[httpx2.Client]:
    """Provide a client of a gateway whose first tier is the model at `url`; its last one is scripted.

    The surface `chat` escalates below BELOW and without a signal; `any` serves each draft with the confidence it has,
    and `told` each draft that has one.
    """
    folder.mkdir()
    local = {"base_url": url, "model": "small", "key_env": "LOCAL_KEY", "confidence_head": "none"}
    local |= {"capabilities": ["tools", "json"], **backend}
    hosted = {"kind": "scripted", "model": "large", "script": [{"reply": {"text": "The large model knows."}}]}
    hosted |= {"capabilities": ["tools", "json"]}
    tiers = [{"name": "local", "backends": [local]}, {"name": "hosted", "backends": [hosted]}]
    surfaces = {
        "chat": _POLICY.format(surface="chat", below=BELOW, no_signal="escalate"),
        "any": _POLICY.format(surface="any", below=1e-9, no_signal="accept"),
        "told": _POLICY.format(surface="told", below=1e-9, no_signal="escalate"),
    }
    write_policies(folder / "policies", surfaces)
    deployment = config(url, url, tiers=tiers, default_surface="any")
    (folder / "tierline.yaml").write_text(yaml.safe_dump(deployment, sort_keys=False))
    with (
        running(folder, environment(LOCAL_KEY=KEY)) as gateway,
        httpx2.Client(base_url=gateway.url, timeout=180, trust_env=False) as client,
    ):
        yield client


def asked(client: httpx2.Client, surface: str, text: str, *, stream: bool = False, **fields: Any) -> Served:
    """Ask the gateway."""
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 24}
    headers = {"x-tierline-surface": surface}
    reply = client.post("/chat/completions", json={**body, "stream": stream, **fields}, headers=headers)
    reply.raise_for_status()
    if stream:
        chunks = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
        said = "".join(one["delta"].get("content") or "" for chunk in chunks for one in chunk["choices"])
    else:
        said = reply.json()["choices"][0]["message"]["content"] or ""
    confidence = reply.headers.get("x-tierline-confidence")
    return Served(reply.headers["x-tierline-tier"], said, None if confidence is None else float(confidence))


def fields_of(prompt: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a request has beside the text of a prompt of `drafters.toml`."""
    form = {"response_format": {"type": "json_object"}} if prompt.get("json") else {}
    return form | ({"stop": prompt["stop"]} if "stop" in prompt else {})


def whole_and_streamed(client: httpx2.Client, prompts: Sequence[Mapping[str, Any]]) -> list[tuple[Served, Served]]:
    """Ask each prompt whole and as a stream."""
    return [
        (
            asked(client, "any", prompt["text"], **fields_of(prompt)),
            asked(client, "any", prompt["text"], stream=True, **fields_of(prompt)),
        )
        for prompt in prompts
    ]


def apart(whole: Served, streamed: Served) -> bool:
    """Return whether one answer has another confidence streamed than whole."""
    if whole.confidence is None or streamed.confidence is None:
        return whole.confidence is not streamed.confidence
    return abs(whole.confidence - streamed.confidence) > APART


def false_answers(client: httpx2.Client, questions: Sequence[Mapping[str, str]], most: int) -> list[Mapping[str, str]]:
    """Return the first questions, `most` of them, that are answered falsely and escalated."""
    found: list[Mapping[str, str]] = []
    for question in questions:
        if len(found) < most:
            given = asked(client, "any", question["ask"])
            is_false = question["right"] not in given.text.casefold()
            if is_false and asked(client, "chat", question["ask"]).tier == "hosted":
                found.append(question)
    return found


def main(few: int | None) -> None:
    """Measure, and print the rows."""
    data = tomllib.loads(DATA.read_text())
    prompts, most = data["prompts"][:: 1 if few is None else max(1, len(data["prompts"]) // few)], few or FALSE
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)

        def client_of(kind: str, *options: str) -> httpx2.Client:
            return stack.enter_context(gateway_over(folder / kind, stack.enter_context(llama(folder, *options))))

        plain = client_of("plain")
        pairs = whole_and_streamed(plain, prompts)
        count = sum(apart(*pair) for pair in pairs)
        print(f"whole and streamed confidence apart by > {APART}: {count} of {len(pairs)}", flush=True)
        false = false_answers(plain, data["questions"], most)
        for kind, options in DRAFTERS.items():
            drafted = client_of(kind, *options)
            answers = [asked(drafted, "chat", question["ask"]) for question in false]
            without = sum(asked(drafted, "any", question["ask"]).confidence is None for question in false)
            sure = sum(answer.tier == "local" for answer in answers)
            print(f"{kind}: false answers made sure {sure} of {len(false)}, without a signal {without}", flush=True)
            drafts = whole_and_streamed(drafted, prompts)
            print(f"{kind}: whole and streamed apart {sum(apart(*pair) for pair in drafts)} of {len(drafts)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--few", type=int, default=None, help="ask about so many prompts and questions only")
    main(parser.parse_args().few)
