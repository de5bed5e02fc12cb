"""What a deployment is made of: its tiers and backends, its store, its tenants, its limits.

These are the frozen shapes of `deploy/tierline.yaml`; `gateway.config.loader` reads the file, fills in the environment
and resolves the secrets. Durations are held in seconds, sizes in bytes, prices in US dollars per million tokens.
A backend that lacks its key or its URL is *unconfigured*, with a reason, and never an error: the gateway runs
without it and says so. Secrets are `SecretStr`: they print as asterisks, and only `get_secret_value()` gives them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, InstanceOf, SecretStr, field_validator, model_validator

from cache.index.base import Choice
from gateway.backends.script import ScriptedRule
from gateway.config.addresses import check_http_url, check_store_url
from policies.errors import Problem
from policies.validation import Finding, raise_findings
from policies.values import Seconds, Section, Whole
from routing.confidence.judge import ScoringHead

Capability = Literal["tools", "vision", "json"]

_SIZE = re.compile(r"^(\d+)(B|KiB|MiB|GiB)$")
DEFAULT_TENANT: Final = "default"
"""Who everybody is where there are no tenants."""
_UNIT_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def _size(value: object) -> int:
    match = _SIZE.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a size; write a whole number with its unit, such as 512KiB or 4MiB")
    return int(match[1]) * _UNIT_BYTES[match[2]]


def _fit_for_a_header(value: str) -> str:
    """Every reply names the model that gave it."""
    if not value.isprintable():
        raise ValueError("holds line breaks or other control characters")
    return value


def _none_if_empty(value: object) -> object:
    """`${VAR:-}` gives an empty string where there is nothing; optional fields read that as absent."""
    return None if value == "" else value


Size = Annotated[int, BeforeValidator(_size), Field(ge=1)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
OptionalPath = Annotated[Path | None, BeforeValidator(_none_if_empty)]
OptionalText = Annotated[str | None, BeforeValidator(_none_if_empty)]
Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Price(Section):
    """US dollars per million tokens, in and out."""

    input: Dollars = 0.0
    output: Dollars = 0.0


class Http(Section):
    """Which HTTP client calls a backend. `http1` is our own on httptools; `aiohttp` does the same for more CPU time;
    HTTP/2 and proxies are in `httpx2` alone."""

    client: Literal["http1", "aiohttp", "httpx2"] = "http1"
    http2: bool = False
    proxy: OptionalText = Field(default=None, repr=False)
    """An http:// or https:// proxy; may hold a password, hence not printed."""

    @model_validator(mode="before")
    @classmethod
    def _client_fits(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not (data.get("http2") or data.get("proxy")):
            return data
        if data.get("client") in ("http1", "aiohttp"):
            raise ValueError("http2 and proxy need client: httpx2")
        return {**data, "client": "httpx2"}

    @field_validator("proxy")
    @classmethod
    def _proxy_is_http(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("a proxy is an http:// or https:// URL")
        return value


class Queue(Section):
    """A hard cap on who waits for a backend that carries all it may: so many requests per worker, and none longer than
    `wait`. What is not written caps nothing: each surface's policy says how many of its requests wait, and how long.
    """

    length: Annotated[Whole, Field(ge=0)] | None = None
    wait: Seconds | None = None


class Warm(Section):
    """A backend that grows cold: after so long without a call its first token takes about `ttft`.

    With `keep` a request for one token goes out before that.
    """

    after: Annotated[Seconds, Field(gt=0)]
    ttft: Seconds
    keep: bool = False


class BackendConfig(Section):
    """One model endpoint. What the loader resolves is never written in a file: `key`, `head`, `unconfigured_reason`."""

    name: Annotated[str, Field(pattern=r"^(?:[a-z0-9][a-z0-9_.-]{0,63})?$")] = ""
    """`TIER` or `TIER-N` when not given."""
    kind: Literal["openai", "scripted"] = "openai"
    """`openai` is called over HTTP; `scripted` answers in this process, from its `script`."""
    script: tuple[ScriptedRule, ...] = ()
    """Of a scripted backend: the first rule that fits a request gives its reply; the last fits every request."""
    base_url: str = ""
    """Up to and with `/v1`, no slash at the end; empty if not known yet, and then the backend is unconfigured."""
    model: Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_fit_for_a_header)]
    key_env: OptionalText = None
    key_file: OptionalPath = None
    price: Price = Price()
    max_in_flight: Annotated[Whole, Field(ge=1)] = 64
    """Calls at a time, of all workers together."""
    adaptive: bool = True
    """Whether fewer are sent while it slows down under them."""
    queue: Queue = Queue()
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Its share of the tier's requests beside the other backends', where the tier selects by weight."""
    warm: Warm | None = None
    continuation: Literal["none", "prefill", "continue_final_message", "prompt"] = "none"
    """How it goes on with a text that another model began, if it can: `prefill` takes an assistant message at the end
    as its own beginning (llama.cpp, Anthropic), `continue_final_message` is vLLM's field for it, and `prompt` asks for
    the rest in words (OpenAI)."""
    capabilities: frozenset[Capability] = frozenset()
    context: Annotated[Annotated[Whole, Field(ge=1)] | None, BeforeValidator(_none_if_empty)] = None
    """How many tokens it holds, prompt and reply together; None where that is not known, and then nothing is kept from
    it for its length. Of the model that `tierline up` starts it is known."""
    logprobs: bool = True
    """Whether it can give token log-probabilities. Where it cannot, a policy's `agreement` is the evidence there is."""
    confidence_head: Annotated[str, Field(min_length=1)] = "default"
    """`default` is the head that ships for this model, if one does; `none`; or the path of one of your own."""
    watch_drafts: bool = False
    """Whether the judged drafts of JSON requests are read as streams, so that a poor one is cancelled early."""
    http: Http = Http()
    connect_timeout: Seconds = 2.0
    patience: Annotated[Seconds, Field(gt=0)] = 10.0
    """How long it may be silent before its first byte until that counts against it. Requests may give up sooner."""
    idle_timeout: Annotated[Seconds, Field(gt=0)] = 30.0
    """How long a stream that has begun may be silent."""
    max_reply: Size = 16 << 20
    key: SecretStr | None = None
    unconfigured_reason: str | None = None
    head: InstanceOf[ScoringHead] | None = None
    """Read by the loader from where `confidence_head` says."""

    @field_validator("base_url")
    @classmethod
    def _reachable_by_config(cls, value: str) -> str:
        if value:
            check_http_url(value)
        return value.rstrip("/")

    @model_validator(mode="before")
    @classmethod
    def _scripted_is_a_name(cls, data: Any) -> Any:
        return {"model": "scripted", **data} if isinstance(data, Mapping) and data.get("kind") == "scripted" else data

    @model_validator(mode="after")
    def _one_key_source(self) -> BackendConfig:
        if self.key_env and self.key_file:
            raise ValueError("key_env and key_file are both given; keep one")
        return self

    @model_validator(mode="after")
    def _scripted_alone_has_a_script(self) -> BackendConfig:
        findings: list[Finding] = []
        if self.kind != "scripted":
            if self.script:
                findings.append((("script",), "only a backend of kind: scripted follows one"))
        elif not self.script:
            findings.append((("script",), "a scripted backend needs one, such as [{reply: {text: Hello.}}]"))
        elif not self.script[-1].always:
            message = "the last rule answers what no other does; leave out match, match_regex and times"
            findings.append((("script", len(self.script) - 1), message))
        if self.kind == "scripted":
            spare = ("base_url", "key_env", "key_file", "http", "connect_timeout")
            findings += [
                ((name,), "a scripted backend calls nobody; leave it out")
                for name in spare
                if name in self.model_fields_set
            ]
        raise_findings(findings)
        return self

    @property
    def lacks_url(self) -> bool:
        """Whether it is called over HTTP and has no URL yet."""
        return self.kind == "openai" and not self.base_url

    @property
    def configured(self) -> bool:
        """Whether requests can be sent to it."""
        return self.unconfigured_reason is None and not self.lacks_url


