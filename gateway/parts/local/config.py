"""Define the config of the model that `tierline up` starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from gateway.config.notations import Count, OptionalPath
from gateway.config.resolver import Resolver
from gateway.config.schema import Deployment
from gateway.config.sections import Sections
from gateway.parts.local.gguf_header import NO_TEMPLATE, lacks_chat_template
from policies.errors import Finding
from policies.validation import Section, Whole, raise_findings

KvCache = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]


class LocalModel(Section):
    """Model that `tierline up` serves with llama.cpp for a backend without a URL. `tierline serve` ignores this."""

    gguf: OptionalPath = None
    """Path of a GGUF file; None for the model that ships with Tierline."""
    context: Annotated[Whole, Field(ge=256)] = 4096
    """Context length in tokens, per slot."""
    slots: Annotated[Whole, Field(ge=1, le=64)] = 4
    """Requests served at the same time."""
    threads: Count | None = None
    """CPU threads; None for llama.cpp's default."""
    gpu_layers: Annotated[Whole, Field(ge=0)] | None = None
    """Layers that a GPU holds; None for as many as fit. It does not start with more than 0 where llama.cpp has none."""
    kv_cache: KvCache = "f16"
    """Type of the key-value cache's numbers."""
    flash_attention: Literal["auto", "enabled", "disabled"] = "auto"
    speculate: Literal["none", "ngram"] = "none"
    """Whether tokens are proposed, of which the model then reads several at a time: `ngram` proposes what followed the
    same three tokens before. Answers at temperature 0 stay the same."""
    draft: OptionalPath = None
    """Path of a smaller GGUF model with the same tokens that proposes them, too."""

    @model_validator(mode="after")
    def _small_cache_needs_flash_attention(self) -> LocalModel:
        if self.flash_attention == "disabled" and self.kv_cache not in ("f32", "f16", "bf16"):
            message = f"llama.cpp keeps {self.kv_cache} only with flash attention; write auto, or kv_cache: f16"
            raise_findings([Finding(("flash_attention",), message)])
        return self

    @property
    def engine_options(self) -> tuple[str, ...]:
        """The arguments of `parts.local.local_tier` that say how llama.cpp runs it, where they are not its defaults."""
        said = {
            "--threads": self.threads, "--gpu-layers": self.gpu_layers, "--kv-cache": self.kv_cache,
            "--flash-attention": self.flash_attention, "--speculate": self.speculate, "--draft": self.draft,
        }  # fmt: skip
        defaults = (None, "f16", "auto", "none")
        return tuple(part for name, value in said.items() if value not in defaults for part in (name, str(value)))


class LocalSections(Sections):
    """The config's section `local_model`."""

    local_model: LocalModel = LocalModel()

    @classmethod
    def resolve(cls, deployment: Deployment, resolver: Resolver) -> Mapping[str, object]:
        """Return the section with absolute paths."""
        model = deployment.of(cls).local_model
        files = {"gguf": model.gguf, "draft": model.draft}
        found = {name: resolver.existing(("local_model", name), file) for name, file in files.items()}
        return {"local_model": model.model_copy(update=found)}

    @classmethod
    def doubts(cls, deployment: Deployment) -> Iterator[Finding]:
        """Warn about a model that has no chat template."""
        gguf = deployment.of(cls).local_model.gguf
        if gguf is not None and lacks_chat_template(gguf):
            yield Finding(("local_model", "gguf"), f"{gguf.name} {NO_TEMPLATE}")

    @classmethod
    def summary(cls, deployment: Deployment) -> Iterator[str]:
        """Yield how llama.cpp runs the model, where that is not its default, for each tier that it serves."""
        options = " ".join(deployment.of(cls).local_model.engine_options).replace("--", "")
        for tier in deployment.tiers:
            if options and any(backend.wants_local_model for backend in tier.backends):
                yield f"engine   {tier.name:<14} {options}"


SECTIONS: Final = LocalSections
