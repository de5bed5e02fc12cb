"""Recognise errors that mean the request exceeds the model's context length or longest reply.

    llama.cpp  400  "request (8720 tokens) exceeds the available context size (4096 tokens)", exceed_context_size_error
               500  "Context size has been exceeded.", in the middle of a reply too
    OpenAI     400  "This model's maximum context length is 4097 tokens. However, ...", context_length_exceeded
    vLLM       400  "This model's maximum context length is ..."; "... is longer than the maximum model length of ..."
    SGLang     400  "The input (5000 tokens) is longer than the model's context length (4096 tokens)."
    TGI        422  "`inputs` tokens + `max_new_tokens` must be <= 4096"; "`inputs` must have less than 4096 tokens"
    Ollama     400  "the input length exceeds the context length"; "prompt too long; exceeded max context length by ..."
                    (if configured; by default it cuts off the prompt's beginning without an error)
    LM Studio  400  "... is greater than the context length"; "... loaded with context length of only 4096 tokens"
    Anthropic  400  "prompt is too long: 208310 tokens > 200000 maximum"; "... exceed context limit: ..."
    Gemini     400  "The input token count (1200000) exceeds the maximum number of tokens allowed (1048575)."
    Bedrock    400  "Input is too long for requested model."
    Mistral    400  "Prompt contains 40000 tokens, too large for model with 32768 maximum context length"
    xAI        400  "This model's maximum prompt length is 131072 but the request contains 537812 tokens."
    Kimi       400  "Your request exceeded model token limit: 262144 (requested: 270000)"
    Alibaba    400  "Range of input length should be [1, 129024]"; "Range of max_tokens should be [1, 8192]"
    Copilot    400  "prompt token count of 140000 exceeds the limit of 128000", model_max_prompt_tokens_exceeded

The whole body is searched for these texts, because not all of these send OpenAI's error object.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.dialects.told_lengths import OUTPUT

_STATUSES: Final = frozenset({400, 413, 422, 500})
"""Statuses of such errors; proxies send 413 too. 429 is not one: it means too many tokens per minute, not too long."""
_SAYS_SO: Final = re.compile(
    rb"context_length_exceeded|exceed_context_size_error|context_window_exceeded|max_prompt_tokens_exceeded"
    rb"|contextwindowexceeded"
    rb"|(?:maximum|max) (?:context|prompt|model|input) (?:length|size|window)"
    rb"|exceeds? the (?:available |model's )?context (?:size|length|window)"
    rb"|context (?:size|length|window) (?:has been )?exceed(?:ed|s)"
    rb"|(?:longer|greater) than the (?:model's )?context length|exceed(?:s|ed)? context limit"
    rb"|context length of only|exceed(?:s|ed)? (?:the )?model(?:'s)? token limit"
    rb"|(?:prompt|input|message)s? (?:is |are )?too long|too many tokens: total"
    rb"|input token count .{0,40}exceeds the maximum"
    rb"|(?:prompt|input)(?: length| token count of)?(?: \d{1,9}| \(\d{1,9} tokens\))? exceeds (?:max|the limit|the max)"
    rb"|range of input length|maximum allowed (?:token size|input)"
    rb"|`inputs` (?:tokens )?.{0,40}must (?:be <=|have less than)"
    rb"|'max_tokens' or 'max_completion_tokens' is too large",
    re.IGNORECASE,
)
_LOOKED_AT: Final = 4096


def says_too_long(status: int, body: bytes) -> bool:
    """Return whether an error of this status and body means that the request exceeds the model's context length."""
    return status in _STATUSES and _SAYS_SO.search(body, 0, _LOOKED_AT) is not None


def says_most_output(status: int, body: bytes) -> bool:
    """Return whether an error of this status and body names the longest reply of the model."""
    return status in _STATUSES and OUTPUT.search(body, 0, _LOOKED_AT) is not None
