"""Build one worker's steps from its config, start them, and close them in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import NamedTuple, Protocol

from cache.response_cache import ResponseCache
from cache.scopes.scope import Caps
from cache.semantic.verifier import Verifier, shipped_verifier
from cache.store.base import NoStore, Store, StoreUnavailable
from gateway.accounting import Finalizer, HedgeBudgets
from gateway.caching.coalescer import Coalescer
from gateway.caching.lookups import ExactLookup, QuestionEmbedder, SemanticLookup
from gateway.caching.write_behind import WriteBehind
from gateway.caller import LoopbackGuard
from gateway.cascade.router import Classifiers, Router
from gateway.cascade.runner import CascadeRunner
from gateway.config.addresses import open_store
from gateway.config.backends import BackendConfig
from gateway.config.policy_reload import Policies
from gateway.config.schema import Deployment
from gateway.config.sections import asked_quotas
from gateway.encoders import load_embedder
from gateway.parts.standard import absent, variables_of_missing_parts
from gateway.request.load_shedding import LoadShedder, room_for_bodies
from gateway.seams import (
    build_admissions,
    build_authenticator,
    build_call_memory,
    build_client_api,
    build_conversation_advisor,
    build_figures,
    build_flights,
    build_hit_bound,
    build_limits,
    build_metrics,
    build_observers,
    build_pair_queue,
    build_recorder,
    build_redactor,
    build_request_log,
    build_store_room,
    build_successor,
    build_tasks,
    build_verifier,
    compares_turns,
    follow,
    hop_completer,
    index_of,
    load_pair_scorer,
    meter,
    read_other_languages,
    spans,
    watched,
)
from gateway.steps import Core, LoadedModels, Steps
from gateway.telemetry.sink import Telemetry
from gateway.tiers.tier import build_tiers, endpoints_of
from policies.errors import ConfigError
from policies.loader import PolicySet, PolicySource
from routing.difficulty.model import CLASSIFIER, DifficultyModel, shipped_artefact

log = logging.getLogger("tierline")

SECRET_ENV = "TIERLINE_CACHE_SECRET"  # noqa: S105  (the variable's name)


def build(
    deployment: Deployment, source: PolicySource, gate: LoadShedder | None = None, store: Store | None = None
) -> Steps:
    """Return one worker's steps, wired and not started. They use `store`, or open the one that the config names.

    Raises ConfigError, EmbedderUnavailable, ArtefactError, VerifierError or CrossEncoderError.
    """
    read_other_languages()
    steps = Steps()
    steps.deployment, steps.started_at = deployment, int(time.time())
    steps.secret = os.environ.get(SECRET_ENV, "").encode()
    steps.store = store or _store(deployment)
    steps.metrics = build_metrics()
    steps.models = models = _models(deployment)
    classifiers = Classifiers(models.classifier, models.embedder)
    steps.policies = _policies(steps, replace(source, check_classifier=classifiers.load))
    steps.kept_calls = build_call_memory(steps)
    steps.tiers = tiers = build_tiers(deployment, _log_refusal, steps.kept_calls)
    steps.endpoints = endpoints_of(tiers)
    steps.quotas = {name: Caps(asked.entries, asked.bytes) for name, asked in asked_quotas(deployment).items()}
    steps.room = build_store_room(steps)
    steps.cache = _cache(steps)
    steps.limits = build_limits(steps)
    steps.telemetry = _telemetry(steps)
    conversations = build_conversation_advisor(steps)
    token_vectors = None if models.cross_encoder is None else models.cross_encoder.vectors
    steps.embedder = QuestionEmbedder(models.embedder, deployment.embedding.kind, token_vectors, conversations)
    steps.verifier = build_verifier(steps)
    steps.router = Router(tiers, classifiers, conversations)
    hedge_budgets = HedgeBudgets(tiers)
    unknown_usd = 0.0 if steps.limits is None else steps.limits.unknown_usd
    finalizer = Finalizer(hedge_budgets, unknown_usd, build_figures(steps))
    steps.gate = gate or LoadShedder(deployment.limits.in_flight, room=room_for_bodies(deployment.limits))
    steps.guard = LoopbackGuard(deployment)
    steps.authenticator = build_authenticator(steps)
    steps.admissions = [*chain.from_iterable(build_admissions(steps))]
    steps.client_apis = build_client_api(steps)
    steps.observers = build_observers(steps)
    steps.exact_cache = ExactLookup(steps.cache, steps.gate)
    steps.coalescer = Coalescer(steps.cache, build_flights(steps))
    steps.semantic_cache = SemanticLookup(steps.cache)
    steps.cascade = CascadeRunner(tiers, hedge_budgets, steps.verifier, build_successor(steps), steps.limits)
    steps.write_behind = WriteBehind(steps.cache, steps.telemetry, finalizer, steps.observers, steps.policies)
    return steps


def _store(deployment: Deployment) -> Store:
    url = deployment.store.url
    return NoStore() if url is None else open_store(url)


def _models(deployment: Deployment) -> LoadedModels:
    """Load the models. Raises EmbedderUnavailable, ArtefactError, VerifierError or CrossEncoderError."""
    kind, folder = deployment.embedding.kind, deployment.cross_encoder_folder
    embedder = load_embedder(kind, deployment.embedding.state)
    classifier = DifficultyModel.load(deployment.classifier or shipped_artefact(kind), embedder)
    cross_encoder = None if folder is None else load_pair_scorer(folder)
    cosine_weight = 0.0 if cross_encoder is None else cross_encoder.cosine_weights.get(embedder.name, 0.0)
    return LoadedModels(embedder, classifier, Verifier.load(shipped_verifier(kind)), cross_encoder, cosine_weight)


def _policies(core: Core, source: PolicySource) -> Policies:
    """Return where policies come from, as the config says. Raises ConfigError."""

    def reloaded(loaded: PolicySet) -> None:
        core.metrics.policy_reloaded(ok=True)
        log.warning("policies reloaded: %s", ", ".join(policy.label for policy in loaded.by_surface.values()))

    def refused(error: ConfigError) -> None:
        core.metrics.policy_reloaded(ok=False)
        log.error("policies not reloaded, the last good ones stay in force:\n%s", error)

    def noted(note: str) -> None:
        log.warning("policies: %s", note)

    if core.deployment.policies.source == "files":
        return watched(source, reloaded, refused)
    return follow(core, source, reloaded, refused, noted)


def _log_refusal(config: BackendConfig, reason: str, own: bool) -> None:
    """Log that a backend refuses our key or account, or lacks its model, or that it answers again."""
    if own and reason:
        log.error(
            "backend %s is %s. Its model is %s at %s, its key comes from %s. Other backends answer in its place "
            "where there are any; it is tried again every 30 s.",
            config.name, reason, config.model, config.base_url,
            config.key_env or config.key_file or "nowhere: set its key_env",
        )  # fmt: skip
    elif own:
        log.warning("backend %s answers again", config.name)


def _cache(core: Core) -> ResponseCache:
    """Return the cache, with its matcher and what bounds its wrong hits, if there is such a part."""
    embedder, _, verifier, cross_encoder, cosine_weight = core.models
    return ResponseCache(
        core.store,
        embedder_name=embedder.name,
        dimension=embedder.dimension,
        secret=core.secret,
        longest_question=embedder.whole_chars,
        verifier=verifier,
        cross_encoder=None if cross_encoder is None else build_pair_queue(cross_encoder),
        turn_by_turn=compares_turns(),
        cosine_weight=cosine_weight,
        bound=build_hit_bound(core),
        index=index_of(core.deployment.store.index),
        teams=core.deployment.team_of,
        largest=core.deployment.cache.largest,
    )


def _telemetry(core: Core) -> Telemetry:
    """Return what records requests, with the versions of all that decides about them."""
    deployment, metrics, models = core.deployment, core.metrics, core.models
    artefacts = {
        CLASSIFIER: models.classifier.version,
        "effort": models.classifier.effort.version,
        "embedder": models.embedder.name,
        "verifier": models.verifier.version,
        "cross_encoder": "" if models.cross_encoder is None else models.cross_encoder.version,
    }
    heads = {name: endpoint.config.head for name, endpoint in core.endpoints.items()}
    artefacts |= {f"head of {name}": head.version for name, head in heads.items() if head}
    for variable, part in variables_of_missing_parts(os.environ):
        log.warning("%s", absent(variable, part))
    return Telemetry(
        core.store,
        keep=deployment.telemetry.keep,
        exporter=spans(metrics.telemetry_dropped),
        meter=meter(metrics.telemetry_dropped),
        metrics=metrics,
        decisions=build_recorder(artefacts),
        complete=hop_completer(),
        log_request=build_request_log(core),
        sample=deployment.telemetry.sample,
        redactor=build_redactor(core),
        accounts=core.limits,
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


def lifecycle(steps: Steps) -> list[Managed]:
    """Return what a worker starts, in this order, and closes in the reverse one.

    What has connections closes last, as everything else may still use them; before it come the store and what is read
    from it: policies, keys, limits, the cache, and the writer of records. `write_behind` finishes what requests left to
    be done, so it closes before all that this uses, and after the callers that still add to it.
    """
    beside = [row for tasks in build_tasks(steps) for row in tasks.items()]
    return [
        *(Managed(f"backend {name}", None, endpoint.aclose) for name, endpoint in steps.endpoints.items()),
        Managed("embedder", None, steps.embedder.close),
        Managed("store", partial(_ping, steps.store), steps.store.aclose),
        _whole("policies", steps.policies),
        _whole("keys", steps.authenticator),
        *([] if steps.room is None else [_whole("store room", steps.room)]),
        *([] if steps.limits is None else [_whole("limits", steps.limits)]),
        _whole("changes of policies", _Watching(steps.policies)),
        _whole("cache", steps.cache),
        _whole("telemetry", steps.telemetry),
        *(_whole("observer", observer) for observer in steps.observers),
        *([] if steps.kept_calls is None else [_whole("kept calls", steps.kept_calls)]),
        *(_whole(api.name, api) for api in steps.client_apis),
        *(Managed(admission.name, None, admission.aclose) for admission in steps.admissions),
        _whole("write-behind", steps.write_behind),
        _whole("coalescer", steps.coalescer),
        Managed("identities", partial(_start_identities, steps), None),
        *(_whole(name, task) for name, task in beside),
        Managed("metrics", partial(steps.metrics.start, steps), steps.metrics.stop),
        Managed("gate", steps.gate.start, steps.gate.stop),
    ]


class _Started(Protocol):
    def start(self) -> Awaitable[None] | None: ...
    def aclose(self) -> Awaitable[None]: ...


def _whole(name: str, started: _Started) -> Managed:
    return Managed(name, started.start, started.aclose)


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


def _start_identities(steps: Steps) -> None:
    """Fetch the credentials of clouds before the first request wants them."""
    for endpoint in steps.endpoints.values():
        if endpoint.identity is not None:
            endpoint.identity.renew()
