"""Write labelled answers of public models, to train the scorer of answers: `python -m tools.labelled_answers`.

    git clone https://github.com/WildEval/ZeroEval; git clone https://github.com/TIGER-AI-Lab/MMLU-Pro
    git clone https://github.com/artidoro/qlora
    python -m tools.labelled_answers --zeroeval ZeroEval --mmlu-pro MMLU-Pro --qlora qlora --out answers.jsonl.gz
    tierline fit train scorer --data answers.jsonl.gz --out scorer.json --not-for chat

ZeroEval (Apache-2.0) has answers to GSM8K, MATH (level 5) and CRUXEval, MMLU-Pro (Apache-2.0) to its ten choices, qlora
(MIT) gpt-3.5's answers to OpenAssistant's questions with GPT-4's verdicts beside GPT-4's own. An answer is right if it
ends in what the set gives, and in qlora if the verdicts, in both orders, do not prefer the other.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

Row = tuple[str, str, str, str, str, float]
"""Data set, id, prompt, model, answer, and how right it is."""

_SETS: Final = ("gsm", "math-l5", "crux")
_ZEROEVAL: Final = frozenset({
    "Meta-Llama-3.1-8B-Instruct", "Meta-Llama-3.1-70B-Instruct", "Qwen2.5-7B-Instruct", "Qwen2.5-72B-Instruct",
    "gemma-2-2b-it", "gemma-2-9b-it", "Phi-3.5-mini-instruct", "Yi-1.5-9B-Chat", "Qwen2-7B-Instruct",
    "Qwen2-72B-Instruct", "gpt-4o-mini-2024-07-18", "gpt-4o-2024-08-06", "claude-3-haiku-20240307",
    "claude-3-5-sonnet-20240620",
})  # fmt: skip
_MMLU_PRO: Final = frozenset({
    "Meta-Llama-3_1-8B-Instruct", "Meta-Llama-3_1-70B-Instruct", "Phi-3-mini-4k-instruct", "Qwen1.5-7B-Chat",
    "Qwen1.5-72B-Chat", "Mistral-7B-Instruct-v0.2", "gemini-1.5-flash-002", "gemini-1.5-pro-002",
})  # fmt: skip
_ONE_IN: Final = 5
"""Of MMLU-Pro's questions one in so many is read."""
_GIVEN: Final = re.compile(r'"answer"\s*:\s*("(?:[^"\\]|\\.)*"|[^,}\n]+)')
_REASONED: Final = re.compile(r'"reasoning"\s*:\s*"((?:[^"\\]|\\.)*)"')
_NUMBER: Final = re.compile(r"-?\d[\d,]*\.?\d*")
_JUDGED: Final = "eval/ratings-gpt4/oa/{}-vs-{}-gpt-4-reviewer-threeclass.jsonl"
_SMALL, _LARGE = "gpt-3.5-oa-generations", "gpt-4-oa-generations"


def zeroeval(folder: Path) -> Iterator[Row]:
    """Yield the answers of a checkout of ZeroEval."""
    for name in _SETS:
        for file in sorted((folder / "result_dirs" / name).glob("*.json")):
            for row in json.loads(file.read_bytes()) if file.stem in _ZEROEVAL else ():
                output = row["output"][0] if isinstance(row["output"], list) else row["output"]
                if not isinstance(output, str):
                    continue
                asked = str(row.get("question") or row["chat_history"][0]).split("## Instruction")[0].strip()
                given, reasoned = _GIVEN.search(output), _REASONED.search(output)
                answer = given[1].strip().strip('"') if given else ""
                text = f"{_plain(reasoned[1])}\n{answer}" if given and reasoned else output
                right = float(bool(given) and _same(answer, str(row["answer"]), as_number=name == "gsm"))
                yield f"zeroeval_{name}", str(row["id"]), asked, file.stem, text, right


def mmlu_pro(folder: Path) -> Iterator[Row]:
    """Yield the answers of a checkout of MMLU-Pro."""
    for file in sorted((folder / "eval_results").glob("model_outputs_*_5shots.zip")):
        model = file.stem.removeprefix("model_outputs_").removesuffix("_5shots")
        if model not in _MMLU_PRO:
            continue
        with zipfile.ZipFile(file) as packed:
            for name in sorted(file for file in packed.namelist() if file.endswith(".json") and "__MACOSX" not in file):
                for row in json.loads(packed.read(name)):
                    text = row.get("generated_text") or row.get("model_outputs")
                    if int(row["question_id"]) % _ONE_IN or not isinstance(text, str):
                        continue
                    choices = "\n".join(
                        f"{letter}. {option}" for letter, option in zip("ABCDEFGHIJ", row["options"], strict=False)
                    )
                    right = float(row.get("pred") == row["answer"])
                    yield "mmlu_pro", str(row["question_id"]), f"{row['question']}\n{choices}", model, text, right


def qlora(folder: Path) -> Iterator[Row]:
    """Yield the answers of a checkout of qlora."""
    said: dict[str, list[float]] = defaultdict(list)
    for first, second, large in ((_SMALL, _LARGE, 2), (_LARGE, _SMALL, 1)):
        for row in _lines(folder / _JUDGED.format(first, second)):
            said[row["message_id"]].append(float(row["score"] != large))
    for row in _lines(folder / "eval" / "generations" / "oa" / f"{_SMALL}.jsonl"):
        verdicts = said[row["message_id"]]
        if len(verdicts) == 2:
            asked = row["input"].split("### Human:")[-1].split("### Assistant:")[0].strip()
            yield "qlora_oa", row["message_id"], asked, "gpt-3.5", row["generation"], sum(verdicts) / 2


def main() -> int:
    """Write the file; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prog="python -m tools.labelled_answers",
    )
    readers = {"zeroeval": zeroeval, "mmlu_pro": mmlu_pro, "qlora": qlora}
    for name in readers:
        parser.add_argument(f"--{name.replace('_', '-')}", type=Path, metavar="DIR", help="a checkout of it")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the .jsonl.gz to write")
    args = parser.parse_args()
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for name, read in readers.items():
        folder = getattr(args, name)
        for dataset, number, prompt, model, answer, right in read(folder) if folder else ():
            row = rows.setdefault(
                (dataset, number), {"id": number, "dataset": dataset, "group": "", "prompt": prompt, "models": {}}
            )
            row["models"][model] = {"correct": right, "answer": answer}
        sys.stderr.write(f"{name}: {len(rows)} prompts so far\n")
    with args.out.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        for row in rows.values():
            packed.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    return 0


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from (json.loads(line) for line in file if line.strip())


def _plain(text: str) -> str:
    return text.replace("\\n", "\n").replace('\\"', '"')


def _same(answer: str, expected: str, *, as_number: bool) -> bool:
    if as_number:
        ours, theirs = _NUMBER.findall(answer), _NUMBER.findall(expected)
        return bool(ours and theirs) and float(ours[-1].replace(",", "") or 0) == float(
            theirs[-1].replace(",", "") or 0
        )
    return _bare(answer) == _bare(expected)


def _bare(text: str) -> str:
    return text.replace(" ", "").strip("$'\"")


if __name__ == "__main__":
    sys.exit(main())
