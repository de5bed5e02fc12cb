"""Define the schema of a deployment's config file: tiers and backends, store, tenants, limits.

These frozen models describe `deploy/tierline.yaml`; `gateway.config.loader` reads the file, fills in environment
variables and resolves the secrets. Durations are in seconds, sizes in bytes, prices in US dollars per million tokens.
A backend without its key or URL is *unconfigured*, with a reason: that is not an error, and the gateway runs without
it. Secrets are `SecretStr`: they print as asterisks, and only `get_secret_value()` returns them.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field, field_validator

from cache.index import Choice
from gateway.config.addresses import check_store_url
from gateway.config.backends import BackendConfig, TierConfig
from gateway.config.notations import (
    Count,
    Name,
    OptionalPath,
    OptionalText,
    Port,
    Positive,
    Size,
    Words,
    text_checked,
)
from gateway.parts.standard import missing_for, one
from policies.errors import Finding, Problem
from policies.validation import Extended, Seconds, Section, Share, Whole, raise_findings

DEFAULT_TENANT: Final = "default"
"""Name of the tenant of all requests where the config has no tenants."""


class StoreConfig(Section):
    """Redis-protocol store. Without a URL, `tierline up` starts a store and `tierline serve` runs without one."""

    url: Annotated[OptionalText, text_checked(check_store_url)] = Field(default=None, repr=False)
    """A redis://, rediss:// or unix:// URL; may hold a password, so it is not printed."""
    memory: Size = 256 << 20
    """Memory of the store that `tierline up` starts, in bytes. Tenants' quotas are cut down to their part of it."""
    index: Choice = "auto"
    """Index of the semantic cache. `auto`: the best that the server supports. Otherwise this one only: the server's
    `vector_sets` (Redis 8), or a `replica` in each worker (any server)."""

    @field_validator("index")
    @classmethod
    def _of_a_part(cls, index: Choice) -> Choice:
        if index == "vector_sets" and (missing := missing_for("index", "store.index: vector_sets")):
            raise ValueError(missing)
        return index


class EmbeddingConfig(Section):
    """Encoder that embeds requests, and the folder (`state`) for files that it generates."""

    kind: Literal["static", "minilm"] = "static"
    state: Path = Path(".state")


class PoliciesConfig(Section):
    """Whether policies come from files or from the registry in the store."""

    source: Literal["files", "store"] = "files"
    """`files`: the folder of policies, whose changes come into force as they are saved. `store`: the registry in the
    store, which `tierline policy apply` changes for all replicas; the files seed it when it is empty, and no more."""


@one("redaction")
def check_pattern(pattern: str) -> None:
    """Check a regular expression of `telemetry.redact`. Raises ValueError."""
    raise ValueError(missing_for("redaction", "telemetry.redact"))


@one("redaction")
def check_hook(name: str) -> None:
    """Check `telemetry.redact_with`. Raises ValueError."""
    raise ValueError(missing_for("redaction", "telemetry.redact_with"))


class TelemetryConfig(Section):
    """Recording of requests: with which texts, of which share their hops, and how many of the latest to keep."""

    prompts: bool | tuple[Name, ...] = False
    """Whether the texts of prompts, answers and comments are recorded: of all surfaces, of none, or of these."""
    sample: Share = 1.0
    """Share of requests whose hops are recorded and exported, besides those that always are."""
    redact: tuple[Annotated[str, text_checked(check_pattern)], ...] = ()
    """Regular expressions whose matches are removed from recorded texts."""
    redact_with: Annotated[str | None, text_checked(check_hook)] = None
    """`module:function` that takes a text and returns what may be kept of it."""
    keep: Annotated[Whole, Field(ge=0)] = 10_000

    def captures(self, surface: str) -> bool:
        """Return whether the texts of this surface's requests are recorded."""
        return self.prompts if isinstance(self.prompts, bool) else surface in self.prompts


