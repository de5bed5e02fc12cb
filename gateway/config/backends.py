"""Define the config of tiers and backends: what every kind of backend has, and the kind `openai`, chat completions.

Another kind is a class below `BackendConfig`, in the folder `kinds/NAME` of a part; see `gateway.seams`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self, cast
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    InstanceOf,
    ModelWrapValidatorHandler,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticKnownError

from gateway.backends.server_forms import PromptCacheFacts, chat_forms, prompt_cache_facts
from gateway.chat.usage import Price, price_class
from gateway.config.addresses import is_loopback
from gateway.config.notations import (
    BaseUrl,
    Count,
    Name,
    OptionalCount,
    OptionalPath,
    OptionalText,
    Positive,
    Size,
    Words,
)
from gateway.dialects.reasoning import Maker, maker_of
from gateway.parts.standard import absent, kinds_of_backends, missing_for, module_of_kind, one, part_of_kind
from policies.errors import Finding
from policies.fields import SetFields
from policies.validation import Seconds, Section, Whole, raise_findings
from routing.confidence.judge import ScoringHead
from routing.features import SERVICE_TIERS, Capability, ServiceTier
from routing.load.latency import Prior

if TYPE_CHECKING:
    from gateway.backends.base import Backend, Identity, MakeTransport, Transport
    from gateway.backends.http_backend import Common
    from gateway.backends.server_forms import CallMemory

LOCAL_URL: Final = "TIERLINE_LOCAL_BASE_URL"
"""Environment variable with the URL of the model that `tierline up` starts, which sets it."""
_OPENAIS: Final = (".openai.com", ".openai.azure.com")
"""Ends of the hosts of OpenAI's own API, which refuses fields that it does not know, and knows tools that take text."""
ANTHROPICS: Final = ("thinking", "output_config")
"""Fields of Anthropic's API that OpenAI's own refuse."""
USAGE_OPTION: Final = "stream_options"
"""Field that asks for a stream's usage; where it is omitted, the usage comes unasked."""

TELL_BEFORE: Final = timedelta(days=90)
"""How long before a model is switched off that is told."""
_MAKERS_ALONE: Final = re.compile(
    r"(?:.*[/.])?(?:gpt-[3-9]|chatgpt-|o[1-9](?![\w.])|text-embedding-(?:3|ada)|claude-|gemini-(?!gemma)|grok-[3-9]|grok-code"
    r"|(?:mistral|codestral|devstral|magistral|ministral|pixtral|voxtral)-(?:[\w-]*-)?latest$|mistral-(?:medium|large)-"
    r"|deepseek-(?:chat|reasoner)$)"
)


PROXIED: Final = "a hosted model behind an address of this machine, so a proxy's"
"""Why a backend on this machine is not taken to be free."""


def is_hosted_alone(model: str) -> bool:
    """Return whether a model is served by its maker and its maker's partners alone, by its name, prefixes left out.

    A server on one's own machine that offers one is a proxy, and somebody pays for its calls.
    """
    return _MAKERS_ALONE.match(model.lower()) is not None


def retirement(retires: date | None, within: timedelta = TELL_BEFORE) -> str:
    """Return what there is to tell of a model that is switched off on that day; '' while it is further off."""
    today = datetime.now(UTC).date()
    if retires is None or retires - today > within:
        return ""
    days = (retires - today).days
    if days < 0:
        return f"has been switched off since {retires}"
    return f"is switched off on {retires}, {f'in {days} days' if days > 1 else 'tomorrow' if days else 'today'}"


def _fit_for_a_header(value: str) -> str:
    """Return the model's name if it can be sent in a header: every reply names its model. Raises ValueError."""
    if not value.isprintable():
        raise ValueError("holds line breaks or other control characters")
    return value


_OWN_KIND: Final = "openai"


def _known_kind(value: Any) -> Any:
    """Return the name of a kind of backend. Raises PydanticKnownError for another value."""
    *names, last = (f"'{name}'" for name in (_OWN_KIND, *kinds_of_backends()))
    if value == _OWN_KIND or value in kinds_of_backends():
        return value
    raise PydanticKnownError("literal_error", {"expected": f"{', '.join(names)} or {last}"})


