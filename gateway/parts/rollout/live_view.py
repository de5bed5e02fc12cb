"""Say what a request would meet in this worker right now: its policy and arm, its features, the state of the tiers.

That is the input of the decision as the record of a request has it, with its basis, so that whoever asked can
decide again and explain each step. No model is called, and nothing is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from gateway.caller import ANYBODY, bearer_key
from gateway.config.schema import DEFAULT_TENANT
from gateway.errors import InvalidRequest, NotFound
from gateway.http.build_context import build_context, deadline_s, ttft_deadline
from gateway.off_loop import off_loop
from gateway.parts.access.keys.registry import KeyRegistry
from gateway.parts.recorder.decision_record import basis_of, record_of
from gateway.request.body import ChatBodies
from gateway.request.context import Client, RequestContext
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Trace
from policies.errors import ConfigError
from policies.loader import policy_files, read_policy
from routing.decide import DecisionInput, TierHealth
from routing.difficulty.model import CLASSIFIER
from routing.features import Features, room_wanted

if TYPE_CHECKING:
    from gateway.steps import Steps
    from policies.loader import PolicySource
    from policies.model import Policy
    from routing.difficulty.model import Difficulty


@dataclass(frozen=True, slots=True)
class LiveRequest:
    """A request to look at: a chat-completions body and its headers, or only a surface and a prompt's length.

    `policy` is used in place of the one in force.
    """

    body: Mapping[str, Any] | None = None
    headers: Mapping[bytes, bytes] | None = None
    tenant: str | None = None
    surface: str = ""
    tokens_in: int = 0
    policy: Policy | None = None


async def live_view(steps: Steps, asked: LiveRequest) -> dict[str, Any]:
    """Return what the request would meet now. Raises ApiError as the request itself would."""
    if asked.body is None:
        policy, arm = _of_surface(steps, asked), ""
        health = _health(steps, policy, asked.tokens_in)
        given = DecisionInput(None, Features("", 1, asked.tokens_in), health, policy.slo.deadline)
    else:
        request = await _context(steps, asked)
        policy, arm = request.policy, request.ledger.arm or ""
        given = await _input(steps, request)
    artefacts = {} if given.difficulty is None else {CLASSIFIER: given.difficulty.model_version}
    rolling = steps.policies.current.rolling.get(policy.surface)
    encoder = steps.embedder.embedder
    return {
        "worker": f"{socket.gethostname()}:{os.getpid()}",
        "at": time.time(),
        "surface": policy.surface,
        "version": policy.version,
        "policy": policy.label,
        "arm": arm or None,
        "candidate": None
        if rolling is None
        else {
            "version": rolling.policy.version,
            "policy": rolling.policy.label,
            "mode": rolling.mode,
            "share": rolling.share,
            "sticky": rolling.sticky,
        },
        "basis": orjson.Fragment(basis_of(policy, given, artefacts).encode()[1]),
        "in": record_of(given),
        "encoder": {
            "name": encoder.name,
            "whole_chars": encoder.whole_chars,
            "by_turns": steps.deployment.cross_encoder_folder is not None,
        },
    }


def text_in(source: PolicySource, version: str) -> str | None:
    """Return the text of the file that holds this version of a policy; None where none does."""
    for file in policy_files(source.directory):
        with contextlib.suppress(ConfigError, OSError):
            if read_policy(file, source.tiers)[0].version == version:
                return file.read_text(encoding="utf-8-sig")
    return None


def _of_surface(steps: Steps, asked: LiveRequest) -> Policy:
    policy = asked.policy or steps.policies.current.by_surface.get(asked.surface)
    if policy is None:
        raise NotFound(f"There is no surface {asked.surface!r} here.", code="surface_not_found", param="surface")
    return policy


async def _context(steps: Steps, asked: LiveRequest) -> RequestContext:
    """Return the request's context, as it would be built for a client of its tenant."""
    headers = dict(asked.headers or {})
    ledger, caller = Ledger("explain"), ANYBODY
    if asked.tenant is not None:
        tenants = steps.deployment.tenant_names or (DEFAULT_TENANT,)
        if asked.tenant not in tenants and not await _is_stored(steps, asked.tenant):
            message = f"There is no tenant {asked.tenant!r} here; there are {', '.join(tenants)}."
            raise InvalidRequest(message, code="unsupported_value", param="tenant")
        ledger.tenant = asked.tenant
    elif steps.deployment.tenant_names and not bearer_key(headers):
        message = f"Name the request's tenant, one of {', '.join(steps.deployment.tenant_names)}, or send its key."
        raise InvalidRequest(message, code="missing_required_parameter", param="tenant")
    else:
        caller = await steps.authenticator.find(headers)
        ledger.tenant = caller.tenant
    raw = await off_loop(partial(orjson.dumps, asked.body))
    body, large = await ChatBodies(steps.deployment.limits).read(raw)
    trace = Trace(names.REQUEST)
    client = Client(None, 1.0)
    return build_context(steps, headers, body, trace, ledger, client, large=large, instead=asked.policy, caller=caller)


async def _is_stored(steps: Steps, tenant: str) -> bool:
    """Return whether the store has a record of a tenant. Raises StoreUnavailable."""
    return steps.deployment.store.url is not None and await KeyRegistry(steps.store).owner("tenant", tenant) is not None


async def _input(steps: Steps, request: RequestContext) -> DecisionInput:
    """Return what the router would decide on, but for what it leaves to chance: the holdout, and tiers to try again."""
    policy, features = request.policy, request.features
    await _classifier_loaded(steps, policy)
    health = _health(steps, policy, features.approx_tokens)
    largest = max([state.context or 0 for state in health.values()], default=0)
    difficulty: Difficulty | None = None
    if request.is_classified():
        with contextlib.suppress(TimeoutError):
            vector = await steps.embedder.vector(features.rated_text)
            difficulty = steps.router.classifiers.of(policy).assess(vector, features)
            if "conversation_difficulty" in policy.asked:
                await steps.embedder.read_turns(features, vector)
            features = steps.router.in_conversation(policy, features, vector, difficulty)
    return DecisionInput(
        difficulty,
        features,
        health,
        deadline_s(policy, request.options),
        ttft_deadline(policy, request.options, 0.0) if features.stream else None,
        request.clamp,
        room=room_wanted(request.body, largest, own_limit=request.own_limit) if largest else 0,
    )


async def _classifier_loaded(steps: Steps, policy: Policy) -> None:
    """Load the classifier that a policy pins which is not in force here. Raises InvalidRequest."""
    if (pinned := policy.route.pinned) is not None:
        source = steps.policies.source
        try:
            await asyncio.to_thread(source.check_classifier, source.directory / pinned.folder, pinned.version)
        except ValueError as error:
            raise InvalidRequest(str(error), code="unsupported_value", param="policy") from None


def _health(steps: Steps, policy: Policy, tokens_in: int) -> dict[str, TierHealth]:
    batch = policy.load.priority == "batch"
    return {name: steps.tiers[name].state(tokens_in, batch=batch) for name in policy.ladder}
