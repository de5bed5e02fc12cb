"""Raise the limit on open files, and fit the number of connections to it: each connection needs a descriptor."""

from __future__ import annotations

import contextlib
import logging
import resource
from typing import TYPE_CHECKING, Final

from cache.store.connections import MAX_BLOCKING, MAX_CONNECTIONS
from gateway.config.launch import CannotServe

if TYPE_CHECKING:
    from gateway.config.schema import Deployment

log = logging.getLogger("tierline")

_RESERVE: Final = 32
"""Descriptors kept free for backends, the store and files: a client's connection that would take one is rejected."""
_FILES: Final = 128
"""Descriptors for the log, listeners, files that are read occasionally, and connections that are being rejected."""
_FEWEST: Final = 16
"""Least number of client connections with which the gateway starts."""
_RAISE_IT: Final = "raise the limit (ulimit -n; LimitNOFILE= in systemd; nofile in a container's ulimits)"


def raise_limit(deployment: Deployment) -> None:
    """Raise the soft limit on open files, commonly 1,024, of this process and its workers to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, max(soft, min(_needed(deployment), _number(hard)))):
        if wanted == soft:
            return
        with contextlib.suppress(ValueError, OSError):  # some systems report a hard limit that they do not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return


def fitted_limits(deployment: Deployment) -> Deployment:
    """Return the deployment with `limits.connections` lowered, with a warning, to what the open-file limit allows.

    Raises CannotServe if that is fewer than 16.
    """
    files = _number(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    doubt = why_too_few(deployment, files)
    if not doubt:
        return deployment
    room = files - _beside(deployment)
    if room < _FEWEST:
        raise CannotServe(f"{doubt}; {_RAISE_IT}, or lower max_in_flight")
    log.warning("%s; at most %d connections are kept open. To have more, %s", doubt, room, _RAISE_IT)
    limits = deployment.limits.model_copy(update={"connections": room})
    return deployment.model_copy(update={"limits": limits})


def why_too_few(deployment: Deployment, files: int | None = None) -> str:
    """Return why `limits.connections` do not fit into `files` open files, '' if they do.

    `files` is by default the hard limit of this process.
    """
    files = _number(resource.getrlimit(resource.RLIMIT_NOFILE)[1]) if files is None else files
    connections, beside = deployment.limits.connections, _beside(deployment)
    if connections + beside <= files:
        return ""
    return (
        f"{connections} connections (limits.connections) and {beside} files beside them are more than the {files} "
        "that this process may have open"
    )


def few_left(descriptor: int) -> bool:
    """Return whether a new descriptor is among the last 32 that this process may have.

    The number tells, because the system always assigns the lowest free one.
    """
    return descriptor >= _number(resource.getrlimit(resource.RLIMIT_NOFILE)[0]) - _RESERVE


def _needed(deployment: Deployment) -> int:
    return deployment.limits.connections + _beside(deployment)


def _beside(deployment: Deployment) -> int:
    """Return how many descriptors a worker needs beside its clients' connections.

    A request may have two backend calls at a time: a hedge beside its first attempt.
    """
    calls = sum(backend.max_in_flight for backend in deployment.backends if backend.configured)
    store = MAX_CONNECTIONS + MAX_BLOCKING if deployment.store.url else 0
    return min(calls, 2 * deployment.limits.in_flight) + store + _FILES + _RESERVE


def _number(limit: int) -> int:
    return 1 << 31 if limit == resource.RLIM_INFINITY else limit
