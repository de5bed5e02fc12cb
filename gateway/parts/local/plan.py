"""Decide what `tierline up` starts, from the config, the environment and the command line; gather the banner's facts.

Mistakes that a user can make are found here, before the first process is started, and raise CannotStart.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.config.addresses import open_store
from gateway.config.backends import LOCAL_URL, TierConfig
from gateway.config.environment import Environ, variables_in
from gateway.config.launch import Launch
from gateway.config.loader import LOCAL_CONTEXT, POLICY_SOURCE, STORE_URL
from gateway.config.resolver import LOCAL_KEY
from gateway.config.schema import Deployment
from gateway.config.sections import sections_of_parts
from gateway.parts.local import CannotStart
from gateway.parts.local.banner import OWN_KEY, BannerFacts, BannerRow
from gateway.parts.local.child import Child, ChildSpec
from gateway.parts.local.config import NO_TEMPLATE, LocalSections, lacks_chat_template
from gateway.parts.local.local_model import NAME as LOCAL
from gateway.parts.local.local_model import find_gguf, local_child
from gateway.parts.local.roles import CONSOLE, Listen, Roles
from gateway.parts.local.state import StateFolder, Up, free_port, why_not_listen
from gateway.parts.local.store_child import NAME as STORE
from gateway.parts.local.store_child import store_child
from gateway.parts.standard import missing_for, part_missing_for
from gateway.seams import ConsolePlace, archive_folder, console_place, keeps_archive
from policies.yaml_source import read_yaml

EMBEDDED = "embedded Valkey"


@dataclass(frozen=True, slots=True)
class Plan:
    """The children in the order in which they depend on each other, and the deployment as the gateway will read it."""

    specs: tuple[ChildSpec, ...]
    up: Up
    deployment: Deployment
    config_shipped: bool = False


def make_plan(launch: Launch, state: StateFolder, console_port: int | None = None) -> Plan:
    """Decide what to start; `console_port` is in place of the config's. Raises CannotStart, and ConfigError."""
    deployment = launch.deployment(os.environ)
    local_model = deployment.of(LocalSections).local_model
    listen = _listen(deployment, launch.workers)
    listens = deployment.model_copy(update={"port": listen.port}).addresses
    specs: list[ChildSpec] = []
    extra_env = {"TIERLINE_STATE": str(state.path)}
    if not deployment.store.url:
        spec, extra_env["TIERLINE_STORE_URL"] = store_child(state, deployment.store.memory)
        specs.append(spec)
    if deployment.wants_local_model:
        spec, extra_env[LOCAL_URL], extra_env[LOCAL_KEY] = local_child(local_model, state)
        extra_env[LOCAL_CONTEXT] = str(local_model.context)
        specs.append(spec)
        if not os.environ.get("TIERLINE_LOCAL_MODEL"):
            # Headers, confidence heads and stored answers use this name, so it has to be the served model's.
            _, extra_env["TIERLINE_LOCAL_MODEL"] = find_gguf(local_model.gguf)
    store_url = deployment.store.url or extra_env["TIERLINE_STORE_URL"]
    known = extra_env | without_keys(launch, deployment, {**os.environ, **extra_env})
    roles = Roles(launch, state, store_url, archive_folder(deployment) or state.path / "ledger", known)
    if keeps_archive(deployment):
        specs.append(roles.keeper())
    if deployment.policies.source == "store" and part_missing_for("policy judge") is None:
        specs.append(roles.judge())
    specs.append(roles.gateway(listen, listens, extra_env))
    console_url = None
    if (place := console_place(deployment)) is not None:
        at = _console_listen(place if console_port is None else place._replace(port=console_port))
        console_url = at.url
        known = extra_env | without_keys(launch, deployment, {**os.environ, **extra_env}, place.secrets)
        specs.append(replace(roles, known=known).console(at, place.gateway or listen.url))
    deployment = launch.deployment({**os.environ, **extra_env})  # as the gateway will read it
    local_base_url = extra_env.get(LOCAL_URL)
    admin = deployment.admin_place
    up = Up(
        url=listen.url,
        store_url=store_url,
        local_base_url=local_base_url,
        pid=os.getpid(),
        admin_url=admin.url if admin else None,
        admin_key_env=admin.key_env if admin else None,
        console_url=console_url,
        config=str(launch.config.resolve()) if launch.config else None,
        policies=str(launch.policies.resolve()) if launch.policies else None,
    )
    return Plan(tuple(specs), up, deployment, launch.config is None)


