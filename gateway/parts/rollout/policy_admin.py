"""Serve the admin API of policies: what is in force, and every change that `tierline policy` can make.

Answers are those of the commands' `--json`. Every change needs a message and names its author: the person whose token
was sent, and with the admin key whoever is sent as `author`, else `admin`.
A job runs `tierline policy` as a process of its own, one at a time. Changes need `policies: {source: store}`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal

import orjson
from fastapi import APIRouter, Depends
from pydantic import Field, model_validator
from starlette.requests import Request
from starlette.responses import Response

from cache.store.base import StoreUnavailable
from gateway.errors import Conflict, InvalidRequest, NotFound
from gateway.http.api_route import Body, BodyRoute
from gateway.parts.access.keys.roles import Person
from gateway.parts.access.routes.role_check import needs_role
from gateway.parts.lint.warnings import findings_in
from gateway.parts.rollout.live_view import LiveRequest, live_view, text_in
from gateway.parts.rollout.policy_jobs import PolicyJobs, policy_file
from gateway.parts.rollout.registry.apply import apply_file
from gateway.parts.rollout.registry.records import InForce
from gateway.parts.rollout.registry.registry import PolicyRegistry, RegistryError
from gateway.parts.rollout.registry.view import blamed, history_of, in_force_shown, shown_version, status_of
from gateway.steps import Steps
from policies.errors import ConfigError, Problem
from policies.loader import read_policy
from policies.yaml_source import MAX_BYTES

router: Final = APIRouter(prefix="/admin/policies", tags=["Policies"], route_class=BodyRoute)
Shown = dict[str, Any]
_FINDING: Final = ("code", "line", "column", "key", "message", "mend")
Text = Annotated[str, Field(pattern=r"\S")]


class _PolicyBody(Body):
    most_bytes: ClassVar[int | None] = 2 * MAX_BYTES


class LintRequest(_PolicyBody):
    """A policy's text."""

    text: Text


class ExplainRequest(_PolicyBody):
    """A request to look at: a chat-completions body and its headers, or a surface; `text` is another policy's."""

    most_bytes = None
    """A chat's own limit, as it holds one."""

    body: Shown | None = None
    headers: dict[str, str] = Field({})
    tenant: Text | None = None
    surface: Text | None = None
    tokens_in: int = Field(0, ge=0)
    text: Text | None = None

    @model_validator(mode="after")
    def _one_request(self) -> ExplainRequest:
        if (self.body is None) == (self.surface is None):
            message = "Send a chat-completions body as body, or a surface."
            raise InvalidRequest(message, code="missing_required_parameter", param="body")
        return self

    def live(self) -> LiveRequest:
        """Return what to look at."""
        headers = {name.lower().encode(): value.encode() for name, value in self.headers.items()}
        return LiveRequest(self.body, headers, self.tenant, self.surface or "", self.tokens_in)


class ChangeRequest(_PolicyBody):
    """Why a change is made, and by whom."""

    message: Text
    author: Text = "admin"


class ApplyRequest(ChangeRequest):
    """A policy's text, and how it is to come into force; `base` is the version that it was made from."""

    text: Text
    how: Literal["evaluate", "shadow", "canary", "now"] | None = None
    share: float = Field(0.0, ge=0, le=1)
    base: Text | None = None

    @model_validator(mode="after")
    def _share_of_shadow(self) -> ApplyRequest:
        if (self.how == "shadow") != (self.share > 0):
            message = "share is a number above 0 and up to 1, for shadow alone."
            raise InvalidRequest(message, code="unsupported_value", param="share")
        return self


class PromoteRequest(ChangeRequest):
    """A change; `full`: to all requests at once, in place of the next step."""

    full: bool = False


class RollbackRequest(ChangeRequest):
    """A change; `to`: the version to go back to, in place of the one before."""

    to: Text | None = None


class RemoveRequest(ChangeRequest):
    """A change; `with_candidate`: what is being tried is removed too."""

    with_candidate: bool = False


class JobRequest(_PolicyBody):
    """What to run on a policy's text, over the requests since then, such as 1d."""

    action: Literal["replay", "plan"]
    text: Text
    since: Text = "1d"


