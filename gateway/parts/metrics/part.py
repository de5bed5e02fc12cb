"""Provide the seam `metrics` of `gateway.seams`."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.multiprocess import mark_process_dead
from prometheus_client.values import MultiProcessValue
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.config.launch import CannotServe
from gateway.errors import Unauthorized
from gateway.parts.metrics.metric_set import CONFIGURED, LOST
from gateway.parts.metrics.metrics import METRICS_FOLDER, PrometheusMetrics
from gateway.request.options import known_headers

if TYPE_CHECKING:
    from gateway.steps import Steps


def build_metrics() -> PrometheusMetrics:
    """Return the metrics of a worker."""
    return PrometheusMetrics()


def metrics_routes() -> list[Route]:
    """Return the route `/metrics`."""
    return [Route("/metrics", _metrics)]


async def _metrics(request: Request) -> Response:
    """Return the Prometheus text for all workers. Raises Unauthorized without the admin key where it is needed."""
    steps: Steps = request.app.state.steps
    if not await steps.authenticator.is_operator(known_headers(request.scope["headers"])):
        raise Unauthorized(
            "Metrics cover all tenants. Send the admin's key (the config's `admin`), or a token of who has a role, as "
            "'Authorization: Bearer KEY', or set access.public_metrics in the config."
        )
    assert isinstance(steps.metrics, PrometheusMetrics)  # noqa: S101  (this part has made them)
    parts: list[bytes] = []
    for part in steps.metrics.render_slices():
        parts.append(part)
        await asyncio.sleep(0)  # thousands of lines: requests under way go on meanwhile
    return Response(b"".join(parts), media_type=CONTENT_TYPE_PLAIN_0_0_4)


@contextmanager
def shared_metrics(workers: int) -> Iterator[Callable[[int], None]]:
    """Provide the folder through which several workers' metrics are summed: the configured one, else a temporary one.

    A configured folder is emptied first: files of earlier processes would be reported as if those still ran. What is
    yielded counts a worker that ended by itself. Raises CannotServe.
    """
    if named := os.environ.get(METRICS_FOLDER):
        _empty(Path(named))
        yield _ignore if workers == 1 else WorkerMetrics(workers).lost
    elif workers == 1:
        yield _ignore
    else:
        with tempfile.TemporaryDirectory(prefix="tierline-metrics-") as folder:
            os.environ[METRICS_FOLDER] = folder
            yield WorkerMetrics(workers).lost


def _ignore(_: int) -> None:
    pass


def _empty(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file in folder.glob("*.db"):  # other files in the folder are not metrics
            file.unlink(missing_ok=True)
    except OSError as error:
        raise CannotServe(f"cannot share metrics through {folder} ({METRICS_FOLDER}): {error.strerror}") from None


class WorkerMetrics:
    """Count workers in the process that starts them; its values are in the same folder as theirs."""

    def __init__(self, workers: int) -> None:
        """Say how many should serve. PROMETHEUS_MULTIPROC_DIR must be set."""
        value = MultiProcessValue()  # type: ignore[no-untyped-call]
        name = "tierline_workers_configured"
        value("gauge", name, name, (), (), CONFIGURED, multiprocess_mode="livemax").set(workers)
        self._lost = value("counter", "tierline_workers_lost", "tierline_workers_lost_total", (), (), LOST)

    def lost(self, pid: int) -> None:
        """Count a worker that ended by itself, and remove its gauges from what the others render.

        What it counted stays.
        """
        self._lost.inc(1)
        mark_process_dead(pid)  # type: ignore[no-untyped-call]
