"""Serve the admin API of policies: what is in force, and every change that `tierline policy` can make.

    GET   /admin/policies                        each surface, its candidate, the workers that differ
    GET   /admin/policies/SURFACE                the same of one surface
    GET   /admin/policies/SURFACE/history        its changes, newest first
    GET   /admin/policies/SURFACE/blame          who set each line
    GET   /admin/policies/SURFACE/versions/V     a version with its text; V is `live` or a prefix of its hash
    POST  /admin/policies/lint                   {"text"}: its findings
    POST  /admin/policies/explain                {"body", "headers", "tenant"} or {"surface", "tokens_in"}, and
                                                 another policy's "text": what would decide it in this worker now
    POST  /admin/policies/SURFACE/apply          {"text", "message", "author", "how", "share", "base"}
    POST  /admin/policies/SURFACE/promote        {"message", "author", "full"}
    POST  /admin/policies/SURFACE/pause          {"message", "author"}; so are resume and
    POST  /admin/policies/SURFACE/rollback       {"message", "author", "to"}; of a removed surface, too
    POST  /admin/policies/SURFACE/remove         {"message", "author", "with_candidate"}
    POST  /admin/policies/jobs                   {"action": "replay" or "plan", "text", "since"}: starts it
    GET   /admin/policies/jobs/ID                its state, and its result once it is done

Answers are those of the commands' `--json`. Every change needs a message and names its author, `admin` if none is sent.
A job runs `tierline policy` as a process of its own, one at a time. Changes need `policies: {source: store}`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cache.store.base import StoreUnavailable
from gateway.config.warnings import findings_in
from gateway.errors import CLIENT_GONE, Conflict, InvalidRequest, NotFound, Overloaded
from gateway.http.messages import read_body
from gateway.http.routes.live_view import LiveRequest, live_view, text_in
from gateway.registry.apply import apply_file
from gateway.registry.registry import PolicyRegistry, RegistryError
from gateway.registry.view import blamed, history_of, in_force_shown, shown, status_of
from gateway.request.body import ChatBodies
from gateway.request.context import ClientGone
from gateway.request.options import known_headers
from policies.errors import ConfigError, Problem
from policies.loader import DEFAULTS, read_policy
from policies.yaml_source import MAX_BYTES

if TYPE_CHECKING:
    from gateway.config.schema import Deployment
    from gateway.registry.records import InForce
    from gateway.steps import Steps

T = TypeVar("T")
_Read = Callable[[Request], Awaitable[Mapping[str, Any]]]
_Change = Callable[[Request, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]

_MAX_BODY: Final = 2 * MAX_BYTES
_HOWS: Final = ("evaluate", "shadow", "canary", "now")
_JOBS_KEPT: Final = 16
_LONGEST_JOB_S: Final = 600.0
_RETRY_AFTER: Final = ((b"retry-after", b"5"),)


def policy_routes(steps: Steps, admitted: Callable[[Request], None]) -> list[Route]:
    """Return the routes for policies; each first calls `admitted`, of `gateway.http.routes.admin.gatekeeper`."""
    api = _PolicyApi(steps)
    bodies = ChatBodies(steps.deployment.limits)

    def read(handler: _Read, *, removed: bool = False) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            admitted(request)
            if (name := request.path_params.get("surface")) is not None:
                await api.check_known(name, removed=removed)
            return _json(await _answered(handler(request)))

        return answer

    def change(handler: _Change, most: int = _MAX_BODY) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            admitted(request)
            try:
                raw = await read_body(
                    request.receive, known_headers(request.scope["headers"]), max(most, _MAX_BODY), steps.gate
                )
            except ClientGone:
                return Response(status_code=CLIENT_GONE)
            body, _ = await bodies.read_object(raw)
            return _json(await _answered(handler(request, body)))

        return answer

    at = "/admin/policies/{surface}"
    return [
        Route("/admin/policies", read(api.listed)),
        Route("/admin/policies/lint", change(api.lint), methods=["POST"]),
        Route("/admin/policies/explain", change(api.explain, steps.deployment.limits.body), methods=["POST"]),
        Route("/admin/policies/jobs", change(api.start_job), methods=["POST"]),
        Route("/admin/policies/jobs/{job}", read(api.job)),
        Route(at, read(api.one)),
        Route(f"{at}/history", read(api.history, removed=True)),
        Route(f"{at}/blame", read(api.blame)),
        Route(f"{at}/versions/{{version}}", read(api.version, removed=True)),
        Route(f"{at}/apply", change(api.apply), methods=["POST"]),
        Route(f"{at}/promote", change(api.promote), methods=["POST"]),
        Route(f"{at}/pause", change(api.pause), methods=["POST"]),
        Route(f"{at}/resume", change(api.resume), methods=["POST"]),
        Route(f"{at}/rollback", change(api.rollback), methods=["POST"]),
        Route(f"{at}/remove", change(api.remove), methods=["POST"]),
    ]


class _PolicyApi:
    """Answer the requests, each with a JSON object."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._registry = PolicyRegistry(steps.store)
        self._jobs = _Jobs(steps.deployment)
        self._from_store = steps.deployment.policies.source == "store"

    async def check_known(self, surface: str, *, removed: bool = False) -> None:
        """Raise NotFound for a surface that is not in force in this worker, nor, with `removed`, was in the store."""
        if surface in self._steps.policies.current.by_surface:
            return
        if removed and self._from_store and surface in await _answered(self._registry.states()):
            return
        raise NotFound(f"There is no surface {surface!r} here.", code="surface_not_found", param="surface")

    async def listed(self, _: Request) -> Mapping[str, Any]:
        return {"object": "policy.list", **await self._status(None)}

    async def one(self, request: Request) -> Mapping[str, Any]:
        return {"object": "policy", **await self._status(request.path_params["surface"])}

    async def history(self, request: Request) -> Mapping[str, Any]:
        self._check_store()
        changes = await history_of(self._registry, request.path_params["surface"])
        return {"object": "policy.history", "changes": changes}

    async def blame(self, request: Request) -> Mapping[str, Any]:
        self._check_store()
        return {"object": "policy.blame", **await blamed(self._registry, request.path_params["surface"])}

    async def version(self, request: Request) -> Mapping[str, Any]:
        self._check_store()
        prefix = request.path_params["version"]
        found = await shown(self._registry, request.path_params["surface"], "" if prefix == "live" else prefix)
        return {"object": "policy.version", **found}

    async def lint(self, _: Request, body: Mapping[str, Any]) -> Mapping[str, Any]:
        _check_keys(body, {"text"})
        findings = await asyncio.to_thread(_findings, self._steps, _text(body, "text"))
        return {"object": "policy.lint", "findings": [_row(finding) for finding in findings]}

    async def explain(self, _: Request, body: Mapping[str, Any]) -> Mapping[str, Any]:
        _check_keys(body, {"body", "headers", "tenant", "surface", "tokens_in", "text"})
        asked = _live_request(body)
        if "text" in body:
            with _file_of(self._steps, "policy", _text(body, "text")) as file:
                try:
                    asked = replace(asked, policy=read_policy(file, self._steps.policies.source.tiers)[0])
                except ConfigError as error:
                    raise InvalidRequest(str(error), code="unsupported_value", param="text") from None
        found = await live_view(self._steps, asked)
        text = body.get("text") or await self._text_of(found["surface"], found["version"])
        return {"object": "policy.explained", **found, "text": text}

    async def _text_of(self, surface: str, version: str) -> str | None:
        """Return the text of a version in force; None where it cannot be found just now."""
        if not self._from_store:
            return await asyncio.to_thread(text_in, self._steps.policies.source, version)
        with contextlib.suppress(StoreUnavailable, RegistryError):
            return (await self._registry.version(surface, version)).text
        return None

    async def apply(self, request: Request, body: Mapping[str, Any]) -> Mapping[str, Any]:
        _check_keys(body, {"text", "message", "author", "how", "share", "base"})
        self._check_store()
        how, share = body.get("how"), body.get("share", 0)
        if how is not None and how not in _HOWS:
            raise InvalidRequest(f"how is one of {', '.join(_HOWS)}.", code="unsupported_value", param="how")
        if type(share) not in (int, float) or not 0 <= share <= 1 or (how == "shadow") != (share > 0):
            message = "share is a number above 0 and up to 1, for shadow alone."
            raise InvalidRequest(message, code="unsupported_value", param="share")
        surface = request.path_params["surface"]
        with _file_of(self._steps, surface, _text(body, "text")) as file:
            try:
                applied = await apply_file(
                    self._registry,
                    self._steps.policies.source,
                    file,
                    how=how,
                    share=float(share),
                    author=_author(body),
                    message=_text(body, "message"),
                    at=time.time(),
                    base=_text(body, "base") if "base" in body else None,
                    surface=surface,
                )
            except ConfigError as error:
                raise InvalidRequest(str(error), code="unsupported_value", param="text") from None
        return {"how": applied.how, **_changed(applied.state)}

    async def promote(self, request: Request, body: Mapping[str, Any]) -> Mapping[str, Any]:
        _check_keys(body, {"message", "author", "full"})
        take = self._registry.promote if body.get("full") is True else self._registry.step
        return await self._make(request, body, take)

    async def pause(self, request: Request, body: Mapping[str, Any]) -> Mapping[str, Any]:
        _check_keys(body, {"message", "author"})
        return await self._make(request, body, self._registry.pause)

    async def resume(self, request: Request, body: Mapping[str, Any]) -> Mapping[str, Any]:
        _check_keys(body, {"message", "author"})
        return await self._make(request, body, self._registry.resume)

    async def rollback(self, request: Request, body: Mapping[str, Any]) -> Mapping[str, Any]:
        _check_keys(body, {"message", "author", "to"})
        if "to" not in body:
            return await self._make(request, body, self._registry.rollback, removed=True)
        self._check_store()
        to = await self._registry.version(request.path_params["surface"], _text(body, "to"))
        return await self._make(request, body, partial(self._registry.rollback, to=to), removed=True)

    async def remove(self, request: Request, body: Mapping[str, Any]) -> Mapping[str, Any]:
        _check_keys(body, {"message", "author", "with_candidate"})
        if request.path_params["surface"] == self._steps.deployment.default_surface:
            raise Conflict("It is the default surface: name another as `default_surface` in the config first.")
        take = partial(self._registry.remove, with_candidate=body.get("with_candidate") is True)
        return await self._make(request, body, take)

    async def start_job(self, _: Request, body: Mapping[str, Any]) -> Mapping[str, Any]:
        _check_keys(body, {"action", "text", "since"})
        if body.get("action") not in ("replay", "plan"):
            raise InvalidRequest("action is replay or plan.", code="unsupported_value", param="action")
        since = _text(body, "since") if "since" in body else "1d"
        return (await self._jobs.start(body["action"], _text(body, "text"), since, self._steps)).shown()

    async def job(self, request: Request) -> Mapping[str, Any]:
        return self._jobs.find(request.path_params["job"]).shown()

    async def _status(self, surface: str | None) -> Mapping[str, Any]:
        if self._from_store:
            return {"source": "store", **await status_of(self._registry, surface)}
        policies = [
            {"surface": policy.surface, "version": policy.version, "policy": policy.label, "candidate": None}
            for policy in self._steps.policies.current.by_surface.values()
            if surface in (None, policy.surface)
        ]
        return {"source": "files", "surfaces": policies}

    async def _make(
        self, request: Request, body: Mapping[str, Any], take: Callable[..., Any], *, removed: bool = False
    ) -> Mapping[str, Any]:
        """Make one change of the surface as it is now. Raises RegistryError if another change comes first."""
        self._check_store()
        surface = request.path_params["surface"]
        await self.check_known(surface, removed=removed)
        message, author = _text(body, "message"), _author(body)
        state = await self._registry.surface(surface, removed=removed)
        return _changed(await take(surface, state.revision, by=author, message=message))

    def _check_store(self) -> None:
        if not self._from_store:
            message = (
                "Policies come from files here: saving the file applies it. Versions and canaries need "
                "`policies: {source: store}` in the config."
            )
            raise Conflict(message, code="policies_from_files")