class TierConfig(Section):
    """One rung of the ladder."""

    name: Name
    select: Literal["power_of_two", "weighted", "sticky"] = "power_of_two"
    """Which of its backends is called: the better of two by their latency now; by weight; or the one that had this
    conversation before, whose prompt cache is warm, unless another is faster by more than the cache saves."""
    backends: Annotated[tuple[BackendConfig, ...], Field(min_length=1)]

    @field_validator("backends")
    @classmethod
    def _name_backends(cls, backends: tuple[BackendConfig, ...], info: Any) -> tuple[BackendConfig, ...]:
        tier = info.data.get("name", "backend")
        return tuple(
            backend
            if backend.name
            else backend.model_copy(update={"name": tier if len(backends) == 1 else f"{tier}-{number}"})
            for number, backend in enumerate(backends, start=1)
        )

    @property
    def configured(self) -> bool:
        """Whether at least one backend is."""
        return any(backend.configured for backend in self.backends)

    @property
    def unconfigured_reason(self) -> str | None:
        """Why no backend of this tier can be used; None when one can."""
        if self.configured:
            return None
        return "; ".join(dict.fromkeys(backend.unconfigured_reason or "no base_url" for backend in self.backends))


class StoreConfig(Section):
    """The Redis-protocol store. Without a URL, `tierline up` starts one and `tierline serve` runs without."""

    url: OptionalText = Field(default=None, repr=False)
    """redis://, rediss:// or unix://; may hold a password, hence not printed."""
    index: Choice = "auto"
    """Where questions are looked up by meaning: the best that the server can carry, or one of these and no other:
    its `vector_sets` (Redis 8), its `query_engine` (FT.*), or a `replica` in each worker (any server)."""

    @field_validator("url")
    @classmethod
    def _speaks_redis(cls, value: str | None) -> str | None:
        if value is not None:
            check_store_url(value)
        return value


