"""Define the config of the responses that are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.config.notations import Count, Size
from gateway.config.schema import Deployment, StoreQuota
from gateway.config.sections import Sections


class ResponsesConfig(StoreQuota):
    """Quota of each tenant's kept responses; beyond it, those that would end first are removed."""

    entries: Count = 20_000
    """Most responses."""
    bytes: Size = 256 << 20
    """Most bytes of all of them, with what they were given."""
    background: Count = 32
    """Most that run in the background at once, of each tenant in each worker."""


class ApiSections(Sections):
    """The section of the config that this part reads."""

    responses: ResponsesConfig = ResponsesConfig()

    @classmethod
    def quotas(cls, deployment: Deployment) -> Mapping[str, StoreQuota]:
        """Return the quota of kept responses."""
        return {"responses": deployment.of(cls).responses}


SECTIONS: Final = ApiSections