@dataclass(slots=True)
class _Job:
    """One `tierline policy` process, running or done."""

    id: str
    action: str
    started: float
    process: asyncio.subprocess.Process
    exit_code: int | None = None
    output: bytes = b""
    errors: bytes = b""

    def shown(self) -> dict[str, Any]:
        """Return the job as the API shows it. `result` is the command's JSON; `error` what it said instead."""
        result: Any = None
        if self.exit_code is not None:
            with contextlib.suppress(orjson.JSONDecodeError):
                result = orjson.loads(self.output)
        lines = self.errors.decode("utf-8", "replace").replace("\r", "\n").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return {
            "object": "policy.job",
            "id": self.id,
            "action": self.action,
            "state": "running" if self.exit_code is None else "failed" if result is None else "done",
            "started": self.started,
            "exit_code": self.exit_code,
            "progress": said[-1] if said and self.exit_code is None else "",
            "result": result,
            "error": "\n".join(said) if self.exit_code is not None and result is None else None,
        }


@dataclass(slots=True)
class _Jobs:
    """The latest jobs of this worker, one of them running at most."""

    deployment: Deployment
    _jobs: dict[str, _Job] = field(default_factory=dict)
    _waiting: set[asyncio.Task[None]] = field(default_factory=set)

    def find(self, name: str) -> _Job:
        """Return a job. Raises NotFound; each worker knows its own jobs alone."""
        if name not in self._jobs:
            raise NotFound(f"There is no job {name!r} in this worker; start it again.", code="job_not_found")
        return self._jobs[name]

    async def start(self, action: str, text: str, since: str, steps: Steps) -> _Job:
        """Start a job. Raises Conflict while another one runs."""
        if running := next((job for job in self._jobs.values() if job.exit_code is None), None):
            raise Conflict(f"The job {running.id} is still running; one runs at a time.", code="job_running")
        while len(self._jobs) >= _JOBS_KEPT:
            del self._jobs[next(iter(self._jobs))]
        stack = contextlib.ExitStack()
        file = stack.enter_context(_file_of(steps, "candidate", text))
        words = ["policy", action, str(file), "--since", since, "--json"]
        if self.deployment.ledger.folder is not None:
            words += ["--ledger", str(self.deployment.ledger.folder)]
        if action == "plan":
            words += ["--policies", str(steps.policies.source.directory), "--out", str(file.with_suffix(".plan"))]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tierline", *words, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
        job = _Job(secrets.token_hex(6), action, time.time(), process)
        self._jobs[job.id] = job
        task = asyncio.create_task(self._wait(job, stack), name="tierline.admin.job")
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        return job

    async def _wait(self, job: _Job, stack: contextlib.ExitStack) -> None:
        """Collect what the process writes, until it ends or takes too long."""

        async def errors() -> None:
            assert job.process.stderr is not None  # noqa: S101  (a pipe was asked for)
            while piece := await job.process.stderr.read(4096):
                job.errors = (job.errors + piece)[-65536:]

        with stack:
            try:
                async with asyncio.timeout(_LONGEST_JOB_S), asyncio.TaskGroup() as group:
                    group.create_task(errors())
                    assert job.process.stdout is not None  # noqa: S101
                    job.output = await job.process.stdout.read()
                    code = await job.process.wait()
            except TimeoutError:
                job.errors += f"\nstopped after {_LONGEST_JOB_S:.0f} s".encode()
                code = -1
            finally:
                if job.process.returncode is None:
                    job.process.kill()
            job.exit_code = code


