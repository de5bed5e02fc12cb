"""A real store, as the telemetry tests have it."""

from tests.gateway.telemetry.conftest import server, store

__all__ = ["server", "store"]
