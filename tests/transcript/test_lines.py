"""transcript.jsonl: nothing that was said is lost, each message stands there once (A6)."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rolloutgen.transcript.lines import Transcript, read
from rolloutgen.transcript.reader import read_messages

HELLO = {"role": "user", "content": "hello"}
ANSWER = {"role": "assistant", "content": "ls \ud83d"}


async def test_messages_are_put_together_again(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    with Transcript(path) as transcript:
        transcript.write("start", messages=[HELLO], schema_version=1)
        await transcript.sync()
        transcript.write("reply", messages=[ANSWER], turn=1)
        transcript.write("end", ending="done")
    assert read_messages(path) == [HELLO, ANSWER]
    assert [line["type"] for line in read(path)] == ["start", "reply", "end"]
    assert all("at" in line for line in read(path))


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    with Transcript(path) as transcript:
        transcript.write("start", messages=[HELLO])
        transcript.write("reply", messages=[ANSWER])
    whole = path.read_bytes()
    second = whole.index(b"\n") + 1
    for cut in range(second, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert read_messages(path) == [HELLO]
    path.write_bytes(whole[:-1])
    assert read_messages(path) == [HELLO, ANSWER]


def test_other_damage_is_loud(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    path.write_text('{"type": "start"}\n{"torn\n{"type": "end"}\n')
    with pytest.raises(ValueError, match=r"transcript.jsonl:2"):
        list(read(path))


def test_an_older_transcript_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    path.write_text("old")
    with pytest.raises(FileExistsError):
        Transcript(path)
    assert path.read_text() == "old"


def test_a_killed_process_loses_nothing_that_it_wrote(repository: Path, tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    code = f"""
import os, signal
from pathlib import Path
from rolloutgen.transcript.lines import Transcript
transcript = Transcript(Path({str(path)!r}))
for number in range(100):
    transcript.write("reply", messages=[{{"role": "assistant", "content": "x" * number}}])
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = os.environ | {"PYTHONPATH": str(repository / "src")}
    ended = subprocess.run([sys.executable, "-c", code], check=False, env=environment)
    assert ended.returncode == -signal.SIGKILL
    assert [len(message["content"]) for message in read_messages(path)] == list(range(100))


def test_lines_are_json_that_others_can_read(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    with Transcript(path) as transcript:
        transcript.write("reply", messages=[{"role": "assistant", "content": "zwei\nZeilen\u2028ü\x00"}])
    (line,) = path.read_bytes().splitlines()
    assert json.loads(line)["messages"][0]["content"] == "zwei\nZeilen\u2028ü\x00"
