"""Build one worker's steps from its config, start them, and close them in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from cache.response_cache import ResponseCache
from cache.scopes.shelf import Caps
from cache.semantic.cross_encoder_queue import MeasuredPairScorer
from cache.semantic.verifier import Verifier, shipped_verifier
from cache.store.base import NoStore, Store, StoreUnavailable
from cache.store.redis_store import RedisStore
from gateway.accounting import Finalizer, HedgeBudgets
from gateway.caching.coalescer import Coalescer
from gateway.caching.lookups import ExactLookup, QuestionEmbedder, SemanticLookup
from gateway.caching.store_room import StoreRoom
from gateway.caching.write_behind import WriteBehind
from gateway.cascade.fields import with_set_fields
from gateway.cascade.router import Classifiers, Router
from gateway.cascade.runner import CascadeRunner
from gateway.config.backends import BackendConfig
from gateway.config.hooks import hook_of
from gateway.config.key_files import KeyFiles, only_key
from gateway.config.policy_reload import Policies, PolicyReloader
from gateway.config.schema import Deployment, TelemetryConfig
from gateway.encoders import load_cross_encoder, load_embedder
from gateway.parts.standard import absent, variables_of_missing_parts
from gateway.request.context import CallerLimits
from gateway.request.load_shedding import LoadShedder, room_for_bodies
from gateway.request.loopback_guard import LoopbackGuard
from gateway.seams import (
    AdmissionNeeds,
    ClientApiNeeds,
    HitBoundNeeds,
    LimitsNeeds,
    ObserverNeeds,
    PoliciesNeeds,
    VerifierNeeds,
    WorkerTask,
    admission_parts,
    client_api_parts,
    hit_bound_part,
    limits_part,
    new_authenticator,
    new_call_memory,
    new_conversation_advisor,
    new_flights,
    new_observers,
    new_recorder,
    new_successor,
    new_tasks,
    new_verifier,
    otlp_part,
    policies_part,
    read_other_languages,
)
from gateway.steps import Steps
from gateway.telemetry.logs import dropped_lines, log_request
from gateway.telemetry.metrics import BackendState, Metrics
from gateway.telemetry.redaction import Redactor
from gateway.telemetry.sink import Telemetry
from gateway.tiers import Tier
from gateway.tiers.build import build_tiers, endpoints_of
from gateway.tiers.endpoint import Endpoint, OnRefusal
from gateway.tiers.keep_warm import KeepWarm
from policies.errors import ConfigError
from policies.loader import PolicySet, PolicySource
from routing.difficulty.model import CLASSIFIER, DifficultyModel, shipped_artefact
from routing.embedding.embedder import PublicEncoder

log = logging.getLogger("tierline")

SECRET_ENV = "TIERLINE_CACHE_SECRET"  # noqa: S105  (the variable's name)


@dataclass(frozen=True)
class _Models:
    """The models that run in the worker itself."""

    embedder: PublicEncoder
    classifier: DifficultyModel
    verifier: Verifier
    cross_encoder: MeasuredPairScorer | None

    def versions(self) -> dict[str, str]:
        """Return the versions of the models, by what they do."""
        return {
            CLASSIFIER: self.classifier.version,
            "embedder": self.embedder.name,
            "verifier": self.verifier.version,
            "cross_encoder": "" if self.cross_encoder is None else self.cross_encoder.version,
        }


def build(
    deployment: Deployment, source: PolicySource, gate: LoadShedder | None = None, store: Store | None = None
) -> Steps:
    """Return one worker's steps, wired and not started. They use `store`, or open the one that the config names.

    Raises ConfigError, EmbedderUnavailable, ArtefactError, VerifierError or CrossEncoderError.
    """
    read_other_languages()
    models = _models(deployment)
    embedder = models.embedder
    classifiers = Classifiers(models.classifier, embedder)
    metrics = Metrics()
    store = store or _store(deployment)
    policies = _policies(deployment, replace(source, check_classifier=classifiers.load), store, metrics)
    calls = new_call_memory(store)
    tiers = build_tiers(deployment, _refusals_told(metrics), calls)
    for name, endpoint in endpoints_of(tiers).items():
        if endpoint.config.retires is not None:
            metrics.backend_retires(name, endpoint.config.retires)
    room = StoreRoom(store, deployment, lambda: policies.current)
    cache = _cache(deployment, store, room.quotas["cache"], models, endpoints_of(tiers), metrics)
    metrics.watch_log(dropped_lines)
    metrics.watch_evictions(room.evicted)
    metrics.watch_policies(policies)
    metrics.watch_backends(partial(_states, tiers))
    granting = limits_part()
    limits = None if granting is None else granting.build_limits(LimitsNeeds(deployment, store, tiers, metrics))
    telemetry = _telemetry(deployment, store, metrics, models, tiers, limits)
    hedge_budgets = HedgeBudgets(tiers)
    gate = gate or LoadShedder(deployment.limits.in_flight, room=room_for_bodies(deployment.limits))
    conversations = new_conversation_advisor(tiers)
    token_vectors = None if models.cross_encoder is None else models.cross_encoder.vectors
    question_embedder = QuestionEmbedder(embedder, deployment.embedding.kind, token_vectors, conversations)
    verifier = new_verifier(VerifierNeeds(deployment, store, tiers, question_embedder.cosine))
    successor = new_successor(tiers)
    router = Router(tiers, classifiers, conversations)
    observers = new_observers(
        ObserverNeeds(
            deployment,
            policies,
            tiers,
            router,
            verifier,
            store,
            telemetry,
            metrics,
            models.classifier,
            embedder,
        )
    )
    admission_needs = AdmissionNeeds(deployment, store, tiers, metrics)
    unknown_usd = 0.0 if limits is None else limits.unknown_usd
    secret = os.environ.get(SECRET_ENV, "").encode()
    client_needs = ClientApiNeeds(deployment, store, secret, room.quotas, embedder)
    return Steps(
        deployment=deployment,
        started_at=int(time.time()),
        gate=gate,
        guard=LoopbackGuard(deployment),
        authenticator=new_authenticator(deployment, store),
        limits=limits,
        policies=policies,
        admissions=[layer for part in admission_parts() for layer in part.build_admissions(admission_needs)],
        exact_cache=ExactLookup(cache, gate),
        coalescer=Coalescer(cache, new_flights(store, cache.delayed)),
        embedder=question_embedder,
        semantic_cache=SemanticLookup(cache),
        router=router,
        cascade=CascadeRunner(tiers, hedge_budgets, verifier, successor, limits),
        write_behind=WriteBehind(cache, telemetry, Finalizer(policies, tiers, hedge_budgets, unknown_usd), observers),
        client_apis=[part.build_client_api(client_needs) for part in client_api_parts()],
        kept_calls=calls,
        observers=observers,
        cache=cache,
        store=store,
        room=room,
        tiers=tiers,
        telemetry=telemetry,
        metrics=metrics,
    )


def _models(deployment: Deployment) -> _Models:
    """Load the models. Raises EmbedderUnavailable, ArtefactError, VerifierError or CrossEncoderError."""
    kind = deployment.embedding.kind
    embedder = load_embedder(kind, deployment.embedding.state)
    folder = deployment.cross_encoder_folder
    return _Models(
        embedder,
        DifficultyModel.load(deployment.classifier or shipped_artefact(kind), embedder),
        Verifier.load(shipped_verifier(kind)),
        None if folder is None else load_cross_encoder(folder),
    )


def _telemetry(
    deployment: Deployment,
    store: Store,
    metrics: Metrics,
    models: _Models,
    tiers: Mapping[str, Tier],
    limits: CallerLimits | None,
) -> Telemetry:
    """Return what records requests, with the versions of all that decides about them."""
    heads = {name: one.config.head for name, one in endpoints_of(tiers).items()}
    artefacts = {**models.versions(), **{f"head of {name}": head.version for name, head in heads.items() if head}}
    otlp = otlp_part()
    for variable, part in variables_of_missing_parts(os.environ):
        log.warning("%s", absent(variable, part))
    return Telemetry(
        store,
        keep=deployment.telemetry.keep,
        exporter=None if otlp is None else otlp.spans(metrics.telemetry_dropped),
        meter=None if otlp is None else otlp.meter(metrics.telemetry_dropped),
        metrics=metrics,
        decisions=new_recorder(artefacts),
        log_request=log_request if deployment.log.requests else None,
        sample=deployment.telemetry.sample,
        redactor=_redactor(deployment.telemetry),
        accounts=limits,
    )


def _redactor(config: TelemetryConfig) -> Redactor | None:
    """Return what redacts captured texts; None where the config asks for nothing."""
    if not config.redact and config.redact_with is None:
        return None
    return Redactor(config.redact, None if config.redact_with is None else hook_of(config.redact_with))


def _cache(
    deployment: Deployment,
    store: Store,
    caps: Caps,
    models: _Models,
    endpoints: Mapping[str, Endpoint],
    metrics: Metrics,
) -> ResponseCache:
    """Return the cache, with its matcher and what bounds its wrong hits, if there is such a part."""
    embedder, verifier, cross_encoder = models.embedder, models.verifier, models.cross_encoder
    cosine_weight = 0.0 if cross_encoder is None else cross_encoder.cosine_weights.get(embedder.name, 0.0)
    part = hit_bound_part()
    needs = HitBoundNeeds(
        store,
        embedder,
        deployment.embedding.kind,
        verifier.version,
        cross_encoder,
        cosine_weight,
        endpoints,
        metrics,
    )
    return ResponseCache(
        store,
        embedder_name=embedder.name,
        dimension=embedder.dimension,
        secret=os.environ.get(SECRET_ENV, "").encode(),
        longest_question=embedder.whole_chars,
        verifier=verifier,
        cross_encoder=cross_encoder,
        cosine_weight=cosine_weight,
        bound=None if part is None else part.build(needs),
        index=deployment.store.index,
        teams=deployment.team_of,
        largest=deployment.cache.largest,
    )


class Managed(NamedTuple):
    """Something of a worker that is started, or closed, or both, by its name."""

    name: str
    start: Callable[[], Awaitable[None] | None] | None
    close: Callable[[], Awaitable[None] | None] | None


@contextlib.asynccontextmanager
async def running(steps: Steps) -> AsyncIterator[Steps]:
    """Start the steps for the block, in the order of `lifecycle`, and close them after it in the reverse order.

    Where one does not start, those before it are closed, and the error is raised.
    """
    async with contextlib.AsyncExitStack() as stack:
        for managed in lifecycle(steps):
            if managed.close is not None:
                stack.push_async_callback(_call, managed.close)
            if managed.start is not None:
                await _call(managed.start)
        yield steps


async def _call(step: Callable[[], Awaitable[None] | None]) -> None:
    if (awaited := step()) is not None:
        await awaited


def lifecycle(steps: Steps) -> Iterator[Managed]:
    """Yield what a worker starts, in this order, and closes in the reverse one.

    What has connections closes last, as everything else may still use them; before it come the store and what is read
    from it: policies, keys, limits, the cache, and the writer of records. `write_behind` finishes what requests left to
    be done, so it closes before all that this uses, and after the callers that still add to it.
    """
    for name, endpoint in endpoints_of(steps.tiers).items():
        yield Managed(f"backend {name}", None, endpoint.aclose)
    yield Managed("embedder", None, steps.embedder.close)
    yield Managed("store", partial(_ping, steps.store), steps.store.aclose)
    yield Managed("policies", steps.policies.start, steps.policies.aclose)
    yield Managed("keys", steps.authenticator.start, steps.authenticator.aclose)
    yield Managed("store room", steps.room.start, steps.room.aclose)
    if steps.limits is not None:
        yield Managed("limits", steps.limits.start, steps.limits.aclose)
    watching = _Watching(steps.policies)
    yield Managed("changes of policies", watching.start, watching.aclose)
    yield Managed("cache", steps.cache.start, steps.cache.aclose)
    yield Managed("telemetry", steps.telemetry.start, steps.telemetry.aclose)
    for observer in steps.observers:
        yield Managed("observer", observer.start, observer.aclose)
    if steps.kept_calls is not None:
        yield Managed("kept calls", steps.kept_calls.start, steps.kept_calls.aclose)
    for api in steps.client_apis:
        yield Managed(api.name, api.start, api.aclose)
    for admission in steps.admissions:
        yield Managed(admission.name, None, admission.aclose)
    yield Managed("write-behind", steps.write_behind.start, steps.write_behind.aclose)
    yield Managed("coalescer", steps.coalescer.start, steps.coalescer.aclose)
    yield Managed("identities", partial(_start_identities, steps), None)
    endpoints = list(endpoints_of(steps.tiers).values())
    tasks: dict[str, WorkerTask] = {
        "key files": _key_files(steps),
        **dict(new_tasks(steps.store, endpoints)),
        "keep-warm": KeepWarm(endpoints, steps.metrics.warmed, with_fields=with_set_fields),
    }
    for name, task in tasks.items():
        yield Managed(name, task.start, task.aclose)
    yield Managed("metrics", steps.metrics.start, steps.metrics.stop)
    yield Managed("gate", steps.gate.start, steps.gate.stop)


class _Watching:
    """Run the task that takes over policies as they change."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies

    def start(self) -> None:
        self._task = asyncio.create_task(self._policies.run(), name="tierline.policies")

    async def aclose(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


async def _ping(store: Store) -> None:
    """Make the store's state known to /readyz from the start; a store that is down is degraded, not a failed start."""
    with contextlib.suppress(StoreUnavailable):
        await store.ping()


def _key_files(steps: Steps) -> KeyFiles:
    """Return what has the keys of tenants, backends and others read again when their files change."""
    files = KeyFiles()

    steps.authenticator.watch(files)
    for endpoint in endpoints_of(steps.tiers).values():
        if endpoint.config.key_file is not None and endpoint.config.configured:
            endpoint.key.look = files.watch([endpoint.config.key_file], 1, only_key(endpoint.rekey))
    for api in steps.client_apis:
        api.watch_keys(files)
    return files


def _start_identities(steps: Steps) -> None:
    """Fetch the credentials of clouds before the first request wants them."""
    for endpoint in endpoints_of(steps.tiers).values():
        if endpoint.identity is not None:
            endpoint.identity.renew()


def _store(deployment: Deployment) -> Store:
    url = deployment.store.url
    return NoStore() if url is None else RedisStore.from_url(url)


def _policies(deployment: Deployment, source: PolicySource, store: Store, metrics: Metrics) -> Policies:
    """Return where policies come from, as the config says. Raises ConfigError."""

    def reloaded(loaded: PolicySet) -> None:
        metrics.policy_reloaded(ok=True)
        log.warning("policies reloaded: %s", ", ".join(policy.label for policy in loaded.by_surface.values()))

    def refused(error: ConfigError) -> None:
        metrics.policy_reloaded(ok=False)
        log.error("policies not reloaded, the last good ones stay in force:\n%s", error)

    def noted(note: str) -> None:
        log.warning("policies: %s", note)

    part = policies_part()
    if part is None or deployment.policies.source == "files":
        return PolicyReloader(source, source.load(), reloaded, refused)
    url, state = deployment.store.url or "", deployment.embedding.state
    return part.follow(PoliciesNeeds(source, store, url, state, reloaded, refused, noted))


def _refusals_told(metrics: Metrics) -> OnRefusal:
    """Return a callback that logs and counts whether a backend refuses our key or account, or lacks its model."""

    def told(config: BackendConfig, reason: str, own: bool) -> None:
        metrics.backend_refuses(config.name, bool(reason))
        if own and reason:
            log.error(
                "backend %s is %s. Its model is %s at %s, its key comes from %s. Other backends answer in its place "
                "where there are any; it is tried again every 30 s.",
                config.name, reason, config.model, config.base_url,
                config.key_env or config.key_file or "nowhere: set its key_env",
            )  # fmt: skip
        elif own:
            log.warning("backend %s answers again", config.name)

    return told


def _states(tiers: Mapping[str, Tier]) -> Iterator[BackendState]:
    """Return what the metrics show of each backend."""
    for tier in tiers.values():
        for endpoint in tier.endpoints:
            is_open = endpoint.breaker.state(endpoint.now()) == "open"
            name, queued = endpoint.config.name, endpoint.queue.size
            left = {
                unit: most[0] / most[1] for unit, most in endpoint.quota.headroom(endpoint.now()).items() if most[1]
            }
            yield BackendState(tier.name, name, is_open, endpoint.in_flight, queued, endpoint.capacity, left)