class PolicyAdmin:
    """The policies of one worker: in its registry or its files, and the jobs that it runs."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.registry = PolicyRegistry(steps.store, "admin")
        self.jobs = PolicyJobs(steps)
        self.from_store = steps.deployment.policies.source == "store"

    async def check_known(self, surface: str, *, removed: bool = False) -> None:
        """Raise NotFound for a surface that is not in force in this worker, nor, with `removed`, was in the store."""
        if surface in self.steps.policies.current.by_surface:
            return
        if removed and self.from_store and surface in await self.registry.states():
            return
        raise NotFound(f"There is no surface {surface!r} here.", code="surface_not_found", param="surface")

    def check_store(self) -> None:
        """Raise Conflict where policies come from files."""
        if not self.from_store:
            message = (
                "Policies come from files here: saving the file applies it. Versions and canaries need "
                "`policies: {source: store}` in the config."
            )
            raise Conflict(message, code="policies_from_files")

    async def status(self, surface: str | None) -> Shown:
        """Return what is in force and being tried, of one surface or of all."""
        if self.from_store:
            return {"source": "store", **await status_of(self.registry, surface)}
        policies = [
            {"surface": policy.surface, "version": policy.version, "policy": policy.label, "candidate": None}
            for policy in self.steps.policies.current.by_surface.values()
            if surface in (None, policy.surface)
        ]
        return {"source": "files", "surfaces": policies}

    async def text_of(self, surface: str, version: str) -> str | None:
        """Return the text of a version in force; None where it cannot be found just now."""
        if not self.from_store:
            return await asyncio.to_thread(text_in, self.steps.policies.source, version)
        with contextlib.suppress(StoreUnavailable, RegistryError):
            return (await self.registry.version(surface, version)).text
        return None

    async def change(
        self, surface: str, body: ChangeRequest, person: Person, take: Callable[..., Any], *, removed: bool = False
    ) -> Shown:
        """Make one change of the surface as it is now. Raises RegistryError if another change comes first."""
        self.check_store()
        await self.check_known(surface, removed=removed)
        state = await self.registry.surface(surface, removed=removed)
        return _changed(await take(surface, state.revision, by=person.author(body.author), message=body.message))


async def _admin(request: Request) -> PolicyAdmin:
    state = request.app.state
    if not hasattr(state, "policies"):
        state.policies = PolicyAdmin(state.steps)
    admin: PolicyAdmin = state.policies
    return admin


async def _known(admin: _Admin, surface: str) -> str:
    await admin.check_known(surface)
    return surface


_Admin = Annotated[PolicyAdmin, Depends(_admin)]
_Known = Annotated[str, Depends(_known)]
_Looks = Annotated[Person, needs_role("look")]
_Checks = Annotated[Person, needs_role("policies.check")]
_Changes = Annotated[Person, needs_role("policies.change")]


@router.get("")
async def list_policies(_: _Looks, admin: _Admin) -> Shown:
    """List what is in force and being tried."""
    return {"object": "policy.list", **await admin.status(None)}


@router.post("/lint")
async def lint(_: _Checks, admin: _Admin, body: LintRequest) -> Shown:
    """Find mistakes in a policy."""
    findings = await asyncio.to_thread(_findings, admin.steps, body.text)
    return {
        "object": "policy.lint",
        "findings": [{name: getattr(finding, name) for name in _FINDING} for finding in findings],
    }


@router.post("/explain", response_model=Shown)
async def explain(_: _Checks, admin: _Admin, body: ExplainRequest) -> Response:
    """What a request would be decided by."""
    asked = body.live()
    if body.text is not None:
        with policy_file(admin.steps, "policy", body.text) as file:
            try:
                asked = replace(asked, policy=read_policy(file, admin.steps.policies.source.tiers)[0])
            except ConfigError as error:
                raise InvalidRequest(str(error), code="unsupported_value", param="text") from None
    view = await live_view(admin.steps, asked)
    text = body.text or await admin.text_of(view["surface"], view["version"])
    shown_now = {"object": "policy.explained", **view, "text": text}
    return Response(orjson.dumps(shown_now), media_type="application/json")  # it has parts that are JSON already


@router.post("/jobs")
async def start_job(_: _Checks, admin: _Admin, body: JobRequest) -> Shown:
    """Start a replay or a plan."""
    return (await admin.jobs.start(body.action, body.text, body.since)).shown()


@router.get("/jobs/{job}")
async def show_job(_: _Looks, admin: _Admin, job: str) -> Shown:
    """Show a job and its result."""
    return admin.jobs.find(job).shown()


@router.get("/{surface}")
async def show_policy(_: _Looks, admin: _Admin, surface: _Known) -> Shown:
    """Show a surface's policies."""
    return {"object": "policy", **await admin.status(surface)}