def _kind(name: str) -> type[BackendConfig] | None:
    """Return the class of a kind of a part; None if this installation lacks the part."""
    module = module_of_kind(name)
    return None if module is None else cast("type[BackendConfig]", module.KIND)


def _of_part(base: type[Section], seam: str, key: str) -> BeforeValidator:
    """Return what reads a key as the class of a part. Raises PydanticCustomError without the part."""

    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        if (model := base.model_of(value)) is base:
            raise_findings([Finding((), missing_for(seam, key))])
        return model.model_validate(value)

    return BeforeValidator(read)


def _price(value: Any) -> Any:
    """Return a price as the class that a part has. Raises PydanticCustomError for keys of it without the part."""
    if not isinstance(value, Mapping):
        return value
    if (model := price_class()) is Price:
        steps = [name for name in ("long", "service_tiers") if name in value]
        raise_findings(Finding((name,), missing_for("price", name)) for name in steps)
    return model.model_validate(value)


@one("http")
def http_config() -> type[Http]:
    """Return the class of the keys of a backend's `http`, which makes the transport that calls it."""
    return Http


@one("identities")
def auth_config() -> type[Auth]:
    """Return the class of the keys of `auth`, which makes the `gateway.backends.base.Identity` that signs requests."""
    return Auth


class Http(Section):
    """The HTTP client that calls a backend: the core's own, which has no keys. A part that provides `http` has more."""

    @classmethod
    def model_of(cls, value: Any) -> type[Section]:
        """See `Section.model_of`; this class itself where no part has another."""
        return http_config()

    def transport(self, url: str, *, max_in_flight: int, connect_timeout_s: float, max_reply: int) -> Transport:
        """Return a transport to a URL."""
        from gateway.backends.http1_transport import Http1Transport

        return Http1Transport(
            url, max_in_flight=max_in_flight, connect_timeout_s=connect_timeout_s, max_reply=max_reply
        )


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


class Auth(Section):
    """An identity in place of a key. The part that provides `identities` has the kinds of it, and their keys."""

    kind: str

    @classmethod
    def model_of(cls, value: Any) -> type[Section]:
        """See `Section.model_of`; this class itself where no part has kinds of it."""
        return auth_config()

    @property
    def provider(self) -> str:
        """The cloud whose backends this identity signs requests for, as OpenTelemetry's conventions name it."""
        raise NotImplementedError

    @property
    def signs_bodies(self) -> bool:
        """Whether requests are signed with their whole bodies."""
        raise NotImplementedError

    def lacks(self) -> str:
        """Return the package that has to be installed for this identity, in words; '' if none."""
        raise NotImplementedError

    def identity(self) -> Identity:
        """Return a new identity, not started."""
        raise NotImplementedError


class Keyed(Section):
    """A backend or service that is called with an API key; the loader sets `key` and `unconfigured_reason`."""

    base_url: BaseUrl = ""
    """URL up to what every path begins with, without a slash at the end; if empty, the server is unconfigured."""
    auth: Annotated[Auth | None, _of_part(Auth, "identities", "auth")] = None
    """An identity, in place of a key."""
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

    def new_identity(self) -> Identity | None:
        """Return a new identity to call it with; None where there is none, as with a key."""
        return None if self.auth is None else self.auth.identity()


