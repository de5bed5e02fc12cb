"""Hold the live state of tiers and their endpoints, and decide which endpoint a request may call and when.

tier       choose an endpoint for each request        slot          one call in flight and its outcome
endpoint   one backend and its live state             queue         requests that wait for a slot, and their order
breaker    eject an endpoint and admit it again       reserve       slots that batch calls leave to interactive ones
forecasts  expected latency of the next call          baseline      latency without congestion
keep_warm  call idle backends before they grow cold   gossip        exchange endpoint state with sibling workers
                                                      gossip_state  the exchanged state, without I/O
"""

from gateway.tiers.endpoint import Endpoint
from gateway.tiers.queue import SlotRequest
from gateway.tiers.slot import Slot
from gateway.tiers.tier import Tier

__all__ = ["Endpoint", "Slot", "SlotRequest", "Tier"]
