"""What to start: from the config, the environment and the command line to the children and the banner.

Everything a user can get wrong is found here, before the first process is started: CannotStart, one line each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cache.store import StoreUnavailable
from gateway.settings import Deployment, TierConfig
from gateway.supervisor import CannotStart
from gateway.supervisor.banner import Facts, Row
from gateway.supervisor.child import Child, ChildSpec
from gateway.supervisor.gateway_child import Listen, gateway_child
from gateway.supervisor.local_model import NAME as LOCAL
from gateway.supervisor.local_model import local_child
from gateway.supervisor.state import StateFolder, Up, free_port, why_not_listen
from gateway.supervisor.store_child import NAME as STORE
from gateway.supervisor.store_child import store_child

EMBEDDED = "embedded Valkey"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asked for; None is what the config says."""

    host: str | None
    port: int | None
    config: Path | None
    policies: Path | None
    workers: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What is started. `specs` are in the order in which they depend on each other; `model` is the local one's name."""

    specs: tuple[ChildSpec, ...]
    up: Up
    model: str | None


def make_plan(deployment: Deployment, wish: Wish, state: StateFolder, pid: int) -> Plan:
    """Decides what to start. Raises CannotStart."""
    listen = _listen(deployment, wish)
    specs: list[ChildSpec] = []
    local_base_url = model = None
    if deployment.store.url:
        store_url = deployment.store.url
    else:
        spec, store_url = store_child(state)
        specs.append(spec)
    if deployment.wants_local_model:
        spec, local_base_url, model = local_child(deployment.local_model, state)
        specs.append(spec)
    found = {"TIERLINE_STORE_URL": store_url} | ({"TIERLINE_LOCAL_BASE_URL": local_base_url} if local_base_url else {})
    specs.append(gateway_child(listen, wish.config, wish.policies, found, state))
    return Plan(tuple(specs), Up(listen.url, store_url, local_base_url, pid), model)


def _listen(deployment: Deployment, wish: Wish) -> Listen:
    host = deployment.host if wish.host is None else wish.host
    port = deployment.port if wish.port is None else wish.port
    try:
        port = port or free_port(host)
    except OSError as error:
        raise CannotStart(f"cannot listen on {host}: {error.strerror or error}") from error
    reason = why_not_listen(host, port)
    if reason:
        raise CannotStart(f"cannot listen on {host} port {port}: {reason} (--port takes another)")
    return Listen(host, port, wish.workers)


async def gather_facts(
    plan: Plan, deployment: Deployment, surfaces: Sequence[str], state: StateFolder, children: Sequence[Child]
) -> Facts:
    """What there is to say, once all first starts are decided; an external store is asked for a sign of life."""
    ready = {child.spec.name: child.ready for child in children}
    key_envs = [name for tenant in deployment.tenants.values() for name in tenant.key_env]
    return Facts(
        url=plan.up.url,
        tiers=[Row(tier.name, _tier_state(tier, plan.model, ready, state)) for tier in deployment.tiers],
        store=await _store_state(plan.up.store_url, ready, state),
        surfaces=surfaces,
        default_surface=deployment.default_surface,
        state=f"{state.path} (logs in {state.logs})",
        key_env=(key_envs or ["TIERLINE_KEY"])[0] if deployment.tenants else None,
    )


def _tier_state(tier: TierConfig, model: str | None, ready: dict[str, bool], state: StateFolder) -> str:
    if model is not None and any(not backend.base_url for backend in tier.backends):
        return f"ready: {model} on this machine" if ready[LOCAL] else f"not ready, see {state.log('local')}"
    if tier.unconfigured_reason:
        return f"unconfigured: {tier.unconfigured_reason}"
    usable = (backend for backend in tier.backends if backend.configured)
    return "configured: " + ", ".join(f"{backend.model} at {backend.base_url}" for backend in usable)


async def _store_state(url: str, ready: dict[str, bool], state: StateFolder) -> str:
    parts = urlsplit(url)
    where = parts.path if parts.scheme == "unix" else f"{parts.hostname}:{parts.port or 6379}"
    if STORE in ready:
        status = "ready" if ready[STORE] else f"not ready, see {state.log(STORE)}"
        return f"{status}: {EMBEDDED} at {where}, data in {state.store}"
    from cache.redis_store import RedisStore  # a client library that the embedded store's supervisor never needs

    store = RedisStore.from_url(url)
    try:
        await store.ping()
    except StoreUnavailable as error:
        return f"degraded: {where} ({error}); requests are answered without the caches"
    finally:
        await store.aclose()
    return f"ready: {where}"
