"""List the parts: folders beside this file that can be deleted, and what does not work without them.

Each comes with `tierline`, or is a distribution of its own, made from `packages/` by hatch_build.py.
Plain data, read without importing a part. The core imports none (a contract in pyproject.toml), and serves without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, wraps
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_PARTS: Final = Path(__file__).parent
_PACKAGE: Final = __name__.rpartition(".")[0]
"""The package of the folders: in the wheel it has another name than in the tree."""
OUTSIDE: Final = "tierline.parts"
"""The group of entry points by which parts of other makers are found."""


class StandardPart(NamedTuple):
    """Describe a part.

    `title` heads its commands in `--help`. `commands` are its own, modules of its folder `commands`; `needed_by` are
    those of other parts that do not run without it. `sections` are those of the config that only it reads, which its
    module `config` defines; `policy_sections` those of policies that its module `policy` defines; `settings` other keys
    of policies, or words of a list there. `provides` are the seams of `gateway.seams` that its module `part` has the
    functions of. `variables` are what the names of environment variables begin with that only it reads. `kinds` are the
    kinds of backend that it has, each with a module `kind` in a folder of its own below `kinds`. `paths` are words
    below `/v1`, or whole paths: it alone answers these, and all below those words. `requires` are parts without which
    it counts as not installed. `distribution` is what pip installs.
    """

    name: str
    title: str
    commands: tuple[str, ...]
    needed_by: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()
    distribution: str = "tierline"
    settings: tuple[str, ...] = ()
    policy_sections: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The folder with all that belongs to it; its help.toml has what `--help` says of its commands."""
        return _PARTS / self.name

    @property
    def installed(self) -> bool:
        """Whether this installation has its folder, and what it requires; a part that is broken is installed."""
        return _is_installed(self)


@cache
def _is_installed(part: StandardPart) -> bool:
    required = [other for other in PARTS if other.name in part.requires]
    return (part.folder / "__init__.py").is_file() and all(other.installed for other in required)


