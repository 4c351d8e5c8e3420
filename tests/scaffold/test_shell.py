"""The scaffold ``shell``: a scripted model, real commands, the transcript after every turn (A6, A13, C8)."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.model_server import CONTEXT, Call, Fault, ModelServer
from rolloutgen.errors import CommandLostError, InferenceError, TransportError
from rolloutgen.outcomes import Flag
from rolloutgen.scaffold import build
from rolloutgen.scaffold.base import State
from rolloutgen.scaffold.shell import Shell
from rolloutgen.transcript.lines import Transcript, read, read_messages

from .conftest import POLICY, ProcessWorkspace

TASK = "Write yes into the file done."
type Play = Callable[..., Any]


def script(answers: Sequence[str | Fault]) -> Callable[[Call], str | Fault]:
    """The model says these, one after another."""
    return lambda call: answers[call.number]


@pytest.fixture
def play(make_client: Any, workspace: ProcessWorkspace, tmp_path: Path) -> Play:
    """Runs one attempt against a script; returns its state and the server."""

    async def run(answers: Sequence[str | Fault], *, limit_sec: float | None = None, **changes: Any) -> Any:
        state = State(limit_sec=limit_sec)
        async with ModelServer(script(answers)) as server:
            shell = Shell(make_client(server, **changes), replace(POLICY, **changes))
            with Transcript(tmp_path / "transcript.jsonl") as transcript:
                await shell.run(TASK, workspace, transcript, state)
        return state, server

    return run


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in read(folder / "transcript.jsonl") if line["type"] == kind]


async def test_one_command_and_the_end(play: Play, workspace: ProcessWorkspace, tmp_path: Path) -> None:
    state, server = await play(["echo yes > done", "exit"])
    assert (workspace.folder / "done").read_text() == "yes\n"
    assert (state.turns, state.ending, state.flags) == (2, "done", set())
    messages = read_messages(tmp_path / "transcript.jsonl")
    assert messages[:-1] == server.calls[-1].messages
    assert [message["content"] for message in messages[-4:]] == [TASK, "echo yes > done", "(exit status 0)", "exit"]
    (start,) = lines(tmp_path, "start")
    assert (start["schema_version"], start["model"], start["request"]["temperature"]) == (1, "policy", 0.7)
    assert [line["command"] for line in lines(tmp_path, "reply")] == ["echo yes > done", "exit"]


async def test_output_and_exit_status_come_back(play: Play, tmp_path: Path) -> None:
    _, server = await play(["echo out; echo err >&2; exit 3", "exit"])
    assert server.calls[1].messages[-1]["content"] == "out\nerr\n(exit status 3)"
    assert lines(tmp_path, "observation")[0]["exit_status"] == 3


async def test_long_output_keeps_head_and_tail(play: Play) -> None:
    _, server = await play(["seq 100000", "exit"])
    told = server.calls[1].messages[-1]["content"]
    assert told.startswith("1\n2\n")
    assert told.endswith("\n100000\n(exit status 0)")
    assert len(told) < 1200


async def test_a_file_is_written_by_a_here_document(play: Play, workspace: ProcessWorkspace, tmp_path: Path) -> None:
    body = "cat > a.py <<'EOF'\ndef f():\n    return 1\nEOF"
    answers = [body, body.partition("\n")[2].join(["\n", "\nls\n"]), "exit"]
    state, server = await play(answers)
    assert (workspace.folder / "a.py").read_text() == "def f():\n    return 1\n"
    assert state.turns == 3
    assert server.calls[1].body["continue_final_message"] is True
    assert server.calls[1].messages[-1] == {"role": "assistant", "content": "cat > a.py <<'EOF'"}
    assert read_messages(tmp_path / "transcript.jsonl")[-3]["content"] == body
    assert [len(line["calls"]) for line in lines(tmp_path, "reply")] == [2, 1]


async def test_a_fenced_block_is_run_whole(play: Play, workspace: ProcessWorkspace) -> None:
    state, _ = await play(["```bash", "\ntouch a\ntouch b\n```\nand so on", "exit"])
    assert sorted(path.name for path in workspace.folder.iterdir()) == ["a", "b"]
    assert state.ending == "done"


async def test_max_turns(play: Play, tmp_path: Path) -> None:
    state, server = await play(["echo again"] * 5)
    assert (state.turns, state.flags, state.ending) == (5, {Flag.MAX_TURNS}, "max_turns")
    assert len(server.calls) == 5
    assert len(lines(tmp_path, "observation")) == 5


@pytest.mark.parametrize("answers", [[CONTEXT], ["ls", CONTEXT], ["cat <<EOF", CONTEXT]])
async def test_c8_context_exceeded(play: Play, tmp_path: Path, answers: list[str | Fault]) -> None:
    """What was said before stays in the transcript, an unfinished answer too."""
    state, _ = await play(answers)
    assert (state.flags, state.ending) == ({Flag.CONTEXT_EXCEEDED}, "context_exceeded")
    said = [line["messages"][0]["content"] for line in lines(tmp_path, "reply")]
    assert [text.rstrip("\n") for text in said] == answers[:-1]


async def test_an_answer_that_is_cut_is_not_run(play: Play, workspace: ProcessWorkspace) -> None:
    state, server = await play(["touch " + "x " * 100, "exit"], max_response_len=10)
    assert list(workspace.folder.iterdir()) == []
    assert "cut off at 10 tokens" in server.calls[1].messages[-1]["content"]
    assert state.ending == "done"


async def test_a_hung_command_leaves_time_for_the_next(play: Play) -> None:
    state, server = await play(["sleep 100", "exit"], limit_sec=5.0)
    assert server.calls[1].messages[-1]["content"] == "(stopped after 1 s)"
    assert state.ending == "done"


async def test_a_command_that_kills_its_own_shell_ends_the_agent(play: Play, workspace: ProcessWorkspace) -> None:
    workspace.error = CommandLostError("gone")
    state, _ = await play(["kill -9 -1"])
    assert (state.flags, state.ending) == ({Flag.AGENT_CRASH}, "agent_crash")


async def test_errors_that_are_not_the_agents_pass_through(
    play: Play, workspace: ProcessWorkspace, tmp_path: Path
) -> None:
    workspace.error = TransportError("lost")
    with pytest.raises(TransportError):
        await play(["ls"])
    assert [line["command"] for line in lines(tmp_path, "reply")] == ["ls"]
    assert lines(tmp_path, "observation") == []


async def test_a_model_call_that_fails_for_good(play: Play, tmp_path: Path) -> None:
    with pytest.raises(InferenceError):
        await play(["ls", *[Fault()] * 6])
    assert [line["command"] for line in lines(tmp_path, "reply")] == ["ls"]


async def test_cancelled_in_the_middle_of_a_command(
    make_client: Any, workspace: ProcessWorkspace, tmp_path: Path
) -> None:
    """A time limit strikes: the turns so far are on record, and the command that was running."""
    state = State()
    async with ModelServer(script(["echo one", "sleep 50"])) as server:
        shell = Shell(make_client(server), POLICY)
        with Transcript(tmp_path / "transcript.jsonl") as transcript, pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await shell.run(TASK, workspace, transcript, state)
    assert (state.turns, state.ending) == (2, "")
    assert [line["command"] for line in lines(tmp_path, "reply")] == ["echo one", "sleep 50"]
    assert len(lines(tmp_path, "observation")) == 1


def test_an_unknown_scaffold_prints_the_known_ones() -> None:
    class Named:
        scaffold = "claude"

    with pytest.raises(ValueError, match=r"no scaffold 'claude'; known: shell"):
        build(Named(), None)  # type: ignore[arg-type]  # only the name is looked at


@pytest.mark.parametrize(
    ("command", "why"), [("echo a\0b", "NUL"), ("echo \ud800", "Unicode"), ("echo " + "x" * 131_072, "131071 bytes")]
)
async def test_a_command_that_no_sandbox_can_run_is_the_models_own_doing(play: Play, command: str, why: str) -> None:
    """It is told so and goes on; an error here would leave the trial without a verdict."""
    state, server = await play([command, "exit"], max_response_len=200_000)
    assert (state.turns, state.ending) == (2, "done")
    assert server.calls[1].messages[-1]["content"].startswith("(your command was not run, since it ")
    assert why in server.calls[1].messages[-1]["content"]