def _listen(deployment: Deployment, workers: int) -> Listen:
    host, port = deployment.host, deployment.port
    if workers > 1 and (lacking := missing_for("workers", f"--workers {workers}")):
        raise CannotStart(lacking)
    try:
        port = port or free_port(host)
    except OSError as error:
        raise CannotStart(f"cannot listen on {host}: {error.strerror or error}") from error
    if reason := why_not_listen(host, port):
        raise CannotStart(f"cannot listen on {host} port {port}: {reason} (choose another with --port)")
    admin = deployment.admin_place
    if admin is not None and (reason := why_not_listen(admin.host, admin.port)):
        raise CannotStart(f"cannot listen on {admin.host} port {admin.port}: {reason} (choose another: admin.port)")
    return Listen(host, port, workers)


def _console_listen(place: ConsolePlace) -> Listen:
    """Return where the console will listen: at a free port where another program has its own."""
    host, port = place.host, place.port
    try:
        port = port if port and not why_not_listen(host, port) else free_port(host)
    except OSError as error:
        raise CannotStart(f"the console cannot listen on {host}: {error.strerror or error}") from error
    return Listen(host, port, 1)


async def gather_facts(
    plan: Plan, surfaces: Sequence[str], state: StateFolder, children: Sequence[Child]
) -> BannerFacts:
    """Return the facts for the banner, once all children are up; an external store is sent a PING."""
    ready = {child.spec.name: child.ready for child in children}
    gguf = plan.deployment.of(LocalSections).local_model.gguf
    return BannerFacts(
        url=plan.up.url,
        tiers=[BannerRow(tier.name, _tier_state(tier, plan.up, ready, state, gguf)) for tier in plan.deployment.tiers],
        store=await _store_state(plan.up.store_url, ready, state),
        surfaces=surfaces,
        default_surface=plan.deployment.default_surface,
        state=f"{state.path} (logs in {state.logs})",
        console=plan.up.console_url if ready.get(CONSOLE) else None,
        config_shipped=plan.config_shipped,
        key_env=None if plan.deployment.keyless else next(iter(plan.deployment.client_variables), OWN_KEY),
    )


def _tier_state(tier: TierConfig, up: Up, ready: Mapping[str, bool], state: StateFolder, gguf: Path | None) -> str:
    if tier.unconfigured_reason:
        return f"unconfigured: {tier.unconfigured_reason}"
    models = [(backend.model, backend.base_url) for backend in tier.backends if backend.configured]
    if up.local_base_url and _is_local(tier, up.local_base_url):
        model = next(model for model, base_url in models if base_url == up.local_base_url)
        doubt = f", which {NO_TEMPLATE}" if gguf is not None and lacks_chat_template(gguf) else ""
        return f"ready: {model}, on this machine{doubt}" if ready[LOCAL] else f"not ready: see {state.log('local')}"
    return "configured: " + ", ".join(f"{model} at {url}" if url else f"{model}, scripted" for model, url in models)


def _is_local(tier: TierConfig, local_base_url: str) -> bool:
    return any(backend.base_url == local_base_url for backend in tier.backends)


async def _store_state(url: str, ready: Mapping[str, bool], state: StateFolder) -> str:
    from cache.store.base import StoreUnavailable

    where = open_store(url).where
    if STORE in ready:
        status = "ready" if ready[STORE] else f"not ready, see {state.log(STORE)}"
        return f"{status}: {EMBEDDED} at {where}, data in {state.store}"
    store = open_store(url)
    try:
        await store.ping()
        nodes = store.state().nodes
    except StoreUnavailable as error:
        return f"degraded: {where} ({error}); requests are answered without the caches"
    finally:
        await store.aclose()
    return f"ready: {where}" + (f", a cluster of {nodes} nodes" if nodes > 1 else "")


def without_keys(
    launch: Launch, deployment: Deployment, environ: Environ, needed: Collection[str | None] = ()
) -> dict[str, str]:
    """Return the variables by which a process that calls no backend loads the same deployment.

    They are those that the file refers to (`${VAR}`), and the keys named in `needed`. Instead of every other key
    that the deployment names and has, there is a text that says so: whether it is set decides which tiers exist.
    """
    admin = deployment.admin_place
    names = {LOCAL_KEY, admin.key_env if admin is not None else None}
    names.update(backend.key_env for backend in deployment.backends)
    for sections in sections_of_parts():
        names.update(server.key_env for _, server in sections.servers(deployment))
    names.update(deployment.client_variables)
    stand_ins = {name: f"{name}-is-known-to-the-gateway-alone" for name in names if name and environ.get(name)}
    shown = {*_referred_to(read_yaml(launch.config_file).value), *needed, STORE_URL, POLICY_SOURCE}
    return stand_ins | {name: value for name, value in environ.items() if name in shown}


def _referred_to(value: object) -> Iterator[str]:
    """Yield the names of the variables that a value of the file, and all in it, refer to."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _referred_to(item)
    else:
        yield from variables_in(value)