class EmbeddingConfig(Section):
    """Which encoder embeds requests, and the folder where what it makes once is kept."""

    kind: Literal["static", "minilm"] = "static"
    state: Path = Path(".state")


class LocalModel(Section):
    """The model that `tierline up` serves itself, when no backend URL is given for it. `serve` ignores this."""

    gguf: OptionalPath = None
    """None is the model that ships with Tierline."""
    context: Annotated[Whole, Field(ge=256)] = 4096
    """Tokens per slot."""
    slots: Annotated[Whole, Field(ge=1, le=64)] = 4
    threads: Annotated[Whole, Field(ge=1)] | None = None


class TelemetryConfig(Section):
    """What is recorded of requests: whether with their prompts, and how many of the latest are kept."""

    prompts: bool = False
    keep: Annotated[Whole, Field(ge=0)] = 10_000


class LogConfig(Section):
    """What goes to stderr. `requests` is a line for each finished request, at any level."""

    format: Literal["text", "json"] = "text"
    requests: bool = False
    level: Literal["info", "warning", "error"] = "warning"


class Limits(Section):
    """What the gateway takes from a client."""

    body: Size = 4 << 20
    values: Annotated[Whole, Field(ge=10_000)] = 100_000
    """Commas and opening brackets outside of strings: what a body costs to read goes by these, not by its bytes."""
    messages: Annotated[Whole, Field(ge=1)] = 10_000
    tools: Annotated[Whole, Field(ge=1)] = 512
    """Of `functions` too. OpenAI takes 128."""
    stop: Annotated[Whole, Field(ge=1)] = 64
    """OpenAI takes 4."""
    in_flight: Annotated[Whole, Field(ge=1)] = 2048
    """Requests that one worker has in hand; one more is refused with 503 before it is read."""
    connections: Annotated[Whole, Field(ge=1)] = 8192
    """Connections that one worker keeps open; one more closes the one that has been idle the longest."""
    stall: Annotated[Seconds, Field(gt=0)] = 60.0
    """How long a client may leave what it was sent unread; then its request ends, and the backend's call with it."""
    silent: Annotated[Seconds, Field(gt=0)] = 10
    """How long a new connection may say nothing; between two requests it is 75 s."""
    drain: Seconds = 2.0
    """How long after SIGTERM newcomers are still taken, while /readyz says 503 already."""
    finish: Annotated[Seconds, Field(gt=0)] = 20.0
    """How long what is in flight then has to end by itself."""


def key_digest(key: bytes) -> bytes:
    """SHA-256 of a key, 32 bytes: the only form in which a tenant's key is held."""
    return hashlib.sha256(key).digest()


class TenantConfig(Section):
    """One tenant. Its keys come from environment variables and files (one key a line), never from the config."""

    team: Name | None = None
    """With whom it may share stored answers, on surfaces whose policy says `cache: {scope: team}`."""
    key_env: tuple[str, ...] = ()
    key_file: tuple[Path, ...] = ()
    key_digests: Annotated[tuple[bytes, ...], Field(repr=False)] = ()
    """The SHA-256 of each key, 32 bytes; made by the loader, and all that is held of a key."""

    @field_validator("key_env", "key_file", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str | Path) else value