def _changed(state: InForce) -> Mapping[str, Any]:
    return {"object": "policy.change", **in_force_shown(state)}


async def _answered(operation: Awaitable[T]) -> T:
    try:
        return await operation
    except StoreUnavailable as down:
        raise Overloaded(f"The store does not answer ({down.reason}).", headers=_RETRY_AFTER) from None
    except RegistryError as error:
        raise Conflict(str(error)) from None


def _findings(steps: Steps, text: str) -> list[Problem]:
    with _file_of(steps, "policy", text) as file:
        try:
            policy, document = read_policy(file, steps.policies.source.tiers)
        except ConfigError as error:
            return list(error.problems)
        return findings_in(policy, document, steps.deployment)


@contextlib.contextmanager
def _file_of(steps: Steps, name: str, text: str) -> Iterator[Path]:
    """Yield a file with this text, beside a copy of the folder's defaults. Raises InvalidRequest for a bad name."""
    if not name.replace("-", "").replace("_", "").isalnum():
        raise InvalidRequest(f"{name!r} is not a surface's name.", code="unsupported_value", param="surface")
    with tempfile.TemporaryDirectory(prefix="tierline-policy-") as folder:
        file = Path(folder, f"{name}.yaml")
        file.write_text(text.removesuffix("\n") + "\n", encoding="utf-8")  # a body comes whole or not at all
        defaults = steps.policies.source.directory / DEFAULTS
        if defaults.is_file():
            Path(folder, DEFAULTS).write_bytes(defaults.read_bytes())
        yield file


