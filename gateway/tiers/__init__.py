"""The ladder as it runs: tiers, their endpoints, who may call them now, and who waits.

tier       picks an endpoint for each request         slot      one call's place, and how the call went
endpoint   a backend with its live state              line      who waits while it is full, and in which order
breaker    when it rests                              reserve   what batch calls leave free for interactive ones
forecasts  what the next call may expect              baseline  its latency without congestion
sharing    what sibling workers know of it
"""

from gateway.tiers.endpoint import Endpoint
from gateway.tiers.queue import SlotRequest
from gateway.tiers.slot import Slot
from gateway.tiers.tier import Tier

__all__ = ["Endpoint", "Slot", "SlotRequest", "Tier"]
