"""Run `tierline policy replay` and `plan` for the admin API, each as a process of its own, one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.errors import Conflict, InvalidRequest, NotFound
from gateway.parts.rollout import own_command
from gateway.seams import archive_folder
from gateway.steps import Steps
from policies.loader import DEFAULTS

_JOBS_KEPT: Final = 16
_LONGEST_JOB_S: Final = 600.0


@dataclass(slots=True)
class Job:
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
        output = [line.strip() for line in lines if line.strip()]
        return {
            "object": "policy.job",
            "id": self.id,
            "action": self.action,
            "state": "running" if self.exit_code is None else "failed" if result is None else "done",
            "started": self.started,
            "exit_code": self.exit_code,
            "progress": output[-1] if output and self.exit_code is None else "",
            "result": result,
            "error": "\n".join(output) if self.exit_code is not None and result is None else None,
        }


@dataclass(slots=True)
class PolicyJobs:
    """The latest jobs of this worker, one of them running at most."""

    steps: Steps
    _jobs: dict[str, Job] = field(default_factory=dict)
    _waiting: set[asyncio.Task[None]] = field(default_factory=set)
    _is_starting: bool = False

    def find(self, name: str) -> Job:
        """Return a job. Raises NotFound; each worker knows its own jobs alone."""
        if name not in self._jobs:
            raise NotFound(f"There is no job {name!r} in this worker; start it again.", code="job_not_found")
        return self._jobs[name]

    async def start(self, action: str, text: str, since: str) -> Job:
        """Start a job. Raises Conflict while another one runs."""
        if running := next((job for job in self._jobs.values() if job.exit_code is None), None):
            raise Conflict(f"The job {running.id} is still running; one runs at a time.", code="job_running")
        if self._is_starting:
            raise Conflict("Another job is starting; one runs at a time.", code="job_running")
        while len(self._jobs) >= _JOBS_KEPT:
            del self._jobs[next(iter(self._jobs))]
        stack = contextlib.ExitStack()
        file = stack.enter_context(policy_file(self.steps, "candidate", text))
        words = ["policy", action, str(file), "--since", since, "--json"]
        if (folder := archive_folder(self.steps.deployment)) is not None:
            words += ["--ledger", str(folder)]
        if action == "plan":
            words += ["--policies", str(self.steps.policies.source.directory), "--out", str(file.with_suffix(".plan"))]
        self._is_starting = True
        try:
            process = await own_command.start(words)
        except BaseException:
            stack.close()
            raise
        finally:
            self._is_starting = False
        job = Job(secrets.token_hex(6), action, time.time(), process)
        self._jobs[job.id] = job
        task = asyncio.create_task(self._wait(job, stack), name="tierline.admin.job")
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        return job

    async def _wait(self, job: Job, stack: contextlib.ExitStack) -> None:
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
                await own_command.end(job.process)
            job.exit_code = code


@contextlib.contextmanager
def policy_file(steps: Steps, name: str, text: str) -> Iterator[Path]:
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
