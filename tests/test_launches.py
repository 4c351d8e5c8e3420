"""Records of launches and the sweep of dead ones (A29): real processes, real kills; a live one is never touched."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from driving import until
from rolloutgen import launches
from rolloutgen.processes import MARK, Process

SLEEPER = [sys.executable, "-c", "import time; time.sleep(100)"]
FAMILY = [
    sys.executable,
    "-c",
    (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'], env={})\n"
        "time.sleep(100)"
    ),
]
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes; none outlives the test."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(command: list[str] = SLEEPER, launch_id: str = "") -> "subprocess.Popen[bytes]":
        env = os.environ | ({MARK: launch_id} if launch_id else {})
        process = subprocess.Popen(command, env=env, start_new_session=True)
        started.append(process)
        return process

    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def of(process: "subprocess.Popen[bytes]") -> Process:
    found = Process.of(process.pid)
    assert found is not None
    return found


def begin(root: Path, launcher: Process, launch_id: str = "l1", results: str = "/data/results") -> launches.Launch:
    return launches.begin(root / launch_id, launcher, Path(results), "my.env", "exp")


def dead(start: Start) -> Process:
    """The identity of a process that ran."""
    process = start()
    identity = of(process)
    process.kill()
    process.wait()
    return identity


def ended(process: "subprocess.Popen[bytes]") -> bool:
    return process.poll() is not None


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = begin(tmp_path, Process.me())
    (read,) = launches.read_all(tmp_path)
    assert read == written
    assert read.is_here
    assert read.alive()
    assert not read.is_ending
    (tmp_path / "l1" / "ending").touch()
    assert read.is_ending


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"launcher": 1}', '{"launcher": {"pid": "x"}}'])
def test_what_is_no_record_is_no_launch(tmp_path: Path, content: str) -> None:
    (tmp_path / "l1").mkdir()
    (tmp_path / "l1" / "launch.json").write_text(content)
    assert launches.read_all(tmp_path) == []
    assert launches.sweep(tmp_path, dying_sec=0) == []
    assert (tmp_path / "l1").exists()


def test_a_folder_that_never_got_a_record_goes_after_an_hour(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    os.utime(tmp_path / "old", (time.time() - 4000,) * 2)
    launches.sweep(tmp_path)
    assert not (tmp_path / "old").exists()


def test_a29_what_a_dead_launch_left_is_ended_and_its_record_removed(tmp_path: Path, start: Start) -> None:
    begin(tmp_path, dead(start))
    left, stranger = start(launch_id="l1"), start(launch_id="l2")
    lines = launches.sweep(tmp_path, dying_sec=0)
    until(lambda: ended(left), "the marked process is ended")
    assert f"l1: ended process {left.pid}" in lines
    assert "l1: removed its record" in lines
    assert not (tmp_path / "l1").exists()
    assert not ended(stranger)
    assert launches.sweep(tmp_path) == []


def test_a29_members_of_a_drivers_session_that_show_no_mark_are_ended_too(tmp_path: Path, start: Start) -> None:
    launch = begin(tmp_path, dead(start))
    family = start(FAMILY, launch_id="l1")
    (launch.folder / "driver.json").write_text(json.dumps(dataclasses.asdict(of(family))))
    children = Path(f"/proc/{family.pid}/task/{family.pid}/children")
    until(lambda: children.read_text().strip() != "", "the child runs")
    child = Process.of(int(children.read_text().split()[0]))
    assert child is not None
    launches.sweep(tmp_path, dying_sec=0)
    assert not child.alive()
    until(lambda: ended(family), "the leader is ended")


def test_a29_a_live_launch_is_not_touched(tmp_path: Path, start: Start) -> None:
    begin(tmp_path, Process.me())
    child = start(launch_id="l1")
    assert launches.sweep(tmp_path, dying_sec=0) == []
    assert not ended(child)
    assert (tmp_path / "l1" / "launch.json").exists()


def test_a29_only_the_run_that_is_named(tmp_path: Path, start: Start) -> None:
    begin(tmp_path, dead(start), "l1", str(tmp_path / "one"))
    begin(tmp_path, dead(start), "l2", str(tmp_path / "two"))
    assert launches.sweep(tmp_path, tmp_path / "three" / ".." / "two") == ["l2: removed its record"]
    assert [launch.launch_id for launch in launches.read_all(tmp_path)] == ["l1"]


def test_a_pid_that_another_has_now_is_dead(tmp_path: Path) -> None:
    me = Process.me()
    begin(tmp_path, dataclasses.replace(me, start_time=me.start_time - 1))
    assert launches.sweep(tmp_path) == ["l1: removed its record"]


def test_a_launch_of_an_earlier_boot_has_no_processes(tmp_path: Path, start: Start) -> None:
    begin(tmp_path, dataclasses.replace(Process.me(), boot_id="earlier"))
    same_mark = start(launch_id="l1")
    assert launches.sweep(tmp_path) == ["l1: removed its record"]
    assert not ended(same_mark)


def test_a21_a_launch_of_another_host_is_not_judged(tmp_path: Path, start: Start) -> None:
    launch = begin(tmp_path, dead(start))
    record = json.loads((launch.folder / "launch.json").read_text())
    (launch.folder / "launch.json").write_text(json.dumps(record | {"host": "elsewhere"}))
    assert launches.sweep(tmp_path) == []
    assert (tmp_path / "l1").exists()


def test_what_is_ending_by_itself_is_waited_for(tmp_path: Path, start: Start) -> None:
    begin(tmp_path, dead(start))
    start([sys.executable, "-c", "import time; time.sleep(1)"], launch_id="l1")
    assert launches.sweep(tmp_path, dying_sec=30) == ["l1: removed its record"]


def test_what_nobody_leads_any_more_is_ended_without_a_wait(tmp_path: Path, start: Start) -> None:
    """A29: driver, server and launcher were killed; an engine that outlived them ends by no patience."""
    launch = begin(tmp_path, dead(start))
    (launch.folder / "driver.json").write_text(json.dumps(dataclasses.asdict(dead(start))))
    left = start(launch_id="l1")
    lines = launches.sweep(tmp_path, dying_sec=3600)
    until(lambda: ended(left), "the marked process is ended")
    assert f"l1: ended process {left.pid}" in lines


def test_the_caller_itself_is_never_ended(tmp_path: Path, start: Start) -> None:
    """The next launch sweeps while it carries a mark of its own; so may a clean-up under an old one."""
    begin(tmp_path, dead(start))
    code = (
        "import sys; from pathlib import Path; from rolloutgen import launches; "
        "print(launches.sweep(Path(sys.argv[1]), dying_sec=0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=os.environ | {MARK: "l1", "PYTHONPATH": str(Path(launches.__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "removed its record" in done.stdout
