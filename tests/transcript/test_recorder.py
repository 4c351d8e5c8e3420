"""transcript.jsonl of an agent with a model: whole, small, safe against kills (A6)."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recording import Talk, answered, assistant, system, user
from rolloutgen.transcript.lines import read
from rolloutgen.transcript.reader import UNFINISHED, read_calls, read_messages
from rolloutgen.transcript.recorder import Recorder

OPENING = [system("s"), user("task")]


def grown(path: Path, turns: int, *, fresh: bool = False, changed: bool = False, text: bool = False) -> int:
    """Bytes of a transcript of so many turns; ``fresh``: the first message is another one in every call; ``changed``:
    replies come back in another form; ``text``: completions."""
    talk, history, ids, prompt = Talk(path), [*OPENING], [1], "task"
    for turn in range(turns):
        said = f"command {turn} " + "x" * 200
        if fresh:
            history[0] = system(f"it is {turn} o'clock")
            ids = [*range(turn, turn + 5 + turn % 3), *ids[5 + (turn - 1) % 3 :]]
            prompt = f"it is {turn} o'clock. {prompt.partition('. ')[2] or prompt}"
        reply = answered(assistant(said, reasoning="hm"), prompt_ids=ids, response_ids=[turn] * 20)
        if text:
            talk.complete(prompt, said, prompt_ids=ids, response_ids=[turn] * 20)
        else:
            talk.ask(history, reply, tools=[{"type": "function", "function": {"name": "f" * 500}}])
        history += [assistant(f" {said}" if changed else said, reasoning="hm"), user(f"seen {turn} " + "y" * 200)]
        ids = [*ids, *[turn] * 20, *[turn + 1] * 20]
        prompt += f"{said}\nseen {turn}\n"
    talk.recorder.close({"ending": "done"})
    assert (talk.calls[-1].prompt() or "") in prompt
    return path.stat().st_size


@pytest.mark.parametrize(
    "kind", [{}, {"fresh": True}, {"changed": True}, {"text": True}, {"text": True, "fresh": True}]
)
def test_a_transcript_grows_with_its_conversation(tmp_path: Path, kind: dict[str, bool]) -> None:
    """Not with its square: the second hundred turns take what the first took, but for longer numbers."""
    half, whole = (grown(tmp_path / str(turns), turns, **kind) for turns in (100, 200))
    assert whole < 2.1 * half
    assert whole < 200 * 2200


def test_each_message_stands_there_once(tmp_path: Path) -> None:
    talk = Talk(tmp_path / "transcript.jsonl")
    talk.ask(OPENING, "ls", tools=[{"name": "a tool"}])
    talk.ask([*OPENING, assistant("ls"), user("seen")], "exit", tools=[{"name": "a tool"}])
    talk.ask([user("new"), OPENING[1], assistant("ls"), user("seen")], "exit", tools=[{"name": "a tool"}])
    data = talk.path.read_text()
    assert [data.count(json.dumps(word)) for word in ("s", "task", "ls", "seen", "exit", "a tool")] == [1] * 6


def test_what_is_not_asked_for_is_not_recorded(tmp_path: Path) -> None:
    """RECORD_TOKEN_IDS=0, RECORD_LOGPROBS=0."""
    reply = answered(assistant("ls"), prompt_ids=[1], response_ids=[2], logprobs=[-0.5])
    for name, flags in {"ids": (True, False), "logprobs": (False, True)}.items():
        talk = Talk(tmp_path / name, token_ids=flags[0], logprobs=flags[1])
        talk.ask(OPENING, reply)
        (call,) = talk.calls
        assert (call.prompt_ids() is not None, call.response_ids is not None) == (flags[0], flags[0])
        assert (call.logprobs is not None) == flags[1]
        assert (call.prefix_break is not None) == flags[0]
        assert [next(read(talk.path))[key] for key in ("token_ids", "logprobs")] == list(flags)


def test_the_schema_is_told_first_and_the_ending_last(tmp_path: Path) -> None:
    talk = Talk(tmp_path / "transcript.jsonl", scaffold="shell", model="m")
    talk.ask(OPENING, "ls")
    talk.recorder.close({"ending": "done"})
    talk.recorder.close({"ending": "again"})
    first, *_, last = read(talk.path)
    assert [first[key] for key in ("type", "schema_version", "scaffold", "model")] == ["start", 2, "shell", "m"]
    assert [last[key] for key in ("type", "ending")] == ["end", "done"]
    assert read_messages(talk.path) == [*OPENING, assistant("ls")]


def test_nothing_is_written_after_the_end_or_over_an_older_file(tmp_path: Path) -> None:
    talk = Talk(tmp_path / "transcript.jsonl")
    call = talk.send(OPENING)
    with pytest.raises(ValueError, match="call 1 is not under way"):
        talk.recorder.reply(1, answered(None))
    talk.recorder.reply(call, answered(None))
    with pytest.raises(ValueError, match="call 0 is not under way"):
        talk.recorder.reply(call, answered(None))
    call = talk.send(OPENING)
    talk.recorder.close({})
    before = talk.path.read_bytes()
    for late in (lambda: talk.send(OPENING), lambda: talk.recorder.reply(call, answered(None))):
        with pytest.raises(ValueError, match="closed"):
            late()
    with pytest.raises(FileExistsError):
        Recorder(talk.path, start={}, token_ids=True, logprobs=False)
    assert talk.path.read_bytes() == before


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    """Wherever the kill tore it; a call without a reply is known as unfinished."""
    talk = Talk(tmp_path / "transcript.jsonl")
    talk.ask(OPENING, "ls")
    talk.ask([*OPENING, assistant("ls"), user("seen \ud83d")], answered(assistant("exit"), response_ids=[1]))
    whole = talk.path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for kept in range(1, len(lines)):
        start = len(b"".join(lines[:kept]))
        for cut in range(start, start + len(lines[kept]) - 1, 7):
            talk.path.write_bytes(whole[:cut])
            assert [call.end for call in read_calls(talk.path)] == {
                1: [],
                2: [UNFINISHED],
                3: ["answered"],
                4: ["answered", UNFINISHED],
            }[kept]


def test_damage_is_loud(tmp_path: Path) -> None:
    talk = Talk(tmp_path / "transcript.jsonl")
    talk.ask(OPENING, "ls")
    talk.ask([*OPENING, assistant("ls"), user("seen")], "exit")
    lines = talk.path.read_bytes().splitlines(keepends=True)
    for missing in (1, 2, 3):
        talk.path.write_bytes(b"".join(lines[:missing] + lines[missing + 1 :]))
        with pytest.raises(ValueError, match="is damaged"):
            [call.sent() for call in read_calls(talk.path)]


def test_a_killed_process_loses_no_whole_line(repository: Path, tmp_path: Path) -> None:
    """A kill -9 at any moment: every reply that ``reply`` has returned from is there, and all is readable."""
    path = tmp_path / "transcript.jsonl"
    code = f"""
