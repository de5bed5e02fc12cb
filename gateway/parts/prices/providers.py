"""Read the file of providers and local servers: whose key is in which variable, at which URL, with which models.

`tierline init` proposes a ladder from it, and the default config's hosted tiers are of the first provider with a key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import orjson

from gateway.config.environment import Environ
from policies.validation import Section

_FILE: Final = Path(__file__).parent / "providers.json"


class Provider(Section):
    """A provider of hosted models, and which of them to propose."""

    name: str
    key_env: str
    or_env: tuple[str, ...] = ()
    """Further variables, any of which is as good as the key's."""
    auth: str = ""
    """The cloud whose identity stands in place of a key, which the variables above then say is there."""
    base_url: str
    """'' where each customer has a URL of their own, which `url_env` must then hold. `{NAME}` is a variable's value."""
    url_env: str = ""
    path: str = ""
    """What follows the URL in `url_env`."""
    kind: str = "openai"
    small: str
    large: str
    capabilities: tuple[str, ...] = ("tools", "vision", "json")
    logprobs: bool = True
    """Whether its API returns log-probabilities of tokens at all; what is known of a model counts besides."""
    unasked: bool = False
    """Whether its models can all that the default config's hosted tiers say, which then are theirs by a key alone."""
    deployments: bool = False
    """Whether customers choose which models are there, and their names."""

    def url(self, environ: Environ) -> str:
        """Return the base URL: that of the environment, if there is one; '' if nobody knows it."""
        own = environ.get(self.url_env, "").rstrip("/") if self.url_env else ""
        try:
            return own + self.path if own else self.base_url.format_map(environ)
        except KeyError:
            return ""


class ProvidersFile(Section):
    """The file: providers in the order in which they are proposed, and servers on this machine by name."""

    providers: tuple[Provider, ...]
    servers: Mapping[str, str]
    rungs: Mapping[str, float]
    """What a prompt of each hosted rung should cost about, in US dollars per million tokens."""
    typical: Mapping[str, tuple[int, int]]
    """Tokens of a typical prompt and answer of each shipped surface: assumptions, by which ladders are compared."""


@cache
def known_providers() -> ProvidersFile:
    """Return the shipped file."""
    return ProvidersFile.model_validate(orjson.loads(_FILE.read_bytes()))


def offered(environ: Environ) -> Iterator[tuple[Provider, str]]:
    """Yield each provider whose key, or identity, the environment holds, with its base URL."""
    for provider in known_providers().providers:
        names = (provider.key_env, *provider.or_env)
        if any(environ.get(name) for name in names) and (url := provider.url(environ)):
            yield provider, url


def with_hosted_tiers(environ: Environ) -> Environ:
    """Return the environment with the variables of the default config's hosted tiers, filled in by the first key that
    is there of a provider which can be them. Where OpenAI's key or URL is set, the first of the two stays as it is.

    The second one is filled in where both models are the file's own, or the environment names its model.
    """
    own, known = dict(environ), not environ.get("TIERLINE_HOSTED_MODEL")
    openai = known_providers().providers[0]
    url, large = openai.url(environ), openai.large
    if environ.get("OPENAI_API_KEY") or environ.get("OPENAI_BASE_URL"):
        known = known and not environ.get("OPENAI_BASE_URL")
    else:
        offer = next(((provider, url) for provider, url in offered(environ) if provider.unasked), None)
        if offer is None:
            return environ
        provider, url = offer
        own |= {
            "OPENAI_BASE_URL": url,
            "TIERLINE_HOSTED_KIND": provider.kind,
            "TIERLINE_HOSTED_KEY_ENV": provider.key_env,
            "TIERLINE_HOSTED_MODEL": environ.get("TIERLINE_HOSTED_MODEL") or provider.small,
        }
        known, large = known and not provider.deployments, provider.large
    if known or environ.get("TIERLINE_LARGE_MODEL"):
        own["TIERLINE_LARGE_BASE_URL"] = environ.get("TIERLINE_LARGE_BASE_URL") or url
        own["TIERLINE_LARGE_MODEL"] = environ.get("TIERLINE_LARGE_MODEL") or large
        if not environ.get("TIERLINE_LARGE_KEY") and own["TIERLINE_LARGE_BASE_URL"] == url:  # no other server gets it
            own["TIERLINE_LARGE_KEY_ENV"] = own.get("TIERLINE_HOSTED_KEY_ENV") or "OPENAI_API_KEY"
    return own
