"""Render the text that the terminal shows once everything is up: the URL, and the state of tiers and store."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

_INDENT = " " * 12
OWN_KEY = "TIERLINE_KEY"
"""Variable for a key of the caller's own, where the config names none."""
_QUESTION = "Name the capital city of France."
"""A question that the shipped model answers right in eight tokens; rephrasings can get long and wrong answers."""


@dataclass(frozen=True, slots=True)
class BannerRow:
    """One tier and its state in words."""

    tier: str
    state: str


@dataclass(frozen=True, slots=True)
class BannerFacts:
    """Values shown in the banner. `key_env` is the variable with a key for the curl line, None if none is needed."""

    url: str
    tiers: Sequence[BannerRow]
    store: str
    surfaces: Sequence[str]
    default_surface: str
    state: str
    console: str | None = None
    key_env: str | None = None
    config_shipped: bool = False


def render(facts: BannerFacts) -> str:
    """Return the banner's text."""
    width = max(len(row.tier) for row in facts.tiers)
    tiers = f"\n{_INDENT}".join(f"{row.tier:<{width}}  {row.state}" for row in facts.tiers)
    surfaces = ", ".join(facts.surfaces)
    console = f"\n  console   {facts.console}" if facts.console else ""
    own = (
        "\n  config    the shipped one; `tierline init` writes one for your keys and servers"
        if facts.config_shipped
        else ""
    )
    return f"""
Tierline is up: {facts.url}/v1

  tiers     {tiers}
  store     {facts.store}
  surfaces  {surfaces} (auto is {facts.default_surface})
  state     {facts.state}{console}{own if facts.config_shipped else ""}

  Try it:{_own_key(facts)}

{curl(facts)}

  Ctrl-C stops everything.
"""


def _own_key(facts: BannerFacts) -> str:
    """Return what to do before the curl line works, where a key is needed and no variable of the config has one."""
    if facts.key_env != OWN_KEY:
        return ""
    return f" (once {OWN_KEY} holds a key; `tierline keys create --name me` makes one)"


def curl(facts: BannerFacts) -> str:
    """Return a shell command that sends a question to the default surface."""
    body = {"model": facts.default_surface, "temperature": 0, "messages": [{"role": "user", "content": _QUESTION}]}
    key = f' -H "authorization: Bearer ${facts.key_env}"' if facts.key_env else ""
    request = f"    curl {facts.url}/v1/chat/completions -H 'content-type: application/json'{key}"
    return f"{request} \\\n      -d {shlex.quote(json.dumps(body))}"
