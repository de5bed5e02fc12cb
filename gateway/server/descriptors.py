"""How many files a process may have open, and what a worker needs: a descriptor for each connection of any kind."""

from __future__ import annotations

import contextlib
import logging
import resource
from typing import Final

from cache.store.connections import MAX_BLOCKING, MAX_CONNECTIONS
from gateway.config.launch import CannotServe
from gateway.config.schema import Deployment

log = logging.getLogger("tierline")

_RESERVE: Final = 32
"""So many stay free for backends, the store and files: a client's connection that would take one is turned away."""
_FILES: Final = 128
"""For the log, listeners, files that are read now and then, and clients that are being turned away."""
_FEWEST: Final = 16
_RAISE_IT: Final = "raise the limit (ulimit -n; LimitNOFILE= in systemd; nofile in a container's ulimits)"


def raise_limit(deployment: Deployment) -> None:
    """Has this process and its workers open as many files as they may; the usual limit to begin with is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, max(soft, min(_needed(deployment), _number(hard)))):
        if wanted == soft:
            return
        with contextlib.suppress(ValueError, OSError):  # some systems name a limit that they do not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return


def fitted(deployment: Deployment) -> Deployment:
    """The deployment with as many connections as this process may have beside everything else, which a warning says.

    Raises CannotServe where that is next to none.
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
    """Why not all `limits.connections` can be had at `files` open files, by default the most this process may ask for;
    '' where they can.
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
    """Whether a new descriptor is among the last that this process may have; the lowest free one is always taken."""
    return descriptor >= _number(resource.getrlimit(resource.RLIMIT_NOFILE)[0]) - _RESERVE


def _needed(deployment: Deployment) -> int:
    return deployment.limits.connections + _beside(deployment)


def _beside(deployment: Deployment) -> int:
    """Files of one worker beside its clients' connections. A request in hand may have two calls, one beside another."""
    calls = sum(backend.max_in_flight for tier in deployment.tiers for backend in tier.backends if backend.configured)
    store = MAX_CONNECTIONS + MAX_BLOCKING if deployment.store.url else 0
    return min(calls, 2 * deployment.limits.in_flight) + store + _FILES + _RESERVE


def _number(limit: int) -> int:
    return 1 << 31 if limit == resource.RLIM_INFINITY else limit
