"""`tierline fit collect`, as a user runs it: a scripted model on a real socket is asked, graded and recorded."""

from __future__ import annotations

import gzip
import json
import math
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.main import main
from gateway.parts.fit.commands import _collect_model
from gateway.parts.fit.datasets import read_rows
from gateway.parts.fit.grading import grade
from tests.support.processes import ignoring
from tests.support.upstream import Fault, Reply, Upstream, error_reply

LABELS = Path(__file__).parents[3] / "tools" / "labels"
PROMPTS: list[dict[str, Any]] = [
    {"id": "1", "prompt": "Capital of Italy?", "answers": ["Rome"], "grade": "text", "group": "capitals"},
    {"id": "2", "prompt": "Two and two?", "answers": [4], "grade": "number", "group": "sums"},
    {"id": "3", "prompt": "Is ice cold?", "answers": ["yes"], "grade": "yes_no", "group": "facts"},
]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_collect_model, "_FIRST_PAUSE_S", 0.001)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write(tmp_path / "mine.jsonl", PROMPTS)


@pytest.fixture
def model(upstream: Upstream) -> Upstream:
    """Knows the capital, cannot add, and is right about ice."""
    upstream.on("Italy").reply(tokens=("It", " is", " Rome."), logprob=(-0.5, -0.25, 0.0))
    upstream.on("Two").reply(text="That makes 5.", logprob=-2.0)
    upstream.on("ice").reply(text="Yes", logprob=-0.1)
    return upstream


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def collect(upstream: Upstream, prompts: Path, out: Path, *more: str) -> int:
    where = ("--base-url", upstream.url, "--model", "tiny")
    return main(["fit", "collect", "--prompts", str(prompts), "--out", str(out), "--concurrency", "1", *where, *more])


def asked(upstream: Upstream) -> list[str]:
    return [request.prompt for request in upstream.requests]


def test_each_prompt_becomes_a_labelled_row(model: Upstream, prompts: Path, tmp_path: Path) -> None:
    """Right or wrong, the mean and every log-probability, tokens, time and the answer: a row that `train` reads."""
    out = tmp_path / "rows.jsonl.gz"
    assert collect(model, prompts, out) == 0
    rows = read_rows(out)
    assert [row.answers["tiny"].correct for row in rows] == [1, 0, 1]
    assert [(row.dataset, row.group) for row in rows] == [("mine", "capitals"), ("mine", "sums"), ("mine", "facts")]
    first = rows[0].answers["tiny"]
    assert first.logprobs == (-0.5, -0.25, 0.0)
    assert first.top_logprobs == ((-0.5,), (-0.25,), (0.0,))
    assert first.confidence == pytest.approx(-0.25)
    assert (first.text, first.finish_reason, first.tok_out) == ("It is Rome.", "stop", 3)
    assert first.latency_ms is not None and first.latency_ms > 0
    assert not out.with_name("rows.jsonl.gz.part").exists()


def test_a_backend_of_a_config_is_asked_with_what_it_sets(
    model: Upstream, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its own API, with its key and its fields: labels of another setting would be those of another model."""
    config, out = tmp_path / "tierline.yaml", tmp_path / "rows.jsonl"
    backend = f"{{base_url: '{model.url}', model: tiny, set: {{reasoning_effort: low}}, force: {{seed: 7}}}}"
    config.write_text(f"tiers: [{{name: local, backends: [{backend}]}}]\ncross_encoder: none\n")
    named = ["fit", "collect", "--prompts", str(prompts), "--out", str(out), "--config", str(config), "--backend"]
    assert main([*named, "local"]) == 0
    for request in model.requests:
        assert request.body.items() >= {"model": "tiny", "reasoning_effort": "low", "seed": 7, "temperature": 0}.items()
    assert [row.answers["tiny"].correct for row in read_rows(out)] == [1, 0, 1]
    assert main([*named, "locl", "--resume"]) == 2 and "did you mean" in capsys.readouterr().err
    assert main([*named, "local", "--key-env", "X"]) == 2
    config.write_text(config.read_text().replace("model: tiny", "model: tiny, key_env: NO_SUCH_KEY"))
    capsys.readouterr()
    assert main([*named, "local", "--resume"]) == 2 and "NO_SUCH_KEY is not set" in capsys.readouterr().err


def test_the_model_is_asked_as_a_chat_at_temperature_0(
    model: Upstream, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With five alternatives a token, the limit of the flag, and the key from the variable that is named."""
    monkeypatch.setenv("MY_KEY", "secret")
    flags = ("--max-tokens", "9", "--limit", "1", "--key-env", "MY_KEY")
    assert collect(model, prompts, tmp_path / "rows.jsonl", *flags) == 0
    (request,) = model.requests
    assert request.body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Capital of Italy?"}],
        "temperature": 0,
        "max_tokens": 9,
        "logprobs": True,
        "top_logprobs": 5,
    }
    assert request.headers["authorization"] == "Bearer secret"