class Limits(Section):
    """Limits on clients' requests and connections."""

    body: Size = 32 << 20
    """Largest request body."""
    values: Annotated[Whole, Field(ge=10_000)] = 100_000
    """Most values in a body, counted as commas and opening brackets outside strings: they decide what parsing costs."""
    messages: Count = 10_000
    """Most messages in a request."""
    tools: Count = 512
    """Most `tools`, or `functions`, in a request. OpenAI accepts 128."""
    stop: Count = 64
    """Most stop strings in a request. OpenAI accepts 4."""
    in_flight: Count = 2048
    """Most requests in progress per worker; one more is refused with 503 before its body is read."""
    bodies: Size | None = None
    """Most bytes of bodies of requests in progress per worker; a body beyond is refused with 503 before it is read.

    By default a sixteenth of the memory of the container or machine, shared by the workers, but at least `body`.
    """
    connections: Count = 8192
    """Most open connections per worker; one more closes the one that has been idle the longest."""
    sockets: Count = 64
    """Most WebSockets of one key per worker; of all keys they are at most half of `connections`."""
    stall: Positive = 60.0
    """How long a client may leave sent data unread; after that its request and the backend's call are ended."""
    silent: Positive = 10
    """How long a new connection may wait with its first request; between two requests it may wait 75 s."""
    drain: Seconds = 2.0
    """How long after SIGTERM new connections are still accepted, while /readyz already answers 503."""
    finish: Positive = 20.0
    """How long requests in progress then have to finish."""


def key_digest(key: bytes) -> bytes:
    """Return the SHA-256 of a key, 32 bytes: the only form in which tenants' keys are kept in memory."""
    return hashlib.sha256(key).digest()


_ORIGIN: Final = re.compile(r"(?:(?!https?:)[a-z][a-z0-9+.-]*://\*|[a-z][a-z0-9+.-]*://[^/\s*?#@]+)", re.IGNORECASE)


