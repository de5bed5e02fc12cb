"""Define the config of alerts: at which shares of a budget somebody is told, and by which webhook."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from gateway.config.addresses import check_http_url
from policies.validation import Section, Share


def _url(url: str) -> str:
    check_http_url(url)
    return url


class AlertsConfig(Section):
    """Shares of budgets that are told of, once each in every window; without a `webhook` only metrics tell."""

    webhook: Annotated[str, AfterValidator(_url)] | None = None
    """URL that alerts are sent to (POST), signed as Standard Webhooks defines it."""
    secret_env: Annotated[str, Field(min_length=1)] | None = None
    """Variable with the secret that signs them: a text, or `whsec_` and a key in base64."""
    shares: tuple[Share, ...] = (0.5, 0.8, 1.0)
    secret: SecretStr | None = None
    """The secret itself, set by the loader."""

    @field_validator("shares")
    @classmethod
    def _above_nothing(cls, shares: tuple[float, ...]) -> tuple[float, ...]:
        if not all(shares):
            raise ValueError("a share is above 0% and up to 100%; leave the list empty for no alerts")
        return tuple(sorted(set(shares)))

    @model_validator(mode="after")
    def _is_signed(self) -> Self:
        if (self.webhook is None) != (self.secret_env is None):
            raise ValueError("a webhook is signed: give both webhook and secret_env")
        return self
