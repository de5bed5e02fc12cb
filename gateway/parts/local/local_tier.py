"""Serve a GGUF model in a process of its own: llama.cpp's OpenAI-compatible server (xllamacpp) on a loopback port.

    python -m gateway.parts.local.local_tier --gguf FILE --port PORT [--alias NAME] [--context TOKENS] [--slots N]
                                  [--threads N] [--parent PID] [--gpu-layers N] [--kv-cache TYPE]
                                  [--flash-attention auto|enabled|disabled] [--speculate ngram] [--draft FILE]

Requests have to carry the key in the variable LLAMA_API_KEY, as `Authorization: Bearer KEY`, because every user and
every web page of this machine reaches the port. Only `/health` is answered without it.

It runs apart from the gateway because inference uses every core it gets, and so that a crash in native code does not
end the gateway. Continuous batching, the prompt cache and log-probabilities are on; the server's other features (web
page, slots endpoint, tools) are off. It ends as soon as its parent is not process PID, by default the parent at its
start.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

_KEY = "LLAMA_API_KEY"
_PROMPT_CACHE_MIB = 64
_PARENT_CHECK_S = 1.0
_FLASH_ATTENTION = {"auto": -1, "disabled": 0, "enabled": 1}
_NGRAM = 3, 8
"""How many tokens must have occurred before in the same order, and how many of those that followed are proposed."""


def parse_options(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line; see the module's docstring."""
    parser = argparse.ArgumentParser(
        prog="python -m gateway.parts.local.local_tier", description="Serve a GGUF model file on a loopback port."
    )
    parser.add_argument("--gguf", type=Path, required=True, help="the model file")
    parser.add_argument("--port", type=int, required=True, help="the loopback port to listen on")
    parser.add_argument("--alias", default=None, help="the model's name in replies (default: the file's name)")
    parser.add_argument("--context", type=int, default=4096, help="context length in tokens, per slot")
    parser.add_argument("--slots", type=int, default=4, help="number of requests served at the same time")
    parser.add_argument("--threads", type=int, default=None, help="number of CPU threads (default: llama.cpp's choice)")
    parser.add_argument("--gpu-layers", type=int, default=None, help="layers that a GPU holds (default: all that fit)")
    parser.add_argument("--kv-cache", default="f16", help="type of the key-value cache, such as q8_0")
    parser.add_argument("--flash-attention", default="auto", choices=("auto", "enabled", "disabled"))
    parser.add_argument("--speculate", default="none", choices=("none", "ngram"), help="how tokens are proposed")
    parser.add_argument("--draft", type=Path, default=None, help="a smaller model file that proposes tokens")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="process id; end when that process ends")
    return parser.parse_args(argv)


def parameters(args: argparse.Namespace) -> Any:
    """Return xllamacpp's CommonParams for these arguments. Raises ValueError for layers of a GPU that is not there."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(args.gguf)
    params.model_alias = {args.alias or args.gguf.stem.lower()}
    params.hostnames = ["127.0.0.1"]
    params.port = args.port
    params.api_keys = [os.environ[_KEY]]
    params.n_parallel = args.slots
    params.n_ctx = args.slots * args.context
    # The key-value cache takes nearly all the memory (22.5 KiB a token for SmolLM2-135M). As q8_0 it would take half,
    # but prompts were then processed at 220 instead of 400 tokens/s (two cores), which delays the first token.
    params.cache_ram_mib = _PROMPT_CACHE_MIB
    if args.threads is not None:
        params.cpuparams.n_threads = args.threads
        params.cpuparams_batch.n_threads = args.threads
    if args.gpu_layers is not None:
        cpu = xllamacpp.ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_CPU
        if args.gpu_layers and all(device["type"] == cpu for device in xllamacpp.get_device_info()):
            raise ValueError(
                "llama.cpp sees no GPU here; leave gpu_layers out, or install an xllamacpp that was built for it"
            )
        params.n_gpu_layers = args.gpu_layers
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type[f"GGML_TYPE_{args.kv_cache.upper()}"]
    params.flash_attn_type = xllamacpp.llama_flash_attn_type(_FLASH_ATTENTION[args.flash_attention])
    _speculate(params, args)
    params.ui = False
    params.endpoint_slots = False
    params.endpoint_metrics = True
    params.cors_origins = ""  # no web page may call it
    params.verbosity = 1
    return params


def _speculate(params: Any, args: argparse.Namespace) -> None:
    import xllamacpp

    kinds, types = xllamacpp.common_speculative_type, []
    if args.speculate == "ngram":
        types.append(kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE)
        params.speculative.ngram_simple.size_n, params.speculative.ngram_simple.size_m = _NGRAM
    if args.draft is not None:
        types.append(kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE)
        params.speculative.draft.mparams.path = str(args.draft)
    if types:
        params.speculative.types = types


def main(argv: list[str] | None = None) -> int:
    """Serve until the parent ends or a signal ends this process; return 2 without a key or a model that loads."""
    args = parse_options(argv)
    if not os.environ.get(_KEY):
        sys.stderr.write(f"{_KEY} is not set; set it to the key that requests have to carry\n")
        return 2
    # By default OpenMP's threads spin while they wait for one another, and starve each other when other processes use
    # the cores: with two busy neighbours on two cores 1-2 tokens/s, against 37-57 when they sleep. Read at import.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import xllamacpp

    try:
        server = xllamacpp.Server(parameters(args))
    except (RuntimeError, ValueError) as error:
        sys.stderr.write(f"cannot serve {args.gguf}: {error}\n")
        return 2
    with contextlib.suppress(OSError):  # serve even if the log cannot be written
        sys.stderr.write(f"serving {args.gguf} on {server.listening_address}\n")
    while os.getppid() == args.parent:
        time.sleep(_PARENT_CHECK_S)
    os._exit(0)  # a normal exit would wait for the server's threads for ever


if __name__ == "__main__":
    sys.exit(main())