import sys
from pathlib import Path
from recording import Talk, assistant, user
talk, history = Talk(Path({str(path)!r})), [user("task")]
for turn in range(10**6):
    talk.ask(history, "x" * 5000 + str(turn))
    sys.stdout.write("."); sys.stdout.flush()
    history += [assistant("x" * 5000 + str(turn)), user("seen")]
"""
    environment = os.environ | {"PYTHONPATH": f"{repository / 'src'}:{repository / 'tests'}"}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        told = len(process.stdout.read(50))
        process.send_signal(signal.SIGKILL)
        told += len(process.stdout.read())
    calls = read_calls(path)
    ended = [call for call in calls if call.answered]
    assert len(ended) in (told, told + 1)
    assert [call.message for call in ended] == [assistant("x" * 5000 + str(turn)) for turn in range(len(ended))]
    assert len(calls[-1].sent()["messages"]) == 2 * len(calls) - 1


def test_a_full_disk_is_loud_and_leaves_what_was_said(repository: Path, tmp_path: Path) -> None:
    """The file may not grow past 20 KB: the line that does not fit leaves no trace, and nothing follows it."""
    path = tmp_path / "transcript.jsonl"
    code = f"""
import resource, signal
from pathlib import Path
from recording import Talk, user
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, resource.RLIM_INFINITY))
talk = Talk(Path({str(path)!r}))
talk.ask([user("task")], "ls")
for _ in range(2):
    try:
        talk.send([user("x" * 30000)])
    except OSError as error:
        print(error.errno)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
