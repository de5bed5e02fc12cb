"""Define the schema of a deployment's config file: tiers and backends, store, tenants, limits.

These frozen models describe `deploy/tierline.yaml`; `gateway.config.loader` reads the file, fills in environment
variables and resolves the secrets. Durations are in seconds, sizes in bytes, prices in US dollars per million tokens.
A backend without its key or URL is *unconfigured*, with a reason: that is not an error, and the gateway runs without
it. Secrets are `SecretStr`: they print as asterisks, and only `get_secret_value()` returns them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, InstanceOf, SecretStr, field_validator, model_validator

from cache.index.base import Choice
from gateway.backends.prompt_cache import PromptCacheFacts, prompt_cache_facts
from gateway.backends.script import ScriptedRule
from gateway.config.addresses import check_http_url, check_store_url, is_loopback
from gateway.config.alerts import AlertsConfig
from gateway.config.hooks import hook_of
from gateway.config.identity import IdentityConfig, RoleConfig
from gateway.config.keys import KeysConfig, OwnerTerms
from gateway.config.model_facts import is_hosted_alone
from gateway.config.prices import Dollars, Price
from gateway.dialects.messages.models import facts_of_model
from gateway.dialects.reasoning import Maker, maker_of
from policies.errors import Finding, Problem
from policies.fields import SetFields
from policies.quantities import read_size
from policies.validation import Seconds, Section, Share, Whole, raise_findings
from routing.confidence.judge import ScoringHead
from routing.confidence.scorer import AnswerScorer
from routing.features import SERVICE_TIERS, Capability, ServiceTier
from routing.load.latency import Prior

_OF_KIND: Final[Mapping[str, frozenset[str]]] = {
    "openai": frozenset({"n", "store", "prompt_cache_key"}),
    "responses": frozenset({"store", "prompt_cache_key"}),
    "anthropic": frozenset(),
    "scripted": frozenset({"n", "store", "prompt_cache_key"}),
    "decisions": frozenset(),
}
"""Capabilities that backends of each kind have without being said to, since their API has the field."""
_NOT_OF_KIND: Final[Mapping[str, frozenset[str]]] = {
    "openai": frozenset({"hosted_tools"}),
    "responses": frozenset({"audio", "n", "background"}),
    "anthropic": frozenset({"audio", "n", "background", "store", "prompt_cache_key"}),
    "scripted": frozenset({"hosted_tools"}),
    "decisions": frozenset(get_args(Capability)),
}
"""Capabilities that backends of each kind cannot have: requests to them have no way to ask for it."""
_OPENAIS: Final = (".openai.com", ".openai.azure.com")
"""Ends of the hosts of OpenAI's own API, which refuses fields that it does not know."""
_ANTHROPICS: Final = ("thinking", "output_config")
DEFAULT_TENANT: Final = "default"
"""Name of the tenant of all requests where the config has no tenants."""


S = TypeVar("S", bound=Section)


def _fit_for_a_header(value: str) -> str:
    """Return the model's name if it can be sent in a header: every reply names its model. Raises ValueError."""
    if not value.isprintable():
        raise ValueError("holds line breaks or other control characters")
    return value


def _none_if_empty(value: object) -> object:
    """Turn '' into None: `${VAR:-}` gives an empty string if the variable is not set."""
    return None if value == "" else value


def _base_url(value: str) -> str:
    """Return a backend's or a service's URL without a slash at the end; '' is none yet. Raises ValueError."""
    if value:
        check_http_url(value)
    return value.rstrip("/")


def _check(check: Callable[[str], object]) -> AfterValidator:
    """Return a validator of optional texts that `check` raises ValueError for."""

    def checked(value: str | None) -> str | None:
        if value is not None:
            check(value)
        return value

    return AfterValidator(checked)


