"""What the config says of the local model reaches llama.cpp, which says so in its own log."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.config.loader import default_config, load_deployment
from gateway.parts.local import CannotStart
from gateway.parts.local.config import LocalModel
from gateway.parts.local.local_model import find_gguf, local_child
from gateway.parts.local.state import claimed_folder, free_port
from policies.errors import ConfigError

_LOAD = """
import sys, xllamacpp
from gateway.parts.local import local_tier
params = local_tier.parameters(local_tier.parse_options(sys.argv[1:]))
params.verbosity, params.warmup = 4, False
server = xllamacpp.Server(params)
sys.stdin.read()
"""
_LAST = "listening on"
"""In the last line that llama.cpp logs of a start. It logs in a thread of its own, after the call has returned."""


def log_of(*options: str) -> str:
    """What llama.cpp logs until it has loaded the shipped model with these options, or refused to."""
    argv = [sys.executable, "-c", _LOAD, "--gguf", str(find_gguf(None)[0]), "--port", str(free_port())]
    argv += ["--slots", "1", "--context", "512", *options]
    said: list[str] = []
    with subprocess.Popen(
        argv,
        env={**os.environ, "LLAMA_API_KEY": "k"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as child:
        overdue = threading.Timer(120, child.kill)
        overdue.start()
        for line in child.stdout or ():
            said.append(line)
            if _LAST in line:
                break
        overdue.cancel()
        child.kill()
    return "".join(said)


@pytest.mark.real_model
@pytest.mark.parametrize(
    ("options", "logged"),
    [
        ((), ["K (f16):", "flash_attn            = auto"]),
        (
            ("--kv-cache", "q8_0", "--flash-attention", "enabled"),
            ["K (q8_0):", "flash_attn            = enabled"],
        ),
        (("--flash-attention", "disabled"), ["flash_attn            = disabled"]),
        (("--speculate", "ngram"), ["adding speculative implementation 'ngram-simple'"]),
        (("--draft", "SHIPPED"), ["loading draft model", "adding speculative implementation 'draft-simple'"]),
        (("--gpu-layers", "4"), ["llama.cpp sees no GPU here"]),
    ],
)
def test_each_option_reaches_the_engine(options: Sequence[str], logged: Sequence[str]) -> None:
    """By what llama.cpp itself says as it loads; layers for a GPU that is not there are refused."""
    said = log_of(*(str(find_gguf(None)[0]) if one == "SHIPPED" else one for one in options))
    assert [line for line in logged if line not in said] == []
    assert ("speculative implementation" in said) == (options[:1] in (("--speculate",), ("--draft",)))


def test_the_config_says_what_the_child_is_started_with(tmp_path: Path) -> None:
    """Only what is not llama.cpp's default, and a draft that is no model is refused before anything starts."""
    assert LocalModel().engine_options == ()
    model = LocalModel.model_validate(
        {"kv_cache": "q8_0", "speculate": "ngram", "gpu_layers": 0, "flash_attention": "enabled"}
    )
    wanted = ("--gpu-layers", "0", "--kv-cache", "q8_0", "--flash-attention", "enabled", "--speculate", "ngram")
    assert model.engine_options == wanted
    with claimed_folder(tmp_path / "state") as state:
        argv = local_child(model, state)[0].argv
        assert argv[argv.index("--gpu-layers") :][: len(wanted)] == wanted
        (tmp_path / "draft.gguf").write_bytes(b"none")
        with pytest.raises(CannotStart, match=r"local_model\.draft: .*is not a GGUF file"):
            local_child(model.model_copy(update={"draft": tmp_path / "draft.gguf"}), state)


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("{kv_cache: q9}", "local_model.kv_cache"),
        ("{speculate: lookahead}", "local_model.speculate"),
        ("{draft: nowhere.gguf}", "local_model.draft: no such file"),
        ("{kv_cache: q8_0, flash_attention: disabled}", "q8_0 only with flash attention"),
        ("{gpu_layers: -1}", "local_model.gpu_layers"),
    ],
)
def test_what_llama_cpp_cannot_do_is_refused_when_the_config_is_read(tmp_path: Path, written: str, why: str) -> None:
    """With the key, and before a model is loaded."""
    file = tmp_path / "tierline.yaml"
    file.write_text(f"tiers: [{{name: local, backends: [{{model: m}}]}}]\nlocal_model: {written}\n")
    with pytest.raises(ConfigError) as error:
        load_deployment(file, {})
    assert why in str(error.value)


def test_check_shows_how_the_model_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where it is not llama.cpp's default, beside the tier that it is."""
    file = tmp_path / "tierline.yaml"
    written = default_config().read_text()
    assert main(["check", "--config", str(default_config())]) == 0
    assert "engine " not in capsys.readouterr().out
    file.write_text(written + "local_model: {kv_cache: q8_0, speculate: ngram}\n")
    assert main(["check", "--config", str(file)]) == 0
    assert "engine   local          kv-cache q8_0 speculate ngram\n" in capsys.readouterr().out


def test_check_says_what_speculation_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the log-probabilities of the model's answers are asked for."""
    file = tmp_path / "tierline.yaml"
    written = default_config().read_text() + "local_model: {speculate: ngram}\n"
    for config, said in ((written, True), (written.replace("logprobs: true", "logprobs: false", 1), False)):
        file.write_text(config)
        assert main(["check", "--config", str(file)]) == 0
        out = capsys.readouterr()
        assert ("local_model.speculate: llama.cpp tells no log-probability" in out.out + out.err) == said