try:
    talk.recorder.close({{}})
except OSError as error:
    print(error.errno)
"""
    environment = os.environ | {"PYTHONPATH": f"{repository / 'src'}:{repository / 'tests'}"}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    assert ended.stdout.split() == ["27"] * 3
    assert [line["type"] for line in read(path)] == ["start", "request", "reply"]
    assert path.read_bytes().endswith(b"}\n")


def test_memory_of_the_writer_is_bounded(repository: Path, tmp_path: Path) -> None:
    """A client that begins anew with 400,000 token ids at every call: the oldest conversations are let go."""
    code = f"""
import resource
from pathlib import Path
from recording import Talk, answered, assistant, user
talk = Talk(Path({str(tmp_path / "transcript.jsonl")!r}))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for number in range(64):
    talk.ask([user(f"task {{number}}")], answered(assistant("x"), prompt_ids=[number] * 400_000, response_ids=[1]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    environment = os.environ | {"PYTHONPATH": f"{repository / 'src'}:{repository / 'tests'}"}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    assert int(ended.stdout) < 50_000


def test_the_lines_are_those_of_the_schema(tmp_path: Path) -> None:
    """Of schema_version 2, as the package's docstring tells it: others read these files too."""
    talk = Talk(tmp_path / "transcript.jsonl", logprobs=True)
    tools = [{"type": "function"}]
    call = answered(assistant("ls"), prompt_ids=[1, 2], response_ids=[3], logprobs=[-0.5], usage={"prompt_tokens": 2})
    talk.ask(OPENING, call, tools=tools, temperature=1.0)
    again = answered(assistant("ls"), prompt_ids=[1, 2, 3, 4], response_ids=[3], logprobs=[-0.5])
    talk.ask([*OPENING, assistant("ls"), user("seen")], again, tools=tools)
    talk.send([user("title?"), user("seen")], side=True)
    talk.complete("a", "b")
    talk.complete("ab c", "")
    lines = [{key: value for key, value in line.items() if key != "at"} for line in read(talk.path)][1:]
    requests = [line for line in lines if line["type"] == "request"]
    same = {"type": "request", "side": False, "surface": "chat", "asked": {}, "sent": {"model": "m"}}
    assert requests == [
        {
            **same,
            "call": 0,
            "branch": 0,
            "sent": {"model": "m", "temperature": 1.0},
            "tools": tools,
            "messages": OPENING,
        },
        {**same, "call": 1, "branch": 0, "tools": 0, "messages": [[0, 0, 3], user("seen")]},
        {
            **same,
            "call": 2,
            "branch": 1,
            "left": {"call": 1, "shared": 0},
            "side": True,
            "messages": [user("title?"), 3],
        },
        {**same, "surface": "completions", "call": 3, "branch": 2, "left": {"call": 2, "shared": 0}, "prompt": ["a"]},
        {**same, "surface": "completions", "call": 4, "branch": 2, "prompt": [[3, 0, 2], " c"]},
    ]
    first, second, *_ = (line for line in lines if line["type"] == "reply")
    assert first == {
        "type": "reply",
        "call": 0,
        "end": "answered",
        "status": 200,
        "message": assistant("ls"),
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 2},
        "id": None,
        "error": "",
        "prompt_ids": [1, 2],
        "response_ids": [3],
        "prefix_break": False,
        "logprobs": [-0.5],
        "tries": [],
        **{f"{name}_sec": 0.0 for name in ("queued", "held", "served")},
        "first_token_sec": None,
        "server_seed": None,
    }
    assert (second["message"], second["prompt_ids"]) == (2, [[0, 0, 3], 4])