PARTS: Final = (
    StandardPart(
        "local",
        "on this machine",
        ("up", "init", "demo", "completion"),
        ("fit collect",),
        ("local_model",),
        kinds=("scripted",),
        requires=("logs",),
    ),
    StandardPart("trace", "requests, one by one", ("trace",), requires=("measures", "records")),
    StandardPart(
        "ledger",
        "records and money",
        ("ledger", "usage", "policy judge"),
        ("console", "top", "mcp", "fit learn", "policy replay", "policy plan"),
        ("ledger",),
        "tierline-ledger",
        provides=("archive",),
        requires=("measures", "recorder", "trace"),
    ),
    StandardPart(
        "access",
        "keys, limits and money",
        ("keys", "teams", "budgets", "audit"),
        sections=("tenants", "teams", "keys", "alerts", "identity", "roles", "admin"),
        policy_sections=("spending",),
        provides=("authenticator", "limits", "admin_port", "audit", "pages"),
        requires=("records", "routes"),
    ),
    StandardPart("prices", "keys, limits and money", ("prices",), ("init",), ("prices",), provides=("price",)),
    StandardPart(
        "lab",
        "policies before they are in force",
        ("policy test", "policy explain", "policy replay", "policy plan"),
        ("console", "mcp"),
        distribution="tierline-lab",
        provides=("policy_lab",),
        requires=("lint", "measures", "recorder"),
    ),
    StandardPart(
        "fit",
        "fitting to your traffic",
        ("fit", "fit collect", "fit train", "fit learn", "fit calibrate", "fit eval"),
        distribution="tierline-fit",
        requires=("lint", "measures", "reasons", "heads"),
    ),
    StandardPart(
        "console",
        "watching",
        ("console", "top", "mcp"),
        ("demo",),
        ("console",),
        "tierline-console",
        provides=("console",),
        requires=("lint", "measures", "recorder", "access", "cache_admin", "reasons"),
    ),
    StandardPart(
        "cache_admin",
        "cached answers",
        ("cache",),
        provides=("admin_routers", "cache_admin", "tasks"),
    ),
    StandardPart("logs", "the log", (), sections=("log",), provides=("logs",)),
    StandardPart("readiness", "what is degraded", (), provides=("readiness",)),
    StandardPart(
        "metrics", "metrics for Prometheus", (), provides=("metrics",), paths=("/metrics",), requires=("measures",)
    ),
    StandardPart("vector_sets", "an index in the store", (), provides=("index",)),
    StandardPart("otlp", "spans and metrics over OTLP", (), provides=("otlp",), variables=("OTEL_EXPORTER_OTLP_",)),
    StandardPart(
        "hit_audits",
        "audits of hits",
        (),
        settings=("cache.semantic.audit", "cache.semantic.audit_judge", "cache.semantic.max_error"),
        provides=("hit_bound",),
        requires=("measures",),
    ),
    StandardPart("encoders", "encoders and languages", (), provides=("encoders",)),
    StandardPart(
        "apis",
        "other APIs",
        (),
        provides=("client_api", "client_errors"),
        kinds=("responses", "anthropic", "decisions"),
        sections=("responses",),
        requires=("routes", "servers"),
        paths=("completions", "conversations", "messages", "responses"),
    ),
    StandardPart(
        "services",
        "embeddings and what is passed on",
        (),
        provides=("client_api",),
        requires=("apis",),
        sections=("services",),
        policy_sections=("endpoints",),
        paths=("audio", "batches", "embeddings", "files", "images", "moderations", "uploads"),
    ),
    StandardPart(
        "agents",
        "agents and conversations",
        (),
        ("fit collect", "fit train"),
        ("scorer",),
        settings=("escalate.agreement", "escalate.judge", "escalate.stream.on_break", "route.weigh_switching"),
        policy_sections=("input", "session"),
        provides=("admission", "conversations", "call_memory", "verifier", "successor"),
        requires=("measures", "heads"),
    ),
    StandardPart("key_files", "keys in files", (), provides=("tasks",)),
    StandardPart(
        "fleet",
        "clouds and replicas",
        (),
        ("console", "top", "mcp", "demo"),
        provides=("identities", "http", "flights", "tasks", "several_servers"),
    ),
    StandardPart(
        "rollout",
        "policies over time",
        (
            "policy diff",
            "policy apply",
            "policy status",
            "policy history",
            "policy show",
            "policy blame",
            "policy promote",
            "policy pause",
            "policy resume",
            "policy rollback",
            "policy remove",
        ),
        ("policy explain", "policy judge", "policy plan", "fit calibrate", "console", "mcp"),
        policy_sections=("rollout", "learn"),
        provides=("policies", "observers", "admin_routers", "pages"),
        requires=("lint", "measures", "recorder", "access"),
    ),
    StandardPart(
        "measures", "figures of quality", (), provides=("public_routers", "feedback", "figures"), paths=("feedback",)
    ),
    StandardPart("reload", "policy files that change", (), provides=("reload",)),
    StandardPart("records", "records in the store", (), provides=("records",)),
    StandardPart("routes", "models and cold routes", (), provides=("routes",), paths=("models", "feedback")),
    StandardPart(
        "openapi",
        "documents of the API",
        (),
        provides=("openapi",),
        paths=("/openapi.json", "/docs", "/docs.css"),
        requires=("routes",),
    ),
    StandardPart(
        "answer_schemas",
        "answers against their schemas",
        (),
        provides=("answer_schemas",),
        settings=("escalate.when.invalid.json_schema",),
    ),
    StandardPart(
        "early_heads",
        "heads of slow streams",
        (),
        provides=("early_heads",),
        settings=("escalate.stream.alive",),
    ),
    StandardPart("adaptive", "limits that follow latency", (), provides=("adaptive",)),
    StandardPart("heads", "how likely an answer is right", (), provides=("heads",)),
    StandardPart("reasons", "why each hop ended as it did", (), provides=("reasons",)),
    StandardPart("redaction", "what must not be recorded", (), provides=("redaction",)),
    StandardPart("workers", "several processes", (), provides=("workers",)),
    StandardPart("recorder", "recorded decisions", (), provides=("recorder",)),
    StandardPart(
        "servers", "what servers want or say otherwise", (), settings=("prompt_cache",), provides=("servers", "tasks")
    ),
    StandardPart(
        "lint", "mistakes in policies", ("check", "policy lint", "policy schema"), ("init",), provides=("reading",)
    ),
)


