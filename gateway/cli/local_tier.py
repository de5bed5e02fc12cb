"""The local tier's own process: llama.cpp's OpenAI-compatible server, through xllamacpp, on one loopback port.

    python -m gateway.cli.local_tier --gguf FILE --port PORT [--alias NAME] [--context TOKENS] [--slots N]
                                  [--threads N] [--parent PID]

It runs apart from the gateway because inference takes every core it gets, and because a crash in native code must not
take requests with it. Continuous batching, the prompt cache and log-probabilities are on; all else the server offers
(web page, slots, tools) is off. It ends when its parent is not (or no longer) process
PID, by default the parent it had at the start.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

_PROMPT_CACHE_MIB = 64
_PARENT_CHECK_S = 1.0


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line, see the module's docstring."""
    parser = argparse.ArgumentParser(
        prog="python -m gateway.cli.local_tier", description="Serve a GGUF file on loopback."
    )
    parser.add_argument("--gguf", type=Path, required=True, help="the model file")
    parser.add_argument("--port", type=int, required=True, help="the loopback port to listen on")
    parser.add_argument("--alias", default=None, help="the model's name in replies (default: the file's)")
    parser.add_argument("--context", type=int, default=4096, help="tokens per slot")
    parser.add_argument("--slots", type=int, default=4, help="requests generated at the same time")
    parser.add_argument("--threads", type=int, default=None, help="threads that compute (default: llama.cpp's choice)")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="the process to end with")
    return parser.parse_args(argv)


def parameters(args: argparse.Namespace) -> Any:
    """xllamacpp's CommonParams for these arguments."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(args.gguf)
    params.model_alias = {args.alias or args.gguf.stem.lower()}
    params.hostnames = ["127.0.0.1"]
    params.port = args.port
    params.n_parallel = args.slots
    params.n_ctx = args.slots * args.context
    # The key-value cache is nearly all the memory (22.5 KiB a token for SmolLM2-135M). Held as q8_0 it would be half of
    # that, but prompts were then read at 220 instead of 400 tokens/s (two cores), and prompts are what people wait for.
    params.cache_ram_mib = _PROMPT_CACHE_MIB
    if args.threads is not None:
        params.cpuparams.n_threads = args.threads
        params.cpuparams_batch.n_threads = args.threads
    params.ui = False
    params.endpoint_slots = False
    params.endpoint_metrics = True
    params.cors_origins = ""  # no web page has business here
    params.verbosity = 1
    return params


def main(argv: list[str] | None = None) -> int:
    """Serves until the parent is gone or a signal ends the process; nothing of it needs closing."""
    args = parse(argv)
    # OpenMP's threads would spin while they wait for one another, and starve each other as soon as anything else wants
    # the cores: with two busy neighbours on two cores 1-2 tokens/s, against 37-57 when they sleep. Read at import.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import xllamacpp

    try:
        server = xllamacpp.Server(parameters(args))
    except RuntimeError as error:
        sys.stderr.write(f"cannot serve {args.gguf}: {error}\n")
        return 2
    with contextlib.suppress(OSError):  # a log that cannot be written is no reason not to serve
        sys.stderr.write(f"serving {args.gguf} on {server.listening_address}\n")
    while os.getppid() == args.parent:
        time.sleep(_PARENT_CHECK_S)
    os._exit(0)  # the server's threads do not let a normal exit end


if __name__ == "__main__":
    sys.exit(main())
