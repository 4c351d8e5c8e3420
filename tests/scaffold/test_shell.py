"""The scaffold ``shell``: a scripted model behind a real gateway, real commands (A6, A13, C8)."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fakes.answers import CONTEXT, Fault
from rolloutgen.errors import CommandLostError, InferenceError, TransportError
from rolloutgen.outcomes import Flag
from rolloutgen.scaffold import build
from rolloutgen.scaffold.base import State
from rolloutgen.scaffold.shell import Shell
from rolloutgen.transcript.reader import read_calls

from .conftest import Play, ProcessWorkspace

TASK = "Write yes into the file done."
type Act = Callable[..., Any]


@pytest.fixture
def act(play: Callable[..., Play], workspace: ProcessWorkspace) -> Act:
    """Runs one attempt against a script; returns its state and what the model was asked."""

    async def run(answers: Sequence[str | Fault], *, limit_sec: float | None = None, **keys: str) -> Any:
        state = State(limit_sec=limit_sec)
        async with play(answers, **keys) as one:
            await Shell(one.client, one.policy).run(TASK, workspace, one.lease.endpoint, state)
        return state, one

    return run


def said(folder: Path) -> list[str]:
    """The model's answers, as the transcript has them."""
    return [call.message["content"] for call in read_calls(folder / "transcript.jsonl") if call.message is not None]


async def test_one_command_and_the_end(act: Act, workspace: ProcessWorkspace, tmp_path: Path) -> None:
    state, server = await act(["echo yes > done", "exit"])
    assert (workspace.folder / "done").read_text() == "yes\n"
    assert (state.turns, state.ending, state.flags) == (2, "done", set())
    messages = server.calls[-1].messages
    assert [message["content"] for message in messages[-3:]] == [TASK, "echo yes > done", "(exit status 0)"]
    last = read_calls(tmp_path / "transcript.jsonl")[-1]
    assert last.conversation() == [*messages, {"role": "assistant", "content": "exit"}]
    assert server.report.turns == 2


async def test_output_and_exit_status_come_back(act: Act) -> None:
    _, server = await act(["echo out; echo err >&2; exit 3", "exit"])
    assert server.calls[1].messages[-1]["content"] == "out\nerr\n(exit status 3)"


async def test_long_output_keeps_head_and_tail(act: Act) -> None:
    _, server = await act(["seq 100000", "exit"])
    told = server.calls[1].messages[-1]["content"]
    assert told.startswith("1\n2\n")
    assert told.endswith("\n100000\n(exit status 0)")
    assert len(told) < 1200


async def test_a_file_is_written_by_a_here_document(act: Act, workspace: ProcessWorkspace) -> None:
    body = "cat > a.py <<'EOF'\ndef f():\n    return 1\nEOF"
    answers = [body, body.partition("\n")[2].join(["\n", "\nls\n"]), "exit"]
    state, server = await act(answers)
    assert (workspace.folder / "a.py").read_text() == "def f():\n    return 1\n"
    assert state.turns == 3
    assert server.calls[1].body["continue_final_message"] is True
    assert server.calls[1].messages[-1] == {"role": "assistant", "content": "cat > a.py <<'EOF'"}
    assert server.calls[2].messages[-2]["content"] == body


async def test_a_fenced_block_is_run_whole(act: Act, workspace: ProcessWorkspace) -> None:
    state, _ = await act(["```bash", "\ntouch a\ntouch b\n```\nand so on", "exit"])
    assert sorted(path.name for path in workspace.folder.iterdir()) == ["a", "b"]
    assert state.ending == "done"


async def test_max_turns(act: Act) -> None:
    state, server = await act(["echo again"] * 5)
    assert (state.turns, state.flags, state.ending) == (5, {Flag.MAX_TURNS}, "max_turns")
    assert len(server.calls) == 5


@pytest.mark.parametrize("answers", [[CONTEXT], ["ls", CONTEXT], ["cat <<EOF", CONTEXT]])
async def test_c8_context_exceeded(act: Act, tmp_path: Path, answers: list[str | Fault]) -> None:
    """What was said before stays in the transcript, an unfinished answer too."""
    state, _ = await act(answers)
    assert (state.flags, state.ending) == ({Flag.CONTEXT_EXCEEDED}, "context_exceeded")
    assert said(tmp_path) == answers[:-1]


async def test_an_answer_that_is_cut_is_not_run(act: Act, workspace: ProcessWorkspace) -> None:
    state, server = await act(["touch " + "x " * 100, "exit"], MAX_RESPONSE_LEN="10")
    assert list(workspace.folder.iterdir()) == []
    assert "cut off at 10 tokens" in server.calls[1].messages[-1]["content"]
    assert state.ending == "done"


async def test_a_hung_command_leaves_time_for_the_next(act: Act) -> None:
    state, server = await act(["sleep 100", "exit"], limit_sec=5.0)
    assert server.calls[1].messages[-1]["content"] == "(stopped after 1 s)"
    assert state.ending == "done"


async def test_a_command_that_kills_its_own_shell_ends_the_agent(act: Act, workspace: ProcessWorkspace) -> None:
    workspace.error = CommandLostError("gone")
    state, _ = await act(["kill -9 -1"])
    assert (state.flags, state.ending) == ({Flag.AGENT_CRASH}, "agent_crash")


async def test_errors_that_are_not_the_agents_pass_through(
    act: Act, workspace: ProcessWorkspace, tmp_path: Path
) -> None:
    workspace.error = TransportError("lost")
    with pytest.raises(TransportError):
        await act(["ls"])
    assert said(tmp_path) == ["ls"]


async def test_a_model_call_that_fails_for_good(act: Act, tmp_path: Path) -> None:
    with pytest.raises(InferenceError):
        await act(["ls", *[Fault()] * 1000], GATEWAY_HOLD_SEC="0.2")
    assert said(tmp_path) == ["ls"]


async def test_cancelled_in_the_middle_of_a_command(
    play: Callable[..., Play], workspace: ProcessWorkspace, tmp_path: Path
) -> None:
    """A time limit strikes: the turns so far are on record, and the command that was running."""
    state = State()
    async with play(["echo one", "sleep 50"]) as one:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await Shell(one.client, one.policy).run(TASK, workspace, one.lease.endpoint, state)
    assert (state.turns, state.ending) == (2, "")
    assert said(tmp_path) == ["echo one", "sleep 50"]


def test_an_unknown_scaffold_prints_the_known_ones() -> None:
    class Named:
        scaffold = "claude"

    with pytest.raises(ValueError, match=r"no scaffold 'claude'; known: shell"):
        build(Named())  # type: ignore[arg-type]  # only the name is looked at


@pytest.mark.parametrize(("command", "why"), [("echo a\0b", "NUL"), ("echo " + "x" * 131_072, "131071 bytes")])
async def test_a_command_that_no_sandbox_can_run_is_the_models_own_doing(act: Act, command: str, why: str) -> None:
    """It is told so and goes on; an error here would leave the trial without a verdict."""
    state, server = await act([command, "exit"], VLLM_MAX_MODEL_LEN="400000", MAX_RESPONSE_LEN="200000")
    assert (state.turns, state.ending) == (2, "done")
    assert server.calls[1].messages[-1]["content"].startswith("(your command was not run, since it ")
    assert why in server.calls[1].messages[-1]["content"]
