"""Hugging Face ``datasets`` loads what is exported, JSON lines and parquet with the same columns and types (A6)."""

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from driving import environment
from exporting import OPENING, Results, conversation
from recording import Talk, answered, assistant, calling, user

LOAD = """
import json, sys
from datasets import load_dataset
out = []
for kind, file in (("json", sys.argv[1]), ("parquet", sys.argv[2])):
    data = load_dataset(kind, data_files=file, split="train", cache_dir=sys.argv[3])
    out.append([str(data.features), list(data)])
print(json.dumps(out))
"""


def load(results: Results, folder: Path, *arguments: str) -> tuple[tuple[str, list[object]], tuple[str, list[object]]]:
    """(features, rows) of the JSON lines and of the parquet file; without any network."""
    files = [folder / "x.jsonl", folder / "x.parquet"]
    for file in files:
        shown = results.export(*arguments, "--output", str(file))
        assert shown.returncode == 0, shown.stderr
    line = [sys.executable, "-c", LOAD, *map(str, files), str(folder / "cache")]
    offline = environment() | {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "home"),
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }
    ended = subprocess.run(line, env=offline, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    json_, parquet = orjson.loads(ended.stdout)
    return (json_[0], json_[1]), (parquet[0], parquet[1])


def odd(talk: Talk) -> None:
    """Letters that are hard to write, no content, no tools, no finish_reason."""
    reply = answered(
        assistant(None, tool_calls=calling("f", "{}")), prompt_ids=[1], response_ids=[2], finish_reason=None
    )
    talk.ask([user("\ud83d\x00\u2028ü"), *OPENING], reply)


@pytest.mark.parametrize("arguments", [("--format", "messages"), ("--format", "tokens")])
@pytest.mark.parametrize("scripts", [[conversation], [odd], [conversation, odd]])
def test_both_kinds_of_files_load_alike(
    results: Results, tmp_path: Path, arguments: tuple[str, ...], scripts: list[object]
) -> None:
    """Whatever rows there are, types are the same: shards can be put together."""
    for number, script in enumerate(scripts):
        results.play("a", number, True, script)  # type: ignore[arg-type] # one of the functions above
    from_lines, from_parquet = load(results, tmp_path, *arguments)
    assert from_lines == from_parquet
    features, rows = from_lines
    assert len(rows) == len(scripts)
    assert "null" not in features
    assert "Json" not in features


def test_logprobs_load_too(tmp_path: Path) -> None:
    results = Results(tmp_path, ["a"], RECORD_LOGPROBS="1")
    results.play("a", 0, True, conversation, logprobs=True)
    from_lines, from_parquet = load(results, tmp_path, "--format", "tokens")
    assert from_lines == from_parquet
    assert "'logprobs': List(Value('float64'))" in from_lines[0]
