"""What the terminal shows once everything is up: where to send requests, and what stands behind."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

_INDENT = " " * 12
_QUESTION = "Name the capital city of France."
"""Eight tokens from the shipped model; without its last sentence it goes on for hundreds, and gets it wrong."""


@dataclass(frozen=True, slots=True)
class BannerRow:
    """One tier, and its state in words."""

    tier: str
    state: str


@dataclass(frozen=True, slots=True)
class BannerFacts:
    """Everything the banner says. `key_env` is the variable with a key for the curl line, where one is needed."""

    url: str
    tiers: Sequence[BannerRow]
    store: str
    surfaces: Sequence[str]
    default_surface: str
    state: str
    key_env: str | None = None


def render(facts: BannerFacts) -> str:
    """The banner, several lines, without a newline at the end."""
    width = max(len(row.tier) for row in facts.tiers)
    tiers = f"\n{_INDENT}".join(f"{row.tier:<{width}}  {row.state}" for row in facts.tiers)
    surfaces = ", ".join(facts.surfaces)
    return f"""
Tierline is up: {facts.url}/v1

  tiers     {tiers}
  store     {facts.store}
  surfaces  {surfaces} (auto is {facts.default_surface})
  state     {facts.state}

  Try it:

{curl(facts)}

  Ctrl-C stops everything.
"""


def curl(facts: BannerFacts) -> str:
    """A command to paste into a shell, which asks the default surface something."""
    body = {"model": facts.default_surface, "temperature": 0, "messages": [{"role": "user", "content": _QUESTION}]}
    key = f' -H "authorization: Bearer ${facts.key_env}"' if facts.key_env else ""
    request = f"    curl {facts.url}/v1/chat/completions -H 'content-type: application/json'{key}"
    return f"{request} \\\n      -d {shlex.quote(json.dumps(body))}"
