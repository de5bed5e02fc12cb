"""Hold the live state of tiers and their endpoints, and decide which endpoint a request may call and when.

tier       choose an endpoint for each request        endpoint   one backend and its live state
slot       one call in flight, the queue for slots    breaker    eject an endpoint and admit it again

How many calls may be in flight, and how long the next one takes, is in `routing.load`.
"""

from gateway.tiers.endpoint import Endpoint
from gateway.tiers.slot import Slot, SlotRequest
from gateway.tiers.tier import Tier

__all__ = ["Endpoint", "Slot", "SlotRequest", "Tier"]