RENAMED: Final = {word: f"fit {word}" for word in ("collect", "train", "learn", "calibrate", "eval")}
"""Commands of the release before by their old names: those work for this release, and tell the new ones."""


def module_of_command(command: str) -> str | None:
    """Return the module of a part's command, such as `usage` or `policy test`; None for one of no part."""
    for part in PARTS:
        if command in part.commands:
            return f"{_PACKAGE}.{part.name}.commands.{command.replace(' ', '_')}"
    return None


def part_missing_for(command: str) -> StandardPart | None:
    """Return a part that a command, such as `usage` or `policy test`, needs and this installation lacks; first its own.

    The distribution of its own brings the others.
    """
    missing = [part for part in PARTS if command in part.commands + part.needed_by and not part.installed]
    return max(missing, key=lambda part: command in part.commands, default=None)


def part_missing_of(module: str) -> StandardPart | None:
    """Return the part that a module which was not found belongs to; None if this installation has that part."""
    name = module.partition(f"{_PACKAGE}.")[2].partition(".")[0]
    return next((part for part in PARTS if part.name == name and not part.installed), None)


def part_missing_for_section(section: str) -> StandardPart | None:
    """Return the part that alone reads a section of the config, if this installation lacks it."""
    return next((part for part in PARTS if section in part.sections and not part.installed), None)


def part_missing_for_path(path: str) -> StandardPart | None:
    """Return the part that alone answers a path of the public port, if this installation lacks it."""
    _, version, *below = path.split("/")
    known = {path, *below[:1]} if version == "v1" else {path}
    return next((part for part in PARTS if not part.installed and known.intersection(part.paths)), None)


def settings_of_missing_parts() -> Iterator[tuple[str, StandardPart]]:
    """Yield each key of policies, as `cache.ttl`, that only a part reads which is not installed; and that part."""
    yield from ((setting, part) for part in PARTS if not part.installed for setting in part.settings)


_FUNCTIONS: Final[dict[str, list[str]]] = {}
"""The names of the functions of each seam that is declared with `every`."""


class BrokenPart(Exception):
    """A part of another maker cannot be loaded; the message is one line that says which, and why."""


@cache
def outside_parts() -> tuple[ModuleType, ...]:
    """Import and return the parts of other makers: modules that distributions list as entry points of OUTSIDE.

    Each says by `PROVIDES` which seams it has the functions of, of those that any number of parts provide; one with
    `SECTIONS` adds to the config. Raises BrokenPart.
    """
    from importlib.metadata import entry_points

    modules: list[ModuleType] = []
    for entry in entry_points(group=OUTSIDE):
        cause: Exception | None = None
        try:
            modules.append(module := entry.load())
            reason = _wrong_with(module)
        except Exception as error:  # noqa: BLE001  the code of others
            reason, cause = f"{type(error).__name__}: {error}".splitlines()[0], error
        if reason:
            where = entry.value if entry.dist is None else f"{entry.value} of {entry.dist.name}"
            raise BrokenPart(f"the part {entry.name} ({where}) cannot be loaded: {reason}") from cause
    return tuple(modules)


def _wrong_with(module: ModuleType) -> str:
    """Return what is wrong with the seams that a part of another maker says it provides; '' if nothing is."""
    from policies.errors import did_you_mean  # hatch_build.py runs this file alone

    import_module(f"{_PACKAGE.rpartition('.')[0]}.seams")  # declares them
    if not isinstance(provides := getattr(module, "PROVIDES", None), tuple):
        return "it has no PROVIDES, a tuple of seams"
    for seam in provides:
        if seam not in _FUNCTIONS and any(seam in part.provides for part in PARTS):
            return f"it provides {seam!r}: only Tierline's own parts provide it"
        if seam not in _FUNCTIONS:
            return f"it provides {seam!r}, which is no seam{did_you_mean(str(seam), _FUNCTIONS)}"
        if lacking := [name for name in _FUNCTIONS[seam] if not callable(getattr(module, name, None))]:
            return f"it provides {seam!r} and has no function {lacking[0]!r}"
    return ""


