"""The bench of what is learnt from own labels: it tells a learnable set from one whose sources alone differ."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path

from tests.bench.learn_chat import SETS


def test_it_says_what_is_learnt_and_what_a_table_knows(tmp_path: Path) -> None:
    """On prompts whose topic decides within one source, the choice is above the table, which is near chance."""
    chance = random.Random(1)
    topics = {"soups of cooked potatoes": 1.0, "orbits of remote planets": 0.0}
    for name, (small, strong) in SETS.items():
        with gzip.open(tmp_path / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            for number in range(160):
                topic = chance.choice(list(topics))
                likely = 0.2 + 0.6 * topics[topic]
                models = {model: {"correct": float(chance.random() < likely)} for model in small}
                models[strong] = {"correct": 1.0}
                prompt = f"Tell me about {topic}, part {chance.randrange(10, 99)}."
                row = {"id": f"{name}/{number}", "group": "one", "prompt": prompt, "models": models}
                file.write(json.dumps(row) + "\n")
    words = [sys.executable, "-m", "tests.bench.learn_chat", "--data", str(tmp_path), "--seeds", "1", "--json"]
    done = subprocess.run([*words, "--labels", "80", "--no-single"], capture_output=True, text=True, check=True)
    printed = json.loads(done.stdout)
    assert printed.keys() == SETS.keys()
    for result in printed.values():
        figures = result["figures"]
        assert figures["chosen"]["auroc"]["value"] > 0.75 > 0.7 > figures["table"]["auroc"]["value"]
        assert sum(result["chosen"].values()) == 1


def test_it_names_the_set_that_is_missing(tmp_path: Path) -> None:
    """Without the data it ends with one line, not with a traceback."""
    words = [sys.executable, "-m", "tests.bench.learn_chat", "--data", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "alpaca_eval1.jsonl.gz is not there" in done.stderr
    assert "Traceback" not in done.stderr