def _live_request(body: Mapping[str, Any]) -> LiveRequest:
    """Return what to look at. Raises InvalidRequest."""
    chat, headers, tokens = body.get("body"), body.get("headers", {}), body.get("tokens_in", 0)
    if (chat is None) == ("surface" not in body) or not isinstance(chat, dict | None):
        message = "Send a chat-completions body as body, or a surface."
        raise InvalidRequest(message, code="missing_required_parameter", param="body")
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise InvalidRequest("headers is an object of texts.", code="invalid_type", param="headers")
    if type(tokens) is not int or tokens < 0:
        raise InvalidRequest("tokens_in is a whole number.", code="invalid_type", param="tokens_in")
    return LiveRequest(
        chat,
        {name.lower().encode(): value.encode() for name, value in headers.items()},
        _text(body, "tenant") if "tenant" in body else None,
        _text(body, "surface") if chat is None else "",
        tokens,
    )


def _row(finding: Problem) -> dict[str, Any]:
    return {
        "code": finding.code,
        "line": finding.line,
        "column": finding.column,
        "key": finding.key,
        "message": finding.message,
        "mend": finding.mend,
    }


def _check_keys(body: Mapping[str, Any], known: set[str]) -> None:
    if unknown := sorted(body.keys() - known):
        raise InvalidRequest(
            f"Unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}.",
            code="unsupported_value",
            param=unknown[0],
        )


def _author(body: Mapping[str, Any]) -> str:
    return _text(body, "author") if "author" in body else "admin"


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value.strip():
        raise InvalidRequest(f"{name} is required, as text.", code="missing_required_parameter", param=name)
    return value


def _json(value: Mapping[str, Any]) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
