"""The contract of ``Sandbox.exec``, for every backend."""

import asyncio
import os
import signal
from contextlib import suppress

import pytest

from rolloutgen.errors import CommandLostError, SandboxError
from rolloutgen.sandbox.base import Sandbox

from .conftest import MakeSandbox


async def _running(sandbox: Sandbox, marker: str) -> bool:
    """Whether a process with ``marker`` in its arguments lives in the sandbox."""
    script = (
        f"for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $f; echo; done 2>/dev/null | grep -c 'sleep {marker} *$'"
    )
    return (await sandbox.exec(script)).stdout.strip() != b"0"


@pytest.mark.parametrize("status", [0, 1, 2, 42, 124, 126, 127, 255])
async def test_exit_status_is_the_commands_own(sandbox: Sandbox, status: int) -> None:
    """The status of a command is true, never a guess; 124 alone does not mean a timeout."""
    result = await sandbox.exec(f"exit {status}")
    assert (result.exit_status, result.timed_out) == (status, False)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
async def test_death_by_signal_is_128_plus_n(sandbox: Sandbox, number: signal.Signals) -> None:
    result = await sandbox.exec(f"kill -{number.value} $$")
    assert result.exit_status == 128 + number


async def test_missing_command_is_127(sandbox: Sandbox) -> None:
    result = await sandbox.exec("no-such-command-here")
    assert result.exit_status == 127
    assert b"no-such-command-here" in result.stderr


async def test_streams_are_apart_and_binary_safe(sandbox: Sandbox) -> None:
    every_byte = bytes(range(256))
    octal = "".join(f"\\{byte:03o}" for byte in every_byte)
    result = await sandbox.exec(f"printf '{octal}'; printf err >&2")
    assert (result.stdout, result.stderr) == (every_byte, b"err")


async def test_stdin_is_empty(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("cat; echo end", timeout_sec=20)).stdout == b"end\n"


