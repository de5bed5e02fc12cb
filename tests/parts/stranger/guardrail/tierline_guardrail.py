"""Ask a webhook whether a chat may be answered, before any cache or model is asked."""

import httpx2

from tierline.gateway.config.sections import Sections
from tierline.gateway.errors import Forbidden, Overloaded
from tierline.gateway.request.context import RequestContext
from tierline.gateway.steps import Core
from tierline.policies.validation import Seconds, Section

PROVIDES = ("admission",)


class GuardrailConfig(Section):
    url: str | None = None
    within: Seconds = 0.5


class SECTIONS(Sections):
    guardrail: GuardrailConfig = GuardrailConfig()


def build_admissions(core: Core) -> "tuple[Guardrail, ...]":
    config = core.deployment.of(SECTIONS).guardrail
    return () if config.url is None else (Guardrail(config.url, config.within),)


class Guardrail:
    name = "guardrail"

    def __init__(self, url: str, within_s: float) -> None:
        self._url, self._client = url, httpx2.AsyncClient(timeout=within_s)

    async def enter(self, request: RequestContext) -> RequestContext:
        hop = request.trace.begin("guardrail")
        try:
            asked = {"tenant": request.tenant, "surface": request.policy.surface, "text": request.features.text}
            verdict = (await self._client.post(self._url, json=asked)).raise_for_status().json()
        except (httpx2.HTTPError, ValueError):
            raise Overloaded("The guardrail does not answer. Send the request again.") from None
        finally:
            hop.end()
        if not verdict.get("allowed"):
            raise Forbidden(verdict.get("reason", "The guardrail refuses this."), code="refused_by_guardrail")
        return request

    async def aclose(self) -> None:
        await self._client.aclose()
