"""A ``serve`` process of its own around a model server, the stand-in or the real one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rolloutgen.processes import MARK, Process, belongings
from rolloutgen.serving.leavings import remove_leavings, temporary_folder
from rolloutgen.serving.record import ServerRecord
from texts import TEXTS

TESTS = Path(__file__).resolve().parents[1]
KEY = "sk-a-key-of-the-test"


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A ``vllm`` command that plays the real one."""
    command = tmp_path / "bin" / "vllm"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nPYTHONPATH={TESTS} exec {sys.executable} -m fakes.vllm_stand_in "$@"\n')
    command.chmod(0o755)
    return command


@dataclass(slots=True)
class Serving:
    """A running ``serve`` with its folder; ``launcher`` is a process that stands for infer.sh."""

    folder: Path
    process: subprocess.Popen[bytes]
    launcher: subprocess.Popen[bytes]
    _known: tuple[Process, ...] = field(default=())

    @property
    def said(self) -> str:
        """What ``serve`` itself said, which goes to the run's log."""
        return (self.folder / "said").read_text()

    @property
    def log(self) -> str:
        return (self.folder.parents[1] / "exp.vllm.log").read_text()

    def record(self, state: str, timeout_sec: float = 60) -> ServerRecord:
        """server.json, as soon as it says ``state``."""
        deadline = time.monotonic() + timeout_sec
        while (record := ServerRecord.read(self.folder)) is None or record.state != state:
            assert time.monotonic() < deadline, f"not {state}: {record}"
            time.sleep(0.05)
        return record

    def restarted(self, restarts: int, timeout_sec: float = 60) -> ServerRecord:
        """server.json, as soon as the server is ready after so many restarts."""
        deadline = time.monotonic() + timeout_sec
        while (record := self.record("ready", timeout_sec)).restarts < restarts:
            assert time.monotonic() < deadline, f"not restarted: {record}"
            time.sleep(0.05)
        return record

    def left(self) -> list[Process]:
        """What still lives of the server: by its marks, its session, and all that was ever seen in it."""
        record = ServerRecord.read(self.folder)
        assert record is not None
        leaders = [record.vllm] if record.vllm else []
        find = belongings(self.folder.name, leaders, record.members)
        return [process for process in {*find(), *record.members} if process.alive()]

    def traces(self) -> list[Path]:
        """What is left of the server's files outside its launch's folder."""
        record = ServerRecord.read(self.folder)
        assert record is not None
        paths = [temporary_folder(self.folder.name), *(Path(path) for path, _ in record.shared)]
        return [path for path in paths if path.exists()]

    def wait_until_nothing_is_left(self, timeout_sec: float = 60) -> None:
        deadline = time.monotonic() + timeout_sec
        while left := self.left():
            assert time.monotonic() < deadline, left
            time.sleep(0.1)

    def wait(self) -> int:
        return self.process.wait(60)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    """Start ``serve`` with settings by key. All of it is killed at the end."""
    started: list[Serving] = []

    def start_one(pass_fds: tuple[int, ...] = (), **texts: str) -> Serving:
        folder = tmp_path / "logs" / ".launches" / f"test-{os.getpid()}-{len(started)}"
        folder.mkdir(parents=True)
        launcher = subprocess.Popen(["sleep", "600"])
        script = [sys.executable, TESTS / "serving" / "serve_alone.py", folder, str(launcher.pid)]
        environment = os.environ | {
            "PYTHONPATH": str(TESTS.parent / "src"),
            "ROLLOUTGEN_MODEL_KEY": KEY,
            "VLLM_PORT": "1",
            MARK: folder.name,
        }
        command = [*script, json.dumps({**TEXTS, **texts})]
        with (folder / "said").open("wb") as said:
            process = subprocess.Popen(
                command, env=environment, start_new_session=True, pass_fds=pass_fds, stdout=said, stderr=said
            )
        started.append(Serving(folder, process, launcher))
        return started[-1]

    yield start_one
    for serving in started:
        for process in (serving.process, serving.launcher):
            process.kill()
            process.wait()
        for left in serving.left():
            left.signal(signal.SIGKILL)
        record = ServerRecord.read(serving.folder)
        remove_leavings(serving.folder.name, record.shared if record else ())


def _made(path: Path, how: str) -> Path:
    if not path.exists():
        pytest.skip(f"{path} is missing: {how}")
    return path


@pytest.fixture(scope="session")
def real_vllm(repository: Path) -> Path:
    return _made(repository / ".venv-vllm" / "bin" / "vllm", "bash scripts/lib/environments.sh vllm")


@pytest.fixture(scope="session")
def real_model(repository: Path) -> Path:
    return _made(repository / ".cache" / "models" / "smollm2-135m-instruct", "scripts/models/make_smollm2.sh")