async def test_output_over_the_limit_keeps_head_and_tail(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo first; head -c 5000000 /dev/zero | tr '\\0' x; echo; echo last")
    assert result.truncated
    assert result.exit_status == 0
    assert result.stdout.startswith(b"first\nxxx")
    assert result.stdout.endswith(b"xxx\nlast\n")
    assert b"left out" in result.stdout
    assert len(result.stdout) < (1 << 20) + 100


async def test_output_at_the_limit_is_whole(sandbox: Sandbox) -> None:
    result = await sandbox.exec("head -c 1048576 /dev/zero")
    assert not result.truncated
    assert result.stdout == bytes(1 << 20)


async def test_cwd_env_and_home(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox(workdir="/work here/deep", env={"A": "spec", "B": "spec"})
    result = await sandbox.exec('pwd; echo "$A $B $HOME"', env={"B": "exec"})
    assert result.stdout == b"/work here/deep\nspec exec /root\n"
    assert (await sandbox.exec("pwd", cwd="/usr")).stdout == b"/usr\n"


async def test_nothing_of_the_drivers_environment_leaks(
    monkeypatch: pytest.MonkeyPatch, make_sandbox: MakeSandbox
) -> None:
    monkeypatch.setenv("ROLLOUTGEN_TEST_SECRET", "tell-nobody")
    sandbox = await make_sandbox()
    result = await sandbox.exec("env; cat /proc/*/environ")
    assert b"PATH=" in result.stdout
    assert b"tell-nobody" not in result.stdout


async def test_missing_cwd_is_told_by_stderr(sandbox: Sandbox) -> None:
    """An agent that removes its working directory breaks its own commands, not the attempt."""
    result = await sandbox.exec("true", cwd="/not/there")
    assert result.exit_status == 126
    assert b"/not/there" in result.stderr


async def test_root_by_name_number_and_default(sandbox: Sandbox) -> None:
    for user in (None, "root", 0, "0"):
        assert (await sandbox.exec("id -u", user=user)).stdout == b"0\n"


async def test_another_user_or_a_clear_refusal(sandbox: Sandbox) -> None:
    """A user that this machine cannot offer is said so; one that it can is the one who runs."""
    try:
        result = await sandbox.exec("id -un; id -u; echo $HOME", user="daemon")
    except SandboxError as error:
        refusal = str(error)
    else:
        refusal = ""
    if os.geteuid() != 0:
        assert "daemon" in refusal
        assert "run as root" in refusal
    else:
        assert result.stdout.splitlines()[:2] == [b"daemon", b"1"]
        assert (await sandbox.exec("touch /usr/x", user=1234)).exit_status != 0


async def test_unknown_user_is_the_callers_mistake(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="nobody-of-that-name"):
        await sandbox.exec("true", user="nobody-of-that-name")


async def test_command_with_nul_or_too_long_is_the_callers_mistake(sandbox: Sandbox) -> None:
    for command in ("echo \0", "x" * 200_000):
        with pytest.raises(ValueError, match="command"):
            await sandbox.exec(command)
    assert (await sandbox.exec(f": {'x' * 120_000}; echo long")).stdout == b"long\n"


async def test_timeout_kills_the_whole_tree(sandbox: Sandbox) -> None:
    """Also a double fork and a session of its own; what was said before is kept (C1)."""
    command = "echo said; sleep 7001 & setsid sleep 7002 & (setsid sh -c 'setsid sleep 7003 & wait' &) ; sleep 7004"
    result = await sandbox.exec(command, timeout_sec=1)
    assert (result.exit_status, result.timed_out, result.stdout) == (124, True, b"said\n")
    for marker in ("7001", "7002", "7003", "7004"):
        assert not await _running(sandbox, marker)


async def test_timeout_kills_what_ignores_signals(sandbox: Sandbox) -> None:
    result = await sandbox.exec("trap '' TERM INT HUP; while :; do sleep 7010; done", timeout_sec=0.5)
    assert result.timed_out
    assert not await _running(sandbox, "7010")


async def test_timeout_spares_other_commands(sandbox: Sandbox) -> None:
    other = asyncio.create_task(sandbox.exec("setsid sleep 2; echo done"))
    assert (await sandbox.exec("sleep 7020", timeout_sec=0.3)).timed_out
    assert (await other).stdout == b"done\n"


async def test_cancelling_kills_the_whole_tree(sandbox: Sandbox) -> None:
    task = asyncio.create_task(sandbox.exec("setsid sleep 7031 & touch /tmp/up; sleep 7032"))
    while (await sandbox.exec("sleep 0.02; test -e /tmp/up")).exit_status:
        pass
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not await _running(sandbox, "7031")
    assert not await _running(sandbox, "7032")


async def test_daemon_outlives_its_ended_command(sandbox: Sandbox) -> None:
    """As in a container: a service that a command leaves behind serves the next one."""
    await sandbox.exec("setsid sleep 7040 >/dev/null 2>&1 &")
    assert await _running(sandbox, "7040")


async def test_child_that_holds_the_output_open_does_not_hang_exec(sandbox: Sandbox) -> None:
    result = await sandbox.exec("sleep 7050 & echo out", timeout_sec=60)
    assert (result.exit_status, result.timed_out, result.stdout) == (0, False, b"out\n")
    assert await _running(sandbox, "7050")


async def test_endless_writer_in_the_background_does_not_hang_exec(sandbox: Sandbox) -> None:
    result = await sandbox.exec("yes & sleep 0.1; exit 3", timeout_sec=60)
    assert (result.exit_status, result.timed_out) == (3, False)


async def test_agent_that_kills_everything_keeps_a_sandbox(sandbox: Sandbox) -> None:
    """Killing all processes ends the command, truthfully or as lost, and never the sandbox (see: agent_crash)."""
    statuses = {"kill -9 -1; exit 5": 5, "kill -9 -1; sleep 0.2; kill -9 $$": 137, "kill -STOP -1; exit 6": 6}
    for command, status in statuses.items():
        with suppress(CommandLostError):
            result = await sandbox.exec(command, timeout_sec=100)
            assert (result.exit_status, result.timed_out) == (status, False)
    await sandbox.check()
    assert (await sandbox.exec("true")).exit_status == 0
    assert (await sandbox.report()).dead == ""


async def test_many_commands_at_once(sandbox: Sandbox) -> None:
    """More than any thread pool has workers (C17)."""
    results = await asyncio.gather(*(sandbox.exec(f"sleep 0.2; echo {number}") for number in range(50)))
    assert [int(result.stdout) for result in results] == list(range(50))
