"""The contract of a sandbox's life, for every backend: start, check, report, stop, close."""

import asyncio

import pytest

from rolloutgen.errors import SandboxError
from rolloutgen.sandbox.base import Network, Sandbox, SandboxBackend, SandboxSpec

from .conftest import MakeSandbox


async def test_fresh_sandbox_has_its_own_folders(sandbox: Sandbox) -> None:
    result = await sandbox.exec("for d in /app /tests /logs /tmp /home /root; do touch $d/x || echo $d; done; pwd")
    assert result.stdout == b"/app\n"
    report = await sandbox.report()
    assert (report.oom, report.disk_full, report.dead, report.own_fault, report.lost_sec) == (0, False, "", False, 0.0)


async def test_sandboxes_share_nothing(make_sandbox: MakeSandbox) -> None:
    one, two = await make_sandbox(), await make_sandbox()
    await one.exec("for d in /app /tmp /usr /home /dev/shm; do echo > $d/of-one; done; sleep 6001 >/dev/null 2>&1 &")
    result = await two.exec("ls /app /tmp /usr /home /dev/shm; cat /proc/*/cmdline | tr '\\0' ' '")
    assert b"of-one" not in result.stdout
    assert b"6001" not in result.stdout


async def test_no_network_but_loopback(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox(network=Network.NONE)
    assert (await sandbox.exec("tail -n +3 /proc/net/dev | cut -d: -f1")).stdout.split() == [b"lo"]
    assert b"127.0.0.1" in (await sandbox.exec("cat /proc/net/fib_trie")).stdout


async def test_stop_is_idempotent_and_ends_every_use(sandbox: Sandbox) -> None:
    await sandbox.stop()
    await sandbox.stop()
    for use in (sandbox.exec("true"), sandbox.check()):
        with pytest.raises(SandboxError):
            await use
    await sandbox.report()


async def test_stop_ends_a_running_command_with_an_error(sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.exec("touch /tmp/up; sleep 6010"))
    while (await sandbox.exec("sleep 0.02; test -e /tmp/up")).exit_status:
        pass
    await sandbox.stop()
    with pytest.raises(SandboxError):
        await running


async def test_stop_finishes_though_its_caller_is_cancelled(sandbox: Sandbox) -> None:
    stopping = asyncio.create_task(sandbox.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await sandbox.stop()
    with pytest.raises(SandboxError):
        await sandbox.exec("true")


async def test_cancelled_start_leaves_a_sandbox_that_can_be_stopped(backend: SandboxBackend, launch_id: str) -> None:
    for turns in range(12):
        sandbox = backend.create(SandboxSpec(f"{launch_id}-c{turns}", None, "/app"))
        starting = asyncio.create_task(sandbox.start())
        for _ in range(turns):
            await asyncio.sleep(0.001)
        starting.cancel()
        await asyncio.wait([starting])
        await sandbox.stop()
        with pytest.raises(SandboxError):
            await sandbox.exec("true")


async def test_close_removes_every_sandbox(backend: SandboxBackend, make_sandbox: MakeSandbox) -> None:
    sandboxes = [await make_sandbox() for _ in range(3)]
    await backend.close()
    await backend.close()
    for sandbox in sandboxes:
        with pytest.raises(SandboxError):
            await sandbox.exec("true")


async def test_exec_before_start_is_refused(backend: SandboxBackend, launch_id: str) -> None:
    with pytest.raises(SandboxError, match="not started"):
        await backend.create(SandboxSpec(f"{launch_id}-never", None, "/app")).exec("true")


async def test_preflight_finds_nothing_fatal_here(backend: SandboxBackend) -> None:
    """A15: a probe sandbox is started and removed."""
    findings = await backend.check([None])
    assert [finding for finding in findings if finding.level == "FATAL"] == []
    assert any(finding.level == "ok" for finding in findings)