@cache
def provider(seam: str) -> ModuleType | None:
    """Return the module that has the functions of a seam; None if this installation lacks the part it belongs to."""
    part = next((part for part in PARTS if seam in part.provides and part.installed), None)
    return None if part is None else import_module(f"{_PACKAGE}.{part.name}.part")


def providers(seam: str) -> list[ModuleType]:
    """Return the modules that have the functions of a seam which several parts may provide, in their order.

    Those of other makers come last. Raises BrokenPart.
    """
    installed = [part.name for part in PARTS if seam in part.provides and part.installed]
    ours = [import_module(f"{_PACKAGE}.{name}.part") for name in installed]
    return [*ours, *(module for module in outside_parts() if seam in module.PROVIDES)]


def one(seam: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare a function of a seam that one part provides; without the part, what is declared runs itself."""

    def declare(without: Callable[P, R]) -> Callable[P, R]:
        @wraps(without)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            part = provider(seam)
            function: Callable[P, R] = without if part is None else getattr(part, without.__name__)
            return function(*args, **kwargs)

        return call

    return declare


def every(seam: str) -> Callable[[Callable[P, R]], Callable[P, list[R]]]:
    """Declare a function of a seam that any number of parts provide: a call returns what each returns."""

    def declare(declared: Callable[P, R]) -> Callable[P, list[R]]:
        _FUNCTIONS.setdefault(seam, []).append(declared.__name__)

        @wraps(declared)
        def call(*args: P.args, **kwargs: P.kwargs) -> list[R]:
            return [getattr(part, declared.__name__)(*args, **kwargs) for part in providers(seam)]

        return call

    return declare


def config_modules() -> Iterator[ModuleType]:
    """Import and yield the module `config` of each installed part that has sections of the config.

    Of the parts of other makers it is the part itself. Raises BrokenPart.
    """
    yield from (import_module(f"{_PACKAGE}.{part.name}.config") for part in PARTS if part.installed and part.sections)
    yield from (module for module in outside_parts() if hasattr(module, "SECTIONS"))


def variables_of_missing_parts(environ: Iterable[str]) -> Iterator[tuple[str, StandardPart]]:
    """Yield each of these environment variables that only a part reads which is not installed; and that part."""
    for part in PARTS:
        if not part.installed and part.variables:
            yield from ((name, part) for name in environ if name.startswith(part.variables))


@cache
def policy_sections() -> tuple[type, ...]:
    """Return `SECTIONS` of the module `policy` of each installed part that has sections of policies."""
    names = [part.name for part in PARTS if part.installed and part.policy_sections]
    return tuple(import_module(f"{_PACKAGE}.{name}.policy").SECTIONS for name in names)


def lacking_policy_sections() -> dict[str, str]:
    """Return what to tell whoever writes a section of policies whose part is not installed, by its name."""
    lacking = ((name, part) for part in PARTS if not part.installed for name in part.policy_sections)
    return {name: absent(f"the section {name}", part) for name, part in lacking}


def is_provided(seam: str) -> bool:
    """Return whether this installation has the part that provides a seam."""
    return not missing_for(seam, "")


def missing_for(seam: str, what: str) -> str:
    """Return what to tell whoever uses something of the part that provides a seam; '' where it is installed."""
    part = next(part for part in PARTS if seam in part.provides)
    return "" if part.installed else absent(what, part)


def kinds_of_backends() -> tuple[str, ...]:
    """Return the kinds of backend of all parts, of those too that are not installed."""
    return tuple(kind for part in PARTS for kind in part.kinds)


def part_of_kind(kind: str) -> StandardPart:
    """Return the part that has a kind of backend."""
    return next(part for part in PARTS if kind in part.kinds)


def module_of_kind(kind: str) -> ModuleType | None:
    """Return the module of a kind of backend; None if this installation lacks the part that has it."""
    part = part_of_kind(kind)
    return import_module(f"{_PACKAGE}.{part.name}.kinds.{kind}.kind") if part.installed else None


def absent(what: str, part: StandardPart) -> str:
    """Return what to tell whoever uses something of a part that this installation lacks."""
    lacking = next((other for other in PARTS if other.name in part.requires and not other.installed), part)
    return f"{what} needs the part {lacking.name}, which is not installed: pip install {lacking.distribution}"