def test_what_is_right_may_stand_in_a_file_of_its_own(
    model: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows that other models have labelled keep those labels; a prompt that nothing grades is left out, and counted."""
    labelled = [
        {"id": "1", "dataset": "d", "group": "g", "prompt": "Capital of Italy?", "models": {"big": {"correct": 1}}},
        {"id": "2", "dataset": "d", "group": "g", "prompt": "Two and two?", "models": {"big": {"correct": 1}}},
    ]
    prompts = write(tmp_path / "rows.jsonl", labelled)
    answers = write(tmp_path / "answers.jsonl", [{"id": "1", "answers": ["Rome"], "grade": "text"}])
    assert collect(model, prompts, tmp_path / "out.jsonl", "--answers", str(answers)) == 0
    (row,) = read_rows(tmp_path / "out.jsonl")
    assert {name: answer.correct for name, answer in row.answers.items()} == {"big": 1, "tiny": 1}
    assert "1 prompts are left out" in capsys.readouterr().err


def test_the_rows_of_one_model_are_the_prompts_of_the_next(model: Upstream, prompts: Path, tmp_path: Path) -> None:
    """What was accepted as right is kept in the rows, so that the larger tier can be labelled on them."""
    assert collect(model, prompts, tmp_path / "one.jsonl.gz") == 0
    assert collect(model, tmp_path / "one.jsonl.gz", tmp_path / "two.jsonl.gz", "--model", "large") == 0
    assert all(set(row.answers) == {"tiny", "large"} for row in read_rows(tmp_path / "two.jsonl.gz"))


def test_a_run_that_was_stopped_goes_on(
    model: Upstream, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was answered is kept and not asked again, even after a crash that tore the last line."""
    out = tmp_path / "rows.jsonl.gz"
    refusal = model.on("Two")
    refusal.reply(error_reply(401, "bad key"))
    assert collect(model, prompts, out) == 2
    err = capsys.readouterr().err
    assert "status 401: bad key" in err
    assert "1 of 3 prompts are answered; --resume continues" in err
    assert not out.exists()
    with (tmp_path / "rows.jsonl.gz.part").open("ab") as part:
        part.write(b'{"id": "2", "prom')
    model.on("Two").reply(text="4")
    model.requests.clear()
    assert collect(model, prompts, out, "--resume") == 0
    assert asked(model) == ["Two and two?", "Is ice cold?"]
    assert [row.id for row in read_rows(out)] == ["1", "2", "3"]


def test_earlier_rows_are_never_overwritten(
    model: Upstream, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --resume a file in the way is an error; with it, only prompts that are new are asked."""
    out = tmp_path / "rows.jsonl.gz"
    assert collect(model, prompts, out, "--limit", "2") == 0
    before = out.read_bytes()
    assert collect(model, prompts, out) == 2
    assert "--resume" in capsys.readouterr().err
    assert out.read_bytes() == before
    model.requests.clear()
    assert collect(model, prompts, out, "--resume") == 0
    assert asked(model) == ["Is ice cold?"]


def test_rows_made_of_other_prompts_are_not_gone_on_with(
    model: Upstream, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same id with another prompt is another experiment."""
    out = tmp_path / "rows.jsonl"
    assert collect(model, prompts, out) == 0
    write(prompts, [PROMPTS[0] | {"prompt": "Capital of Spain?"}])
    assert collect(model, prompts, out, "--resume") == 2
    assert "another prompt as '1'" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_its_answers(
    model: Upstream, prompts: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """It ends with 130 and says how much there is, in the background too; the answers so far are on disk."""
    out = tmp_path / "rows.jsonl.gz"
    model.on("Two").reply(fault=Fault.HANG_BEFORE_HEADERS)
    command = [sys.executable, "-m", "gateway", "fit", "collect", "--prompts", str(prompts), "--out", str(out)]
    command += ["--base-url", model.url, "--model", "tiny", "--concurrency", "1"]
    with subprocess.Popen(ignoring([number], command), stderr=subprocess.PIPE, text=True) as process:
        model.wait_for(2, timeout_s=30)
        process.send_signal(number)
        try:
            _, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "1 of 3 prompts are answered; --resume continues" in err
    assert "Traceback" not in err
    (row,) = read_rows(tmp_path / "rows.jsonl.gz.part")
    assert row.id == "1"


def test_a_model_without_logprobs_is_labelled_and_the_lack_is_said(
    upstream: Upstream, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who is right is worth knowing without the log-probabilities; nothing is put in their place."""
    upstream.default = Reply(text="Rome", no_logprobs=True)
    assert collect(upstream, prompts, tmp_path / "rows.jsonl") == 0
    assert "3 answers came without log-probabilities" in capsys.readouterr().err
    answers = [row.answers["tiny"] for row in read_rows(tmp_path / "rows.jsonl")]
    assert [answer.correct for answer in answers] == [1, 0, 0]
    assert all(answer.confidence is None and answer.logprobs is None for answer in answers)


def test_an_endpoint_that_refuses_logprobs_is_asked_without(
    upstream: Upstream, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One refusal is enough to learn it from."""
    upstream.on(lambda request: "logprobs" in request.body).reply(error_reply(400, "logprobs are not supported"))
    assert collect(upstream, prompts, tmp_path / "rows.jsonl") == 0
    assert ["logprobs" in request.body for request in upstream.requests] == [True, False, False, False]
    assert "3 answers came without log-probabilities" in capsys.readouterr().err


def test_a_server_is_asked_as_it_wants_to_be(upstream: Upstream, prompts: Path, tmp_path: Path) -> None:
    """As the gateway asks it: without the fields that its model refuses."""
    refusal = error_reply(400, "Unsupported parameter: 'temperature'", code="unsupported_parameter")
    upstream.on(lambda request: "temperature" in request.body).reply(refusal)
    assert collect(upstream, prompts, tmp_path / "rows.jsonl") == 0
    assert ["temperature" in request.body for request in upstream.requests] == [True, False, False, False]


def test_what_passes_is_waited_for(model: Upstream, prompts: Path, tmp_path: Path) -> None:
    """A busy or restarting endpoint is asked again, after the pause it asks for."""
    model.queue(error_reply(503, "Loading model"), error_reply(429, headers={"retry-after-ms": "5"}))
    assert collect(model, prompts, tmp_path / "rows.jsonl") == 0
    assert asked(model)[:3] == ["Capital of Italy?"] * 3


def test_an_endpoint_that_is_not_there_is_one_clear_line(
    upstream: Upstream, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The URL, and the question whether anything runs there; nothing is left behind that is in the next run's way."""
    upstream.refuse()
    assert collect(upstream, prompts, tmp_path / "rows.jsonl") == 2
    assert f"tierline: no model answers at {upstream.url}" in capsys.readouterr().err
    assert not (tmp_path / "rows.jsonl").exists()
    upstream.accept()
    assert collect(upstream, prompts, tmp_path / "rows.jsonl") == 0


@pytest.mark.parametrize(
    "words",
    [
        "request (5000 tokens) exceeds the available context size (4096 tokens)",
        "max_tokens is too large: 9000. This model supports at most 8192 completion tokens, whereas you provided 9000.",
    ],
)
def test_a_prompt_that_fails_alone_is_left_for_later(
    model: Upstream, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    """The others are labelled, the exit code is 1, and --resume asks for it again."""
    out = tmp_path / "rows.jsonl"
    model.on("Two").reply(error_reply(400, words))
    assert collect(model, prompts, out) == 1
    assert len(model.requests) == 3, "what the model cannot hold is not asked again"
    assert "1 prompts got no answer, --resume asks them again; the first, 2: status 400" in capsys.readouterr().err
    assert [row.id for row in read_rows(out)] == ["1", "3"]
    model.on("Two").reply(text="4")
    assert collect(model, prompts, out, "--resume") == 0
    assert [row.id for row in read_rows(out)] == ["1", "2", "3"]


def test_an_endpoint_that_fails_again_and_again_is_given_up(
    upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five prompts in a row without an answer: the rest would fare no better."""
    many = [PROMPTS[0] | {"id": str(number)} for number in range(50)]
    upstream.default = error_reply(400, "no such model")
    assert collect(upstream, write(tmp_path / "many.jsonl", many), tmp_path / "rows.jsonl") == 2
    assert "failed 5 prompts in a row: status 400: no such model" in capsys.readouterr().err
    assert len(upstream.requests) == 10  # each with log-probabilities, and without


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"id": "1", "prompt": "?", "answers": ["x"], "grade": "letter"}, "grade is 'letter'"),
        ({"id": "1", "prompt": "?", "answers": "x", "grade": "text"}, "answers must be a list"),
        ({"id": "1", "answers": ["x"], "grade": "text"}, "not a prompt"),
        ({"id": "1", "prompt": "?"}, "--answers names a file"),
    ],
)
def test_a_bad_prompt_is_named_by_file_and_line(
    row: dict[str, Any], complaint: str, upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is found before anything is asked."""
    assert collect(upstream, write(tmp_path / "bad.jsonl", [row]), tmp_path / "rows.jsonl") == 2
    err = capsys.readouterr().err
    assert f"{tmp_path}/bad.jsonl" in err
    assert complaint in err
    assert not upstream.requests


def test_the_figures_can_be_had_as_json(
    model: Upstream, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One object on stdout: by data set, how many, how often right, how sure, and how right where surest."""
    assert collect(model, prompts, tmp_path / "rows.jsonl", "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["model"] == "tiny"
    assert figures["datasets"]["mine"] == {
        "n": 3,
        "right": pytest.approx(2 / 3),
        "confidence": pytest.approx(0.6063, abs=1e-3),
        "right_surest_fifth": 1.0,
    }


def test_recorded_answers_are_judged_as_drafts_would_be(
    upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each gets the probability of yes; what the model does not judge keeps its row, and --resume asks only for it."""
    upstream.default = Reply(text="yes", logprob=-0.2)
    upstream.on('"draft":"5"').reply(text="Well", logprob=-0.1)
    row = {"id": "1", "dataset": "d", "group": "d", "prompt": "Two and two?"}
    models: dict[str, Any] = {
        "a": {"correct": 1, "answer": "4"}, "b": {"correct": 0, "answer": "5"}, "c": {"correct": 0}
    }  # fmt: skip
    rows = write(tmp_path / "rows.jsonl", [{**row, "models": models}])
    out = tmp_path / "judged.jsonl.gz"
    assert collect(upstream, rows, out, "--judge", "--of", "a", "b", "--json") == 1
    assert json.loads(capsys.readouterr().out)["judged"] == 1
    [judged] = read_rows(out)
    assert judged.answers["a"].judge == pytest.approx(math.exp(-0.2))
    assert (judged.answers["b"].judge, judged.answers["c"].judge) == (None, None)
    assert [request.body["max_tokens"] for request in upstream.requests] == [1, 1]
    assert collect(upstream, rows, out, "--judge") == 2
    capsys.readouterr()
    assert collect(upstream, rows, tmp_path / "none.jsonl", "--judge", "--of", "d") == 2
    assert "no answers to judge of these models" in capsys.readouterr().err
    for wrong in (["a"], {"a": 5}):
        bad = write(tmp_path / "bad.jsonl", [{**row, "models": wrong}])
        assert collect(upstream, bad, tmp_path / "none.jsonl", "--judge") == 2
        assert "models is an object" in capsys.readouterr().err
    (tmp_path / "none.jsonl.part").write_text('{"row": 7, "model": "a", "judge": 0.5}\n')
    assert collect(upstream, rows, tmp_path / "none.jsonl", "--judge", "--resume") == 2
    assert "is of other prompts" in capsys.readouterr().err
    again = tmp_path / "again.jsonl"
    (tmp_path / "again.jsonl.part").write_text('{"row": 0, "model": "a", "judge": 0.5}\n{"row": 0, "mod')
    assert collect(upstream, rows, again, "--judge", "--of", "a", "--resume") == 0
    assert read_rows(again)[0].answers["a"].judge == 0.5 and len(upstream.requests) == 2


def test_a_url_needs_a_model(prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half an endpoint is a mistake in the command line."""
    command = ["fit", "collect", "--prompts", str(prompts), "--out", str(tmp_path / "rows.jsonl"), "--model", "tiny"]
    assert main(command) == 2
    assert "--base-url and --model go together" in capsys.readouterr().err


@pytest.mark.real_model
@pytest.mark.long
def test_the_shipped_model_is_started_for_the_purpose(prompts: Path, tmp_path: Path) -> None:
    """Without an endpoint the local model is served, asked and stopped."""
    out = tmp_path / "rows.jsonl.gz"
    assert main(["fit", "collect", "--prompts", str(prompts), "--out", str(out), "--max-tokens", "8"]) == 0
    with gzip.open(out, "rt") as file:
        first = json.loads(next(iter(file)))["models"]["smollm2-135m-instruct"]
    ended = first["finish_reason"] == "stop"  # the end of the text is a token of `usage`, and none of the answer
    assert first["tok_out"] - ended == len(first["logprobs"]) == len(first["top_logprobs"])
    assert all(len(token) == 5 for token in first["top_logprobs"])


@pytest.mark.parametrize("file", ["everyday.jsonl", "dev_answers.jsonl"])
def test_the_labels_that_ship_agree_with_their_own_rules(file: str) -> None:
    """Every accepted answer is right by its row's rule, ids are unique, and no answer is a text of its own."""
    rows = [json.loads(line) for line in (LABELS / file).read_text().splitlines()]
    assert len({row["id"] for row in rows}) == len(rows)
    for row in rows:
        assert all(grade(answer, row["answers"], row["grade"]) for answer in row["answers"]), row
        assert all(len(answer) <= 40 for answer in row["answers"]), row