class Access(Section):
    """Access rules beside the tenants' keys.

    Without tenants no key is required. The gateway then starts on loopback addresses only, and refuses requests whose
    `Host` is not a name of this machine or whose `Origin` is another site.
    """

    hosts: tuple[str, ...] = ()
    """Further names that are accepted in `Host` and `Origin`, beside those of loopback."""
    keyless: bool = False
    """Serve without keys on an address that other machines reach, because something in front controls access."""
    cors: tuple[str, ...] = ()
    """Origins of pages and desktop applications that may send requests from a browser, as the browser names them:
    `https://chat.example.com`, `app://obsidian.md`. `vscode-webview://*` stands for all of a scheme of no website."""
    public_metrics: bool = False
    """Show /metrics and the details of /readyz to anyone. If false and there are tenants, they need the admin's key."""

    @field_validator("cors")
    @classmethod
    def _origins_alone(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r} is not an origin; write scheme://host[:port], and `*` for every host only of a scheme "
                    "other than http and https"
                )
        return tuple(origin.lower() for origin in origins)

    @property
    def cors_pattern(self) -> re.Pattern[str] | None:
        """Return the pattern of the origins in `cors`; None if there are none."""
        listed = "|".join(re.escape(origin).replace(r"\*", "[^/]*") for origin in self.cors)
        return re.compile(listed, re.IGNORECASE) if listed else None

    @field_validator("hosts")
    @classmethod
    def _names_alone(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for name in hosts:
            if "/" in name or (":" in name and not name.startswith("[")) or not name:
                raise ValueError(f"{name!r} is not a host's name; write it without a scheme and without a port")
        return tuple(name.lower() for name in hosts)


class StoreQuota(Section):
    """The most that the store keeps of something for each tenant; the store's memory may lower it."""

    entries: Count = 20_000
    """Most entries."""
    bytes: Size
    """Most bytes of all entries."""


class CacheConfig(StoreQuota):
    """Cache quota of each tenant on each surface; beyond it, the tenant's own oldest answers are removed."""

    bytes: Size = 32 << 20
    """Most bytes of all entries."""
    largest: Size = 1 << 20
    """Largest answer that is stored."""


class AdminPlace(NamedTuple):
    """The address of the admin port, and the variable that holds its key; None for a key that is not needed."""

    host: str
    port: int
    key_env: str | None

    @property
    def url(self) -> str:
        """The address for a client on this machine, without a path."""
        host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"


class Deployment(Extended):
    """The config of one deployment. Without `tenants` there is one, `default`, and no key is required.

    A loaded one has the sections of the installed parts too (`gateway.config.sections`).
    """

    host: str = "127.0.0.1"
    port: Port = 8787
    default_surface: str = "chat"
    tiers: Annotated[tuple[TierConfig, ...], Field(min_length=1)]
    """The tiers, cheapest first."""
    store: StoreConfig = StoreConfig()
    policies: PoliciesConfig = PoliciesConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    classifier: OptionalPath = None
    """Folder of a classifier artefact; None for the one shipped for the chosen embedding."""
    cross_encoder: Words = "default"
    """Cross-encoder of the semantic cache: `default` for the one shipped, `none`, or the path of a folder as
    sentence-transformers exports it."""
    cross_encoder_folder: Path | None = None
    """The folder that `cross_encoder` names, None for none; set by the loader."""
    telemetry: TelemetryConfig = TelemetryConfig()
    limits: Limits = Limits()
    cache: CacheConfig = CacheConfig()
    access: Access = Access()
    warnings: tuple[Problem, ...] = ()
    """Warnings about valid but doubtful values; set by the loader."""

    @field_validator("tiers")
    @classmethod
    def _names_differ(cls, tiers: tuple[TierConfig, ...]) -> tuple[TierConfig, ...]:
        seen: set[str] = set()
        findings: list[Finding] = []
        for i, tier in enumerate(tiers):
            if tier.name in {other.name for other in tiers[:i]}:
                findings.append(Finding((i, "name"), f"a second tier named {tier.name!r}"))
            for j, backend in enumerate(tier.backends):
                if backend.name in seen:
                    findings.append(Finding((i, "backends", j, "name"), f"a second backend named {backend.name!r}"))
                seen.add(backend.name)
        raise_findings(findings)
        return tiers

    @property
    def team_of(self) -> dict[str, str]:
        """Team by tenant name; tenants without a team are left out."""
        return {}

    @property
    def tenant_names(self) -> tuple[str, ...]:
        """Names of the tenants; without any, all requests are those of `DEFAULT_TENANT`."""
        return ()

    @property
    def client_variables(self) -> tuple[str, ...]:
        """Names of the environment variables with the keys of clients."""
        return ()

    @property
    def of_unknown_price(self) -> str:
        """What happens to requests of clients with a budget that may call a model of unknown price, in words."""
        return ""

    @property
    def backends(self) -> tuple[BackendConfig, ...]:
        """The backends of all tiers, in their order."""
        return tuple(backend for tier in self.tiers for backend in tier.backends)

    @property
    def backend_models(self) -> dict[str, str]:
        """The model of each backend, by its name, in the order of the tiers."""
        return {backend.name: backend.model for backend in self.backends}

    @property
    def scripted_models(self) -> tuple[str, ...]:
        """Models whose replies stand in the config; no model is behind them."""
        return tuple(dict.fromkeys(backend.model for backend in self.backends if backend.in_process))

    @property
    def unshared(self) -> frozenset[str]:
        """The tenant that may see the files and the prompt caches at the backends' accounts; empty where several share.

        Keys of the store may be of other tenants, which the config does not name, and which see nothing of it.
        """
        return frozenset((DEFAULT_TENANT,))

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Hosts and ports that the gateway listens at: its own, and the admin port's if there is one."""
        admin = self.admin_place
        return ((self.host, self.port), *([(admin.host, admin.port)] if admin else []))

    @property
    def admin_place(self) -> AdminPlace | None:
        """Where the admin port listens; None without one."""
        return None

    @property
    def keyless(self) -> bool:
        """Whether requests need no key."""
        return True

    @property
    def wants_local_model(self) -> bool:
        """Whether a backend has no URL, so that `tierline up` starts the local model for it."""
        return any(backend.wants_local_model for backend in self.backends)
