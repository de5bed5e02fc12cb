"""Recognise errors that mean the request exceeds the model's context length.

    llama.cpp  400  "request (8720 tokens) exceeds the available context size (4096 tokens)", exceed_context_size_error
               500  "Context size has been exceeded.", in the middle of a reply too
    OpenAI     400  "This model's maximum context length is 4097 tokens. However, ...", context_length_exceeded
    vLLM       400  "This model's maximum context length is ..."; "... is longer than the maximum model length of ..."
    SGLang     400  "The input (5000 tokens) is longer than the model's context length (4096 tokens)."
    TGI        422  "`inputs` tokens + `max_new_tokens` must be <= 4096"; "`inputs` must have less than 4096 tokens"
    Ollama     400  "the input length exceeds the context length"; "prompt too long; exceeded max context length by ..."
                    (if configured; by default it cuts off the prompt's beginning without an error)
    LM Studio  400  "... is greater than the context length"
    Anthropic  400  "prompt is too long: 208310 tokens > 200000 maximum"; "... exceed context limit: ..."
    Gemini     400  "The input token count (1200000) exceeds the maximum number of tokens allowed (1048575)."
    Bedrock    400  "Input is too long for requested model."
    Mistral    400  "Prompt contains 40000 tokens, too large for model with 32768 maximum context length"
    xAI        400  "This model's maximum prompt length is 131072 but the request contains 537812 tokens."

The whole body is searched for these texts, because not all of these send OpenAI's error object.
"""

from __future__ import annotations

import re
from typing import Final

_STATUSES: Final = frozenset({400, 413, 422, 500})
"""Statuses of such errors; proxies send 413 too. 429 is not one: it means too many tokens per minute, not too long."""
_SAYS_SO: Final = re.compile(
    rb"context_length_exceeded|exceed_context_size_error|context_window_exceeded"
    rb"|(?:maximum|max) (?:context|prompt|model) length"
    rb"|exceeds? the (?:available )?context (?:size|length|window)"
    rb"|context (?:size|length|window) (?:has been )?exceeded"
    rb"|(?:longer|greater) than the (?:model's )?context length|exceed context limit"
    rb"|prompt (?:is )?too long|input is too long|input token count .{0,40}exceeds the maximum"
    rb"|`inputs` (?:tokens )?.{0,40}must (?:be <=|have less than)",
    re.IGNORECASE,
)
_LOOKED_AT: Final = 4096


def says_too_long(status: int, body: bytes) -> bool:
    """Return whether an error of this status and body means that the request exceeds the model's context length."""
    return status in _STATUSES and _SAYS_SO.search(body, 0, _LOOKED_AT) is not None