class Access(Section):
    """Who may reach the gateway, beyond the keys of tenants.

    Without tenants no key is asked for. On loopback, requests must then be sent to a name of this machine, and by no
    page of another site; on any other address the gateway does not start.
    """

    hosts: tuple[str, ...] = ()
    """Names, beside loopback's, that such requests may be sent to and such pages may come from."""
    keyless: bool = False
    """Serve without keys on an address that other machines reach: something in front keeps strangers out."""
    public_metrics: bool = False
    """Show /metrics and the details of /readyz to anyone; else, once there are tenants, they want the admin's key."""

    @field_validator("hosts")
    @classmethod
    def _names_alone(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for name in hosts:
            if "/" in name or (":" in name and not name.startswith("[")) or not name:
                raise ValueError(f"{name!r} is not a host's name; write it without a scheme and without a port")
        return tuple(name.lower() for name in hosts)


class CacheConfig(Section):
    """How much one tenant may keep on one surface: its oldest answers go first, and never anybody else's."""

    entries: Annotated[Whole, Field(ge=1)] = 20_000
    bytes: Size = 32 << 20
    largest: Size = 1 << 20
    """A longer answer is not kept."""


class Admin(Section):
    """The admin API, on a port of its own, with a key of its own."""

    key_env: Annotated[str, Field(min_length=1)]
    host: str = "127.0.0.1"
    port: Annotated[Whole, Field(ge=1, le=65535)] = 8788
    key: SecretStr | None = None
    """Resolved by the loader."""


class Deployment(Section):
    """The whole config of one deployment. No tenants means one tenant, `default`, and no key needed."""

    host: str = "127.0.0.1"
    port: Annotated[Whole, Field(ge=0, le=65535)] = 8787
    default_surface: str = "chat"
    tiers: Annotated[tuple[TierConfig, ...], Field(min_length=1)]
    """Cheapest first."""
    store: StoreConfig = StoreConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    classifier: OptionalPath = None
    """The folder of a classifier artefact; None is the shipped one for the embedding."""
    cross_encoder: OptionalPath = None
    """The folder of a cross-encoder as sentence-transformers exports it, for policies that ask one; see `cache`."""
    local_model: LocalModel = LocalModel()
    telemetry: TelemetryConfig = TelemetryConfig()
    log: LogConfig = LogConfig()
    limits: Limits = Limits()
    cache: CacheConfig = CacheConfig()
    tenants: Mapping[Name, TenantConfig] = {}
    admin: Admin | None = None
    """None: there is no admin API."""
    access: Access = Access()
    warnings: tuple[Problem, ...] = ()
    """What is doubtful but not wrong; filled by the loader."""

    @field_validator("tiers")
    @classmethod
    def _names_differ(cls, tiers: tuple[TierConfig, ...]) -> tuple[TierConfig, ...]:
        seen: set[str] = set()
        findings: list[Finding] = []
        for i, tier in enumerate(tiers):
            if tier.name in {other.name for other in tiers[:i]}:
                findings.append(((i, "name"), f"a second tier named {tier.name!r}"))
            for j, backend in enumerate(tier.backends):
                if backend.name in seen:
                    findings.append(((i, "backends", j, "name"), f"a second backend named {backend.name!r}"))
                seen.add(backend.name)
        raise_findings(findings)
        return tiers

    @model_validator(mode="after")
    def _ports_differ(self) -> Deployment:
        if self.admin is not None and self.admin.port == self.port:
            raise ValueError("admin.port is the gateway's own port; give it another")
        return self

    @property
    def teams(self) -> dict[str, str]:
        """The team of each tenant that has one."""
        return {name: tenant.team for name, tenant in self.tenants.items() if tenant.team is not None}

    @property
    def teamless(self) -> tuple[str, ...]:
        """The tenants that have no team; `default` where there are no tenants."""
        return tuple(name for name, tenant in self.tenants.items() if tenant.team is None) or (
            () if self.tenants else (DEFAULT_TENANT,)
        )

    @property
    def backend_names(self) -> tuple[str, ...]:
        """The backends' names, in the order of the tiers."""
        return tuple(backend.name for tier in self.tiers for backend in tier.backends)

    @property
    def keyless(self) -> bool:
        """Whether requests need no key."""
        return not self.tenants

    @property
    def wants_local_model(self) -> bool:
        """Whether a backend has no URL: the one that `tierline up` fills by starting the local model."""
        return any(backend.lacks_url for tier in self.tiers for backend in tier.backends)
