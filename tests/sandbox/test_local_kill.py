"""SIGKILL of the driver, or of all that we could kill: nothing survives, and the sweep removes what cannot vanish by
itself.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rolloutgen.sandbox.local.cgroups import sweep_cgroups

DRIVER = Path(__file__).with_name("driver.py")


def _living(launch_id: str) -> list[int]:
    """Processes that carry the launch in their arguments, or are a helper of that driver; zombies apart."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if launch_id.encode() in command:
                found.append(int(folder.name))
    return found


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


def _wait_until_gone(launch_id: str) -> None:
    _wait_for(lambda: not _living(launch_id))


def _groups(launch_id: str) -> list[str]:
    return [f"{top}/{name}" for top, names, _ in os.walk("/sys/fs/cgroup") for name in names if launch_id in name]


@pytest.fixture
def driver(launch_id: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(DRIVER.parents[2] / "src")}
    command = [sys.executable, str(DRIVER), launch_id, "4"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            _wait_for(lambda: len(_living(launch_id)) >= 9)  # itself, four daemons, four commands
            yield process
        finally:
            process.kill()


def test_driver_killed_leaves_no_process_and_no_mount(driver: subprocess.Popen[str], launch_id: str) -> None:
    """A20, A29: every process of every sandbox ends with the driver; the cgroups are left for the sweep, ours alone."""
    driver.kill()
    driver.wait()
    _wait_until_gone(launch_id)
    assert launch_id not in Path("/proc/self/mountinfo").read_text()
    left = _groups(launch_id)
    assert sorted(sweep_cgroups(launch_id)) == sorted(left)
    assert _groups(launch_id) == []
    assert sweep_cgroups(launch_id) == []


def test_driver_that_is_stopped_and_killed(driver: subprocess.Popen[str], launch_id: str) -> None:
    driver.send_signal(signal.SIGSTOP)
    driver.kill()
    driver.wait()
    _wait_until_gone(launch_id)
    sweep_cgroups(launch_id)


def test_sweep_touches_no_other_launch(driver: subprocess.Popen[str], launch_id: str) -> None:
    """Not even one whose id begins or ends alike."""
    before = _groups(launch_id)
    for other in (launch_id[:-1], launch_id[1:], f"{launch_id}-0", "", "*"):
        assert sweep_cgroups(other) == []
    assert _groups(launch_id) == before
    assert driver.poll() is None
    driver.kill()
    driver.wait()
    _wait_until_gone(launch_id)
    assert sorted(sweep_cgroups(launch_id)) == sorted(before)