class BackendConfig(Keyed, SetFields):
    """One model endpoint. The loader sets `head`, `prior`, `provider`, `retires` and `price_source` too.

    What it sets in requests counts after what a policy sets.
    """

    name: Annotated[str, Field(pattern=r"^(?:[a-z0-9][a-z0-9_.-]{0,63})?$")] = ""
    """`TIER` or `TIER-N` when not given."""
    kind: Annotated[str, BeforeValidator(_known_kind)] = _OWN_KIND
    """How it is called: `openai` over HTTP, by chat completions; others as their part says."""
    base_url: BaseUrl = ""
    """URL up to and including `/v1`, without a slash at the end; if empty, the backend is unconfigured."""
    model: Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_fit_for_a_header)]
    price: Annotated[Price | None, BeforeValidator(_price)] = None
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
    """Whether the backend returns token log-probabilities. If not, confidence needs a policy's `agreement`."""
    confidence_head: Words = "default"
    """`default` for the shipped head for this model, if any; `none`; or the path of another head."""
    rename: Mapping[str, str] = {}
    """Request fields that the backend takes under another name, such as `{max_tokens: max_completion_tokens}`."""
    omit: tuple[str, ...] = ()
    """Request fields that the backend refuses or ignores. They are left out, and named in x-tierline-dropped. Those in
    `messages.NAME` are members of messages. A field that an answer would be wrong without is a capability it lacks."""
    roles: Literal["any", "one_system"] | None = None
    """Whether messages may have the roles `developer` and `system` anywhere, or there is one system message, at the
    beginning, as most chat templates have it. None if nobody knows: then there is one."""
    prompt_lifetime: Positive | None = None
    """How long it keeps a prompt in its cache after the last use. None if that is not known: then nothing is said of
    how warm a conversation is there (`route.weigh_switching`)."""
    watch_drafts: bool = False
    """Whether answers to non-streamed requests that will be judged are read as streams, to cancel poor ones early."""
    http: Annotated[Http, _of_part(Http, "http", "http")] = Http()
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

    dialect: ClassVar[str] = "chat"
    """Dialect of the bodies that it is sent, as `gateway.dialects.native.Native` names it."""
    has_not: ClassVar[frozenset[str]] = frozenset({"hosted_tools"})
    """Capabilities that it cannot have: requests to it have no way to ask for them."""
    own_names: ClassVar[Mapping[str, str]] = {}
    """What routing calls capabilities of it that only clients of its dialect can ask for."""
    own_fields: ClassVar[Mapping[str, str]] = {}
    """Keys that only this kind has, and what to say of one in a backend of another."""
    in_process: ClassVar[bool] = False
    """Whether it answers in this process, from the config: nobody is called, and no model is behind it."""
    judges_alone: ClassVar[bool] = False
    """Whether it judges drafts, and answers no request."""
    tells_cache_writes: ClassVar[bool] = False
    """Whether its counts of tokens always say what was written to its prompt cache."""

    @property
    def has(self) -> frozenset[str]:
        """Capabilities that the config need not list, since the backend's API has the field."""
        return frozenset({"n", "prompt_cache_key", *(() if self.is_here else ("store",))})

    @classmethod
    def known(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return values of keys that were left out: a model on this machine is free, and has one service tier."""
        url = data.get("base_url")
        if not isinstance(url, str) or not is_loopback(urlsplit(url).hostname or ""):
            return {}
        one_tier: dict[str, Any] = {"service_tiers": ()}
        return one_tier if is_hosted_alone(str(data.get("model"))) else {**one_tier, "price": {}}

    def findings(self) -> Iterator[Finding]:
        """Yield what the config asks of the backend that its kind cannot do."""
        asked = {"rename": self.rename, "omit": {*self.omit} - {USAGE_OPTION}, "roles": self.roles == "one_system"}
        asked["warm.keep"] = self.warm is not None and self.warm.keep
        for key in (key for key, value in asked.items() if value):
            if missing := missing_for("servers", key):
                yield Finding(tuple(key.split(".")), missing)
        for capability in sorted(self.capabilities & self.has_not):
            message = f"the API of kind: {self.kind} has no way to ask for {capability}; leave it out"
            yield Finding(("capabilities",), message)
        for field in self.omit if self.dialect != "chat" else ():
            if field.startswith("messages."):
                message = f"members of messages can be left out of chat completions only: {field}"
                yield Finding(("omit",), message)
        for how, fields in (("set", self.set), ("force", self.force)):
            for field in ANTHROPICS:
                if field in fields.keys() & self.not_settable:
                    message = f"{field} is a field of Anthropic's API, which this one refuses"
                    yield Finding((how, field), f"{message}; write reasoning_effort instead")

    def make(self, common: Common, transport: MakeTransport, calls: CallMemory | None) -> Backend:
        """Return what calls it. `transport` makes one to a path below its URL; `calls` keeps tool calls' reasoning."""
        from gateway.backends.openai import OpenAIBackend

        one_system, takes_text = self.roles != "any", self._is_openais
        forms = chat_forms(self.model, self.maker(), one_system=one_system, custom_tools=takes_text, calls=calls)
        stores, asks_usage = "store" in self.can, USAGE_OPTION not in self.omit
        url = transport("/chat/completions")
        return OpenAIBackend(url, stores=stores, asks_usage=asks_usage, forms=forms, **common)

    def with_fields(self, body: Mapping[str, Any], changes: Mapping[str, Any], instruction: str) -> dict[str, Any]:
        """Return the own body of a client of its dialect with fields, as chat completions name them, and a sentence."""
        raise NotImplementedError

    @cached_property
    def not_settable(self) -> frozenset[str]:
        """Fields that are not sent though a policy sets them: omitted ones, and Anthropic's at OpenAI's own APIs."""
        return frozenset((*self.omit, *(ANTHROPICS if self._is_openais else ())))

    @property
    def takes_file_urls(self) -> bool:
        """Whether it takes files by URL, if it takes any: OpenAI's chat completions take data or ids alone."""
        return not self._is_openais

    @property
    def _is_openais(self) -> bool:
        return f".{urlsplit(self.base_url).hostname}".endswith(_OPENAIS)

    @cached_property
    def prompt_cache(self) -> PromptCacheFacts | None:
        """How requests ask for its provider's prompt cache; None if they need not, or cannot."""
        return prompt_cache_facts(self.provider, self.model, self.omit)

    @property
    def gen_ai_provider(self) -> str:
        """The provider, as OpenTelemetry's conventions name it."""
        return self.kind if self.auth is None else self.auth.provider

    def maker(self) -> Maker:
        """Return the maker of the reasoning that the backend signs: the same for all with this URL, model and key."""
        return maker_of(f"{self.base_url}\0{self.model}", None if self.key is None else self.key.get_secret_value())

    @property
    def can(self) -> frozenset[str]:
        """Names of the capabilities that routing may ask of it: `routing.features.FURTHER`, and what fields imply."""
        can: set[str] = {*self.capabilities, *self.has}
        if "service_tier" not in self.omit:
            tiers = SERVICE_TIERS if self.service_tiers is None else self.service_tiers
            can.update(f"service_tier_{name}" for name in tiers)
        if not can.isdisjoint({"files", "hosted_tools"}) and self.takes_file_urls:
            can.add("file_urls")
        return frozenset(self.own_names.get(name, name) for name in can.difference(self.omit))

    @property
    def is_here(self) -> bool:
        """Whether it runs on this machine, where nobody limits its rate."""
        return self.in_process or is_loopback(urlsplit(self.base_url).hostname or "")

    @cached_property
    def sets_fields(self) -> bool:
        """Whether the config sets or forces fields of the requests that this backend is sent."""
        return bool(self.set or self.force)

    @property
    def lacks_url(self) -> bool:
        """Whether the backend is called over HTTP but has no URL yet."""
        return not (self.in_process or self.base_url)

    @property
    def wants_local_model(self) -> bool:
        """Whether `tierline up` starts the local model for the backend: its URL is a variable that only `up` sets.

        A `base_url` that is left out, or is `""`, is a backend without a URL, to `up` as to `serve`.
        """
        unset = f"{LOCAL_URL} is not set"
        return self.kind == _OWN_KIND and self.lacks_url and self.unconfigured_reason == unset

    @property
    def configured(self) -> bool:
        """Whether requests can be sent to the backend."""
        return self.unconfigured_reason is None and not self.lacks_url

    @model_validator(mode="before")
    @classmethod
    def _with_what_is_known(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        others = (kind for name in kinds_of_backends() if (kind := _kind(name)) is not None)
        if strange := data.keys() - cls.model_fields.keys():
            raise_findings(
                Finding((name,), kind.own_fields[name]) for kind in others for name in strange & kind.own_fields.keys()
            )
        return {**cls.known(data), **data}

    @model_validator(mode="after")
    def _does_what_its_kind_can(self) -> Self:
        raise_findings(self.findings())
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _of_its_kind(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> BackendConfig:
        """Return the data as the class of its kind. It stands last, so that no check of this class comes after it."""
        if cls is BackendConfig and isinstance(data, Mapping) and (name := data.get("kind")) in kinds_of_backends():
            if _kind(name) is None:
                raise_findings([Finding(("kind",), absent(f"kind: {name}", part_of_kind(name)))])
            return cls.model_of(data).model_validate(data)
        return handler(data)

    @classmethod
    def model_of(cls, value: Any) -> type[BackendConfig]:
        """See `Section.model_of`."""
        name = value.get("kind") if isinstance(value, Mapping) else None
        return (_kind(name) if name in kinds_of_backends() else None) or BackendConfig


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
