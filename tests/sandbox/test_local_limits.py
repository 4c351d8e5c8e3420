"""A sandbox's own limits: met, seen, told, and survived. By cgroup where there is one; else by rlimit."""

import asyncio
import os
from pathlib import Path

import pytest

from rolloutgen.sandbox.base import Sandbox

from .conftest import MakeSandbox

HOG = "a = []\nwhile True: a.append(bytearray(b'x') * (8 << 20))"


async def _limited_by(sandbox: Sandbox, controller: str) -> str:
    limits = (await sandbox.report()).details["limits"]
    assert isinstance(limits, dict)
    return str(limits[controller])


async def test_memory_hog_is_killed_and_counted(make_sandbox: MakeSandbox) -> None:
    """The process dies of the limit, the report counts it, the sandbox stays able to be graded."""
    sandbox = await make_sandbox(memory_mb=96)
    result = await sandbox.exec(f'exec python3 -c "{HOG}"', timeout_sec=100)
    report = await sandbox.report()
    if (await _limited_by(sandbox, "memory")).startswith("cgroup"):
        assert result.exit_status == 137
        assert report.oom == 1
    else:
        assert b"MemoryError" in result.stderr
    assert (report.dead, report.own_fault) == ("", False)
    assert (await sandbox.exec("echo on")).stdout == b"on\n"
    await sandbox.stop()
    assert (await sandbox.report()).oom == report.oom


async def test_fork_bomb_meets_the_limit_and_dies_of_its_timeout(make_sandbox: MakeSandbox) -> None:
    """Nothing outside it suffers: another sandbox still makes processes."""
    bomber, other = await make_sandbox(), await make_sandbox()
    bomb = asyncio.create_task(bomber.exec("b() { b | b & }; (b) & exec sleep 60", timeout_sec=4))
    await asyncio.sleep(2)
    assert (
        await other.exec("for i in 1 2 3 4 5; do (true) || exit 1; done; echo ok", timeout_sec=60)
    ).stdout == b"ok\n"
    result = await bomb
    assert result.timed_out
    assert int((await bomber.exec("ls -d /proc/[0-9]* | wc -l")).stdout) < 10
    assert (await bomber.report()).dead == ""


async def test_full_disk_is_the_sandboxes_own_and_stays_known(make_sandbox: MakeSandbox) -> None:
    """Also after the agent has cleaned up; another sandbox has its own disk."""
    full, other = await make_sandbox(storage_mb=32), await make_sandbox(storage_mb=32)
    result = await full.exec("dd if=/dev/zero of=/app/big bs=1M count=64")
    assert result.exit_status != 0
    assert b"No space left" in result.stderr
    await full.exec("rm /app/big")
    assert (await full.report()).disk_full
    assert (await other.exec("head -c 20000000 /dev/zero > /app/big")).exit_status == 0
    assert not (await other.report()).disk_full


@pytest.mark.parametrize("folder", ["/app", "/tmp", "/var/tmp", "/usr", "/root", "/home", "/new"])
async def test_every_writable_folder_counts_against_the_disk(make_sandbox: MakeSandbox, folder: str) -> None:
    sandbox = await make_sandbox(storage_mb=16)
    result = await sandbox.exec(f"mkdir -p {folder}; head -c 20000000 /dev/zero > {folder}/big")
    assert result.exit_status != 0
    assert (await sandbox.report()).disk_full


async def test_cpu_limit_is_set_where_the_machine_offers_it(make_sandbox: MakeSandbox, launch_id: str) -> None:
    """The kernel's own count of periods in which the sandbox was held back; no clock of ours."""
    sandbox = await make_sandbox(cpus=0.2)
    how = await _limited_by(sandbox, "cpu")
    if how.startswith("none"):
        assert "cgroup" in how
        return
    await sandbox.exec("timeout 1 sh -c 'while :; do :; done'")
    found = [
        Path(top, "cpu.stat") for top, _, names in os.walk("/sys/fs/cgroup") if launch_id in top and "cpu.stat" in names
    ]
    throttled = [int(path.read_text().split("nr_throttled ")[1].split()[0]) for path in found]
    assert max(throttled) > 0