@router.get("/{surface}/history")
async def list_changes(_: _Looks, admin: _Admin, surface: str) -> Shown:
    """List a surface's changes."""
    await admin.check_known(surface, removed=True)
    admin.check_store()
    return {"object": "policy.history", "changes": await history_of(admin.registry, surface)}


@router.get("/{surface}/blame")
async def blame(_: _Looks, admin: _Admin, surface: _Known) -> Shown:
    """Who set each line of a policy."""
    admin.check_store()
    return {"object": "policy.blame", **await blamed(admin.registry, surface)}


@router.get("/{surface}/versions/{version}")
async def show_version(_: _Looks, admin: _Admin, surface: str, version: str) -> Shown:
    """Show a version's text: `live`, or one by the beginning of its hash."""
    await admin.check_known(surface, removed=True)
    admin.check_store()
    version_shown = await shown_version(admin.registry, surface, "" if version == "live" else version)
    return {"object": "policy.version", **version_shown}


@router.post("/{surface}/apply")
async def apply(person: _Changes, admin: _Admin, surface: str, body: ApplyRequest) -> Shown:
    """Apply a policy."""
    admin.check_store()
    steps = admin.steps
    with policy_file(steps, surface, body.text) as file:
        try:
            applied = await apply_file(
                admin.registry,
                steps.policies.source,
                file,
                how=body.how,
                share=body.share,
                author=person.author(body.author),
                message=body.message,
                at=time.time(),
                base=body.base,
                surface=surface,
                may_change=partial(person.may, "policies.change"),
            )
        except ConfigError as error:
            raise InvalidRequest(str(error), code="unsupported_value", param="text") from None
    return {"how": applied.how, **_changed(applied.state)}


@router.post("/{surface}/promote")
async def promote(person: _Changes, admin: _Admin, surface: str, body: PromoteRequest) -> Shown:
    """Promote a candidate."""
    return await admin.change(surface, body, person, admin.registry.promote if body.full else admin.registry.step)


@router.post("/{surface}/pause")
async def pause(person: _Changes, admin: _Admin, surface: str, body: ChangeRequest) -> Shown:
    """Pause a candidate."""
    return await admin.change(surface, body, person, admin.registry.pause)


@router.post("/{surface}/resume")
async def resume(person: _Changes, admin: _Admin, surface: str, body: ChangeRequest) -> Shown:
    """Resume a candidate."""
    return await admin.change(surface, body, person, admin.registry.resume)


@router.post("/{surface}/rollback")
async def rollback(person: _Changes, admin: _Admin, surface: str, body: RollbackRequest) -> Shown:
    """Go back to a version."""
    take: Callable[..., Any] = admin.registry.rollback
    if body.to is not None:
        admin.check_store()
        take = partial(take, to=await admin.registry.version(surface, body.to))
    return await admin.change(surface, body, person, take, removed=True)


@router.post("/{surface}/remove")
async def remove(person: _Changes, admin: _Admin, surface: str, body: RemoveRequest) -> Shown:
    """Remove a surface's policy."""
    if surface == admin.steps.deployment.default_surface:
        raise Conflict("It is the default surface: name another as `default_surface` in the config first.")
    return await admin.change(surface, body, person, partial(admin.registry.remove, with_candidate=body.with_candidate))


def _changed(state: InForce) -> Shown:
    return {"object": "policy.change", **in_force_shown(state)}


def _findings(steps: Steps, text: str) -> list[Problem]:
    with policy_file(steps, "policy", text) as file:
        try:
            policy, document = read_policy(file, steps.policies.source.tiers)
        except ConfigError as error:
            return list(error.problems)
        return findings_in(policy, document, steps.deployment)