Size = Annotated[int, BeforeValidator(read_size), Field(ge=1)]
Count = Annotated[Whole, Field(ge=1)]
OptionalCount = Annotated[Count | None, BeforeValidator(_none_if_empty)]
Port = Annotated[Whole, Field(ge=0, le=65535)]
Positive = Annotated[Seconds, Field(gt=0)]
Words = Annotated[str, Field(min_length=1)]
LOCAL_URL = "TIERLINE_LOCAL_BASE_URL"
"""Environment variable with the URL of the model that `tierline up` starts, which sets it."""
BaseUrl = Annotated[str, AfterValidator(_base_url)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
OptionalPath = Annotated[Path | None, BeforeValidator(_none_if_empty)]
OptionalText = Annotated[str | None, BeforeValidator(_none_if_empty)]


class Http(Section):
    """HTTP client for a backend: `http1` (own, on httptools) or `httpx2` (HTTP/2, proxies)."""

    client: Literal["http1", "httpx2"] = "http1"
    http2: bool = False
    proxy: OptionalText = Field(default=None, repr=False)
    """URL of an http:// or https:// proxy; may hold a password, so it is not printed."""

    @model_validator(mode="before")
    @classmethod
    def _client_fits(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("client") == "aiohttp":
            raise ValueError("there is no client aiohttp any more: leave it out, http1 does the same for less CPU time")
        if not isinstance(data, Mapping) or not (data.get("http2") or data.get("proxy")):
            return data
        if data.get("client") == "http1":
            raise ValueError("http2 and proxy need client: httpx2")
        return {**data, "client": "httpx2"}

    @field_validator("proxy")
    @classmethod
    def _proxy_is_http(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("a proxy is an http:// or https:// URL")
        return value


class Queue(Section):
    """Hard cap on the requests that wait for a full backend, over all surfaces together.

    An unset value sets no cap; each surface's policy still limits how many of its requests wait, and how long.
    """

    length: Annotated[Whole, Field(ge=0)] | None = None
    """Most waiting requests per worker."""
    wait: Seconds | None = None
    """Longest wait of a request."""


class Warm(Section):
    """Cold start of a backend: when it has had no call for `after`, its next first token takes about `ttft`.

    With `keep`, the gateway sends a one-token request before that time is over.
    """

    after: Positive
    ttft: Seconds
    keep: bool = False


_OF_AUTH: Final[Mapping[str, frozenset[str]]] = {
    "aws": frozenset({"region", "service", "profile"}),
    "google": frozenset({"scope"}),
    "entra": frozenset({"client_id", "scope"}),
}
"""Keys of `auth` beside its kind, by that."""


class CloudAuth(Section):
    """The identity of a cloud account, which the provider's own library finds, as it does for its other tools."""

    kind: Literal["aws", "google", "entra"]
    region: OptionalText = None
    """Region that requests are signed for; None for the one in the URL, else the account's."""
    service: OptionalText = None
    """Service that requests are signed for; None for Bedrock's."""
    profile: OptionalText = None
    """Profile of the shared AWS files; None for the usual one."""
    client_id: OptionalText = None
    """Client id of the managed or workload identity; None for the one in the environment."""
    scope: OptionalText = None
    """Scope of the token; None for that of Google Cloud, or of Azure's AI services."""

    @model_validator(mode="after")
    def _keys_of_its_kind(self) -> Self:
        spare = sorted(self.model_fields_set - _OF_AUTH[self.kind] - {"kind"})
        raise_findings(Finding((name,), f"kind: {self.kind} has no {name}; leave it out") for name in spare)
        return self


class Keyed(Section):
    """A backend or service that is called with an API key; the loader sets `key` and `unconfigured_reason`."""

    auth: CloudAuth | None = None
    """The identity of a cloud, in place of a key."""
    key_env: OptionalText = None
    key_file: OptionalPath = None
    key: SecretStr | None = None
    unconfigured_reason: str | None = None

    @model_validator(mode="after")
    def _one_key_source(self) -> Self:
        given = [name for name in ("auth", "key_env", "key_file") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are {'both' if len(given) == 2 else 'all'} given; keep one")
        return self


class BackendConfig(Keyed, SetFields):
    """One model endpoint. The loader sets `head`, `prior`, `provider`, `retires` and `price_source` too.

    What it sets in requests counts after what a policy sets.
    """

    name: Annotated[str, Field(pattern=r"^(?:[a-z0-9][a-z0-9_.-]{0,63})?$")] = ""
    """`TIER` or `TIER-N` when not given."""
    kind: Literal["openai", "responses", "anthropic", "decisions", "scripted"] = "openai"
    """`openai`, `responses` and `anthropic` are called over HTTP, by chat completions, OpenAI's Responses API or
    Anthropic's Messages API; `decisions` judges drafts by the decisions API, and answers no request; `scripted` answers
    in this process, from its `script`."""
    script: tuple[ScriptedRule, ...] = ()
    """Rules of a scripted backend: the first that matches a request gives its reply; the last must match all."""
    base_url: BaseUrl = ""
    """URL up to and including `/v1`, which `kind: anthropic` may leave out, without a slash at the end; if empty, the
    backend is unconfigured."""
    model: Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_fit_for_a_header)]
    price: Price | None = None
    """None if nobody states it: then what its calls cost is unknown. A model that runs on this machine is free."""
    max_in_flight: Count = 64
    """Most concurrent calls, of all workers together."""
    adaptive: bool = True
    """Whether the limit on concurrent calls is lowered while the backend's latency rises under load."""
    queue: Queue = Queue()
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Relative share of the tier's requests, used with `select: weighted`."""
    warm: Warm | None = None
    continuation: Literal["none", "prefill", "continue_final_message", "prompt"] = "none"
    """How the backend is asked to continue a text that another model began, if it can: `prefill` sends the text as a
    final assistant message (llama.cpp, Claude before 4.6), `continue_final_message` sets vLLM's field of that name, and
    `prompt` asks for the rest in an instruction (OpenAI)."""
    capabilities: frozenset[Capability] = frozenset()
    """What it can do, beside what every backend of its kind can; see `can`."""
    service_tiers: tuple[ServiceTier, ...] | None = None
    """Service tiers that it honours, beside the ordinary one; None if nobody knows: then it is asked for any."""
    context: OptionalCount = None
    """Context length in tokens, prompt and reply together. None if not known: then no request is kept from the backend
    for its length. For the model that `tierline up` starts it is set automatically."""
    max_output: OptionalCount = None
    """Most tokens of one answer, where the backend refuses requests that allow more. None if not known."""
    logprobs: bool = True
    """Whether the backend returns token log-probabilities. If not, confidence needs a policy's `agreement`. False for
    `kind: anthropic`, whose API has none."""
    confidence_head: Words = "default"
    """`default` for the shipped head for this model, if any; `none`; or the path of another head."""
    rename: Mapping[str, str] = {}
    """Request fields that the backend takes under another name, such as `{max_tokens: max_completion_tokens}`."""
    omit: tuple[str, ...] = ()
    """Request fields that the backend refuses or ignores. They are left out, and named in x-tierline-dropped. Those in
    `messages.NAME` are members of messages. A field that an answer would be wrong without is a capability it lacks."""
    roles: Literal["any", "one_system"] | None = None
    """Whether messages may have the roles `developer` and `system` anywhere, or there is one system message, at the
    beginning, as most chat templates have it. The loader fills it in by the host and the model if it is not given."""
    prompt_lifetime: Positive | None = None
    """How long it keeps a prompt in its cache after the last use; the loader fills in what its provider says. None if
    that is not known: then nothing is said of how warm a conversation is there (`route.weigh_switching`)."""
    watch_drafts: bool = False
    """Whether answers to non-streamed requests that will be judged are read as streams, to cancel poor ones early."""
    http: Http = Http()
    slo_headers: bool = False
    """Whether it takes llm-d's headers about the first token and the pace, and schedules by them."""
    connect_timeout: Seconds = 2.0
    patience: Positive = 10.0
    """Time to the first byte beyond which a timed-out call counts as the backend's failure. Requests may give up
    sooner."""
    idle_timeout: Positive = 30.0
    """Longest pause between two chunks of a stream."""
    max_reply: Size = 16 << 20
    """Largest accepted reply."""
    retires: date | None = None
    """The day on which the provider switches the model off, if that is announced; set by the loader."""
    prior: InstanceOf[Prior] | None = None
    """What is expected of the model until calls of it were measured, by the facts about it; set by the loader."""
    provider: str = ""
    """Whose API it is, as the files of facts name hosts; '' if they do not know."""
    price_source: str = ""
    """Who states the price: `config`, `on this machine`, `file of DATE (SOURCE)`; '' if nobody does."""
    head: InstanceOf[ScoringHead] | None = None
    """The confidence head that `confidence_head` names, read by the loader."""

    @model_validator(mode="before")
    @classmethod
    def _known_of_its_kind(cls, data: Any) -> Any:
        """Return the data with a scripted backend's name; a model on this machine is free, in one service tier."""
        if not isinstance(data, Mapping):
            return data
        scripted, url = data.get("kind") == "scripted", data.get("base_url")
        known: dict[str, Any] = {"model": "scripted"} if scripted else {}
        here = isinstance(url, str) and is_loopback(urlsplit(url).hostname or "")
        if scripted or (here and not is_hosted_alone(str(data.get("model")))):
            known["price"] = {}
        if here or data.get("kind") == "anthropic":
            known["service_tiers"] = ()
        return {**known, **data}

    @model_validator(mode="before")
    @classmethod
    def _anthropic_has_no_logprobs(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or data.get("kind") != "anthropic":
            return data
        if data.get("logprobs") is True:
            raise_findings([Finding(("logprobs",), "Anthropic's API has no log-probabilities; leave it out")])
        return {**data, "logprobs": False}

    @model_validator(mode="after")
    def _can_what_its_api_can_say(self) -> BackendConfig:
        findings = [
            Finding(("capabilities",), f"the API of kind: {self.kind} has no way to ask for {name}; leave it out")
            for name in sorted(self.capabilities & _NOT_OF_KIND[self.kind])
        ]
        if self.kind == "anthropic" and self.service_tiers:
            findings.append(Finding(("service_tiers",), "Anthropic's API has none to choose from; leave it out"))
        if self.kind in ("responses", "anthropic"):
            message = "members of messages can be left out of chat completions only"
            findings += [Finding(("omit",), f"{message}: {name}") for name in self.omit if name.startswith("messages.")]
        for how, fields in (("set", self.set), ("force", self.force)):
            message = "is a field of Anthropic's API, which this one refuses; write reasoning_effort instead"
            findings += [
                Finding((how, name), f"{name} {message}")
                for name in _ANTHROPICS
                if name in fields.keys() & self.not_settable
            ]
        raise_findings(findings)
        return self

    @cached_property
    def not_settable(self) -> frozenset[str]:
        """Fields that it is never sent for a policy that sets them: OpenAI's own APIs refuse those of Anthropic's."""
        foreign = _ANTHROPICS if self.kind == "responses" or self._is_openais_chat else ()
        return frozenset((*self.omit, *foreign))

    @model_validator(mode="after")
    def _continues_as_its_api_can(self) -> BackendConfig:
        if self.kind == "anthropic" and self.continuation in ("prefill", "continue_final_message"):
            prefill = self.continuation == "prefill"
            if not prefill or not facts_of_model(self.model).prefill:
                who = f"{self.model} continues no begun message" if prefill else "it is a field of vLLM's API"
                raise_findings([Finding(("continuation",), f"{who}; write prompt, which asks for the rest in words")])
        if self.kind == "responses" and self.continuation in ("prefill", "continue_final_message"):
            message = "the Responses API does not continue a message that another model began; write prompt, or none"
            raise_findings([Finding(("continuation",), message)])
        return self

    @model_validator(mode="after")
    def _scripted_alone_has_a_script(self) -> BackendConfig:
        findings: list[Finding] = []
        if self.kind != "scripted":
            if self.script:
                findings.append(Finding(("script",), "only a backend of kind: scripted follows one"))
        elif not self.script:
            findings.append(Finding(("script",), "a scripted backend needs one, such as [{reply: {text: Hello.}}]"))
        elif not self.script[-1].always:
            message = "the last rule answers what no other does; leave out match, match_regex and times"
            findings.append(Finding(("script", len(self.script) - 1), message))
        if self.kind == "scripted":
            spare = ("auth", "base_url", "key_env", "key_file", "http", "connect_timeout")
            findings += [
                Finding((name,), "a scripted backend calls nobody; leave it out")
                for name in spare
                if name in self.model_fields_set
            ]
        raise_findings(findings)
        return self

    def maker(self) -> Maker:
        """Return the maker of the reasoning that the backend signs: the same for all with this URL, model and key."""
        return maker_of(f"{self.base_url}\0{self.model}", None if self.key is None else self.key.get_secret_value())

    @property
    def can(self) -> frozenset[str]:
        """Names of the capabilities that routing may ask of it: `routing.features.FURTHER`, and what fields imply."""
        can: set[str] = {*self.capabilities, *_OF_KIND[self.kind]}
        if self.kind == "openai" and self.is_here and "store" not in self.capabilities:
            can.discard("store")  # servers of open models keep no completions
        if "service_tier" not in self.omit:
            tiers = SERVICE_TIERS if self.service_tiers is None else self.service_tiers
            can.update(f"service_tier_{name}" for name in tiers)
        if not can.isdisjoint({"files", "hosted_tools"}) and not (self.names_model_in_url or self._is_openais_chat):
            can.add("file_urls")
        can.difference_update(self.omit)
        if "hosted_tools" in can:
            can.discard("hosted_tools")
            can.add("responses_hosted_tools" if self.kind == "responses" else "messages_hosted_tools")
        if self.kind == "anthropic" and "web_search" in can:
            # The field of chat completions cannot be translated, and what its own clients send is a tool.
            can.discard("web_search")
            can.add("messages_web_search")
        return frozenset(can)

    @property
    def _is_openais_chat(self) -> bool:
        """Whether it is OpenAI's own chat completions, which take files as data or by id alone."""
        return self.kind == "openai" and f".{urlsplit(self.base_url).hostname}".endswith(_OPENAIS)

    @property
    def is_here(self) -> bool:
        """Whether it runs on this machine, where nobody limits its rate."""
        return self.kind == "scripted" or is_loopback(urlsplit(self.base_url).hostname or "")

    @cached_property
    def sets_fields(self) -> bool:
        """Whether it sets fields of the requests that it is sent."""
        return bool(self.set or self.force)

    @cached_property
    def prompt_cache(self) -> PromptCacheFacts | None:
        """What its provider's prompt cache has to be asked for; None if nothing."""
        return prompt_cache_facts(self.kind, self.provider, self.model, self.omit)

    @property
    def auth_kind(self) -> str:
        """The cloud whose identity calls it; '' for a key, or nothing."""
        return "" if self.auth is None else self.auth.kind

    @property
    def names_model_in_url(self) -> bool:
        """Whether it is Bedrock's `invoke` or Vertex's `rawPredict`, by which Anthropic's models are called there.

        Bedrock has Anthropic's own API too, below a path.
        """
        own_api = bool(urlsplit(self.base_url).path)
        return self.kind == "anthropic" and (self.auth_kind == "google" or (self.auth_kind == "aws" and not own_api))

    @property
    def lacks_url(self) -> bool:
        """Whether the backend is called over HTTP but has no URL yet."""
        return self.kind != "scripted" and not self.base_url

    @property
    def wants_local_model(self) -> bool:
        """Whether `tierline up` starts the local model for the backend: its URL is a variable that only `up` sets.

        A `base_url` that is left out, or is `""`, is a backend without a URL, to `up` as to `serve`.
        """
        unset = f"{LOCAL_URL} is not set"
        return self.kind == "openai" and self.lacks_url and self.unconfigured_reason == unset

    @property
    def configured(self) -> bool:
        """Whether requests can be sent to the backend."""
        return self.unconfigured_reason is None and not self.lacks_url


class ServiceConfig(Keyed):
    """A server for what is not a chat, such as embeddings or audio."""

    base_url: BaseUrl = ""
    """URL up to and including `/v1`, without a slash at the end; if empty, the service is unconfigured."""
    kind: Literal["openai", "anthropic"] = "openai"
    """Whose API it speaks: `anthropic` is sent the key as `x-api-key`, and the client's version and betas."""
    models: Mapping[str, str] = {}
    """Models by the names under which clients ask for them in JSON; other names are passed on as they are."""
    prices: Mapping[str, Dollars] = {}
    """US dollars per million tokens embedded, by model. A model without a price has an unknown cost."""
    request_price: Dollars | None = None
    """US dollars of each request that is passed on and makes something (POST); None if nobody states it."""
    share_files: bool = False
    """Whether tenants may use files and batches, which all of them would share: the account at the service is one."""
    max_in_flight: Count = 64
    """Most concurrent calls per worker."""
    max_request: Size = 512 << 20
    """Largest request body that is passed on. Bodies of embeddings are limited by `limits.body`."""
    max_reply: Size = 512 << 20
    """Largest reply that is passed on."""
    connect_timeout: Seconds = 2.0
    idle_timeout: Positive = 120.0
    """Longest silence, before the reply and within it."""

    @model_validator(mode="after")
    def _is_not_signed(self) -> Self:
        if self.auth is not None and self.auth.kind == "aws":
            raise ValueError("services are sent bodies in parts, and AWS signs whole ones; call it as a backend")
        return self


class TierConfig(Section):
    """One tier: interchangeable backends."""

    name: Name
    select: Literal["power_of_two", "weighted", "sticky"] = "power_of_two"
    """How a backend is chosen. `power_of_two`: the faster of two random ones, by current latency. `weighted`: at random
    by `weight`. `sticky`: the one that served this conversation before and has its prompt cached, unless another is
    faster by more than that cache saves."""
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
        """Whether at least one backend is configured."""
        return any(backend.configured for backend in self.backends)

    @property
    def unconfigured_reason(self) -> str | None:
        """Why no backend of this tier can be used; None if at least one can."""
        if self.configured:
            return None
        return "; ".join(dict.fromkeys(backend.unconfigured_reason or "no base_url" for backend in self.backends))


class StoreConfig(Section):
    """Redis-protocol store. Without a URL, `tierline up` starts a store and `tierline serve` runs without one."""

    url: Annotated[OptionalText, _check(check_store_url)] = Field(default=None, repr=False)
    """A redis://, rediss:// or unix:// URL; may hold a password, so it is not printed."""
    memory: Size = 256 << 20
    """Memory of the store that `tierline up` starts, in bytes. Tenants' quotas are cut down to their part of it."""
    index: Choice = "auto"
    """Index of the semantic cache. `auto`: the best that the server supports. Otherwise this one only: the server's
    `vector_sets` (Redis 8), or a `replica` in each worker (any server)."""


class EmbeddingConfig(Section):
    """Encoder that embeds requests, and the folder (`state`) for files that it generates."""

    kind: Literal["static", "minilm"] = "static"
    state: Path = Path(".state")


class PoliciesConfig(Section):
    """Where policies come from."""

    source: Literal["files", "store"] = "files"
    """`files`: the folder of policies, whose changes come into force as they are saved. `store`: the registry in the
    store, which `tierline policy apply` changes for all replicas; the files seed it when it is empty, and no more."""


class PricesConfig(Section):
    """What models cost, beside what each backend's `price` says."""

    file: OptionalPath = None
    """A file of facts about models that comes before the one that ships with Tierline."""
    unknown: Literal["warn", "refuse"] = "warn"
    """Whether the gateway starts with a backend whose price nobody states."""


class TelemetryConfig(Section):
    """Recording of requests: with which texts, of which share their hops, and how many of the latest to keep."""

    prompts: bool | tuple[Name, ...] = False
    """Whether the texts of prompts, answers and comments are recorded: of all surfaces, of none, or of these."""
    sample: Share = 1.0
    """Share of requests whose hops are recorded and exported, besides those that always are."""
    redact: tuple[str, ...] = ()
    """Regular expressions whose matches are removed from recorded texts."""
    redact_with: Annotated[str | None, _check(hook_of)] = None
    """`module:function` that takes a text and returns what may be kept of it."""
    keep: Annotated[Whole, Field(ge=0)] = 10_000

    @field_validator("redact")
    @classmethod
    def _patterns_compile(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        findings: list[Finding] = []
        for i, pattern in enumerate(patterns):
            try:
                re.compile(pattern)
            except re.error as error:
                findings.append(Finding((i,), f"{pattern!r} is not a regular expression: {error}"))
        raise_findings(findings)
        return patterns

    def captures(self, surface: str) -> bool:
        """Return whether the texts of this surface's requests are recorded."""
        return self.prompts if isinstance(self.prompts, bool) else surface in self.prompts


class LogConfig(Section):
    """Log on stderr. `requests` adds a line for each finished request, at any level."""

    format: Literal["text", "json"] = "text"
    requests: bool = False
    level: Literal["info", "warning", "error"] = "warning"


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


class TenantConfig(OwnerTerms):
    """One tenant. Its keys come from environment variables and files (one key per line), never from the config."""

    team: Name | None = None
    """The tenants of one team share cached answers on surfaces whose policy says `cache: {scope: team}`."""
    key_env: tuple[str, ...] = ()
    """Names of environment variables that hold one key each."""
    key_file: tuple[Path, ...] = ()
    """Files that hold keys, one per line."""
    key_digests: Annotated[tuple[bytes, ...], Field(repr=False)] = ()
    """The SHA-256 of each key, 32 bytes; set by the loader, which keeps no key itself."""
    may_try: bool = False
    """Whether its requests may choose the policy version that answers them (`x-tierline-try`)."""

    @field_validator("key_env", "key_file", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str | Path) else value


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


class CacheConfig(Section):
    """Cache quota of each tenant on each surface; beyond it, the tenant's own oldest answers are removed."""

    entries: Count = 20_000
    """Most entries."""
    bytes: Size = 32 << 20
    """Most bytes of all entries."""
    largest: Size = 1 << 20
    """Largest answer that is stored."""


class ResponsesConfig(Section):
    """Quota of each tenant's kept responses; beyond it, those that would end first are removed."""

    entries: Count = 20_000
    """Most responses."""
    bytes: Size = 256 << 20
    """Most bytes of all of them, with what they were given."""
    background: Count = 32
    """Most that run in the background at once, of each tenant in each worker."""


class Admin(Section):
    """Address and key of the admin API, both separate from the gateway's; with `roles`, people's tokens do too."""

    key_env: Words | None = None
    host: str = "127.0.0.1"
    port: Annotated[Whole, Field(ge=1, le=65535)] = 8788
    key: SecretStr | None = None
    """The key itself, set by the loader."""

    @property
    def url(self) -> str:
        """The address for a client on this machine, without a path."""
        host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"


class Deployment(Section):
    """The config of one deployment. Without `tenants` there is one, `default`, and no key is required.

    A loaded one has the sections of the installed parts too (`gateway.config.sections`).
    """

    host: str = "127.0.0.1"
    port: Port = 8787
    default_surface: str = "chat"
    tiers: Annotated[tuple[TierConfig, ...], Field(min_length=1)]
    """The tiers, cheapest first."""
    services: Mapping[Name, ServiceConfig] = {}
    """Servers for what is not a chat, which policies name under `endpoints`."""
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
    scorer: Words = "none"
    """Scorer of answers without log-probabilities, which a policy's `escalate.verify` asks: the path of a file that
    `tierline fit train scorer` wrote, or `none`."""
    answer_scorer: InstanceOf[AnswerScorer] | None = None
    """The scorer that `scorer` names, read by the loader."""
    prices: PricesConfig = PricesConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    log: LogConfig = LogConfig()
    limits: Limits = Limits()
    cache: CacheConfig = CacheConfig()
    responses: ResponsesConfig = ResponsesConfig()
    tenants: Mapping[Name, TenantConfig] = {}
    teams: Mapping[Name, OwnerTerms] = {}
    keys: KeysConfig = KeysConfig()
    alerts: AlertsConfig = AlertsConfig()
    identity: IdentityConfig = IdentityConfig()
    roles: tuple[RoleConfig, ...] = ()
    """Who may do what in the console and over the admin API, by claims."""
    admin: Admin | None = None
    """Where the admin API listens; None without one."""
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

    @model_validator(mode="after")
    def _ports_differ(self) -> Deployment:
        if self.admin is not None and self.admin.port == self.port:
            raise ValueError("admin.port is the gateway's own port; give it another")
        return self

    @model_validator(mode="after")
    def _people_have_issuers(self) -> Deployment:
        findings = []
        for i, role in enumerate(self.roles):
            if not self.identity.issuers or (role.issuer is not None and self.identity.find(role.issuer) is None):
                findings.append(Finding(("roles", i), "its claims come from no issuer; list it in identity.issuers"))
        if len(self.identity.issuers) > 1:
            message = "any of several issuers could say so of its people; name the one that may as `issuer`"
            findings += [Finding(("roles", n), message) for n, role in enumerate(self.roles) if role.issuer is None]
        if self.admin is not None and self.admin.key_env is None and not self.roles:
            findings.append(Finding(("admin",), "nobody could use it; name a key with key_env, or give people `roles`"))
        raise_findings(findings)
        return self

    def of(self, kind: type[S]) -> S:
        """Return the config as one that has a part's sections; a config that was loaded has those of every part."""
        if not isinstance(self, kind):
            raise TypeError(f"this config has no {kind.__name__}")
        return self

    @property
    def team_of(self) -> dict[str, str]:
        """Team by tenant name; tenants without a team are left out."""
        return {name: tenant.team for name, tenant in self.tenants.items() if tenant.team is not None}

    @property
    def teamless(self) -> tuple[str, ...]:
        """Names of the tenants without a team."""
        return tuple(name for name, tenant in self.tenants.items() if tenant.team is None)

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
        return tuple(dict.fromkeys(backend.model for backend in self.backends if backend.kind == "scripted"))

    @property
    def unshared(self) -> frozenset[str]:
        """The tenant that may see the files and the prompt caches at the backends' accounts; empty where several share.

        Keys of the store may be of other tenants, which the config does not name, and which see nothing of it.
        """
        several = len(self.tenants) > 1 or self.keys.required or bool(self.identity.issuers)
        return frozenset() if several else frozenset(self.tenants or (DEFAULT_TENANT,))

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Hosts and ports that the gateway listens at: its own, and the admin API's if there is one."""
        return ((self.host, self.port), *([(self.admin.host, self.admin.port)] if self.admin else []))

    @property
    def keyless(self) -> bool:
        """Whether requests need no key, because there are no tenants and `keys.required` is not set."""
        return not self.tenants and not self.keys.required

    @property
    def wants_local_model(self) -> bool:
        """Whether a backend has no URL, so that `tierline up` starts the local model for it."""
        return any(backend.wants_local_model for backend in self.backends)
