"""The functions by which the core asks this part; see `gateway.seams`."""

from __future__ import annotations

from typing import Final

from gateway.parts.fleet.auth import CloudAuth

AUTH: Final = CloudAuth
