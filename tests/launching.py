"""Real launches for tests: infer.sh as a process on a Site, its children found by the mark that they carry."""

import json
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from driving import REPOSITORY, Site, environment, until
from rolloutgen import launches
from rolloutgen.processes import Process, marked

INFER = REPOSITORY / "scripts" / "infer" / "infer.sh"
CLEANUP = REPOSITORY / "scripts" / "cleanup_before_run.sh"
LAUNCHES = REPOSITORY / "logs" / ".launches"
TESTS = REPOSITORY / "tests"


@dataclass
class Runner:
    """infer.sh for one Site, in the Python environment of the tests."""

    site: Site
    started: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.site.keys["VENV_PATH"] = sys.prefix

    def finish(self, *arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
        """Run it to its end."""
        return subprocess.run(
            ["bash", str(INFER), *arguments, str(self.site.config)],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=_callers_environment() | env,
            check=False,
            timeout=300,
        )

    def start(self, **env: str) -> "subprocess.Popen[bytes]":
        """Start it as the leader of a process group; its stdout and stderr go to launcher.out and launcher.err."""
        with self.out.open("ab") as out, self.err.open("ab") as err:
            process = subprocess.Popen(
                ["bash", str(INFER), str(self.site.config)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=_callers_environment() | env,
                process_group=0,
            )
        self.started.append(process)
        return process

    @property
    def out(self) -> Path:
        return self.site.folder / "launcher.out"

    @property
    def err(self) -> Path:
        return self.site.folder / "launcher.err"

    @property
    def last_line(self) -> str:
        """The last line, which stdout and the log must share."""
        out, log = (text.read_text().splitlines()[-1] for text in (self.out, self.site.log))
        assert out == log
        return out

    def records(self) -> list[launches.Launch]:
        return [launch for launch in launches.read_all(LAUNCHES) if launch.exp == self.site.exp]

    def driver(self) -> Process:
        """The driver of the one launch of this site; waits until a trial of it runs."""
        until(lambda: any(self.site.results.glob("*/*.attempt_*")), "an attempt runs", 60)
        (record,) = self.records()
        driver = launches.driver(record.folder)
        assert driver is not None
        return driver

    def end_all(self) -> None:
        """Nothing of this site outlives its test."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
        for record in self.records():
            for process in marked(record.launch_id):
                process.signal(signal.SIGKILL)
            launches.end_launch(record, 0)
        self.site.clean()


def last_line_of_success(site: Site) -> str:
    """A24, character by character."""
    return f"=== inference done: results={site.results}  selected={site.selected} ==="


def _callers_environment() -> dict[str, str]:
    return {name: text for name, text in environment().items() if name != "PYTHONPATH"}


def commands_with(text: str) -> list[int]:
    """Processes of this machine that have ``text`` in their command line."""
    return [int(pid.name) for pid in Path("/proc").iterdir() if pid.name.isdigit() and text.encode() in _command(pid)]


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def ask_stand_in(site: Site) -> None:
    """Let the site's scaffold ask a model, once an attempt; vLLM is played by the stand-in."""
    site.keys |= {
        "SCAFFOLD": "shell",
        "VLLM_BIN": str(make_vllm(site.folder / "bin")),
        "MODEL_PATH": str(make_model(site.folder / "model")),
        "TEMPERATURE": "1.0",
        "VLLM_MAX_MODEL_LEN": "2048",
        "MAX_TURNS": "1",
        "GEN_TP": "1",
        "GPUS_PER_NODE": "0",
        "SERVER_START_TIMEOUT_SEC": "60",
    }


def make_vllm(folder: Path) -> Path:
    """A ``vllm`` command and the Python beside it, which takes every command line."""
    folder.mkdir()
    programs = {
        "vllm": f'#!/bin/sh\nPYTHONPATH={TESTS} exec {sys.executable} -m fakes.vllm_stand_in "$@"\n',
        "python": """#!/bin/sh\necho '{"version": "0.0.0", "error": ""}'\n""",
    }
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder / "vllm"


def make_model(folder: Path) -> Path:
    """A folder that looks like a model."""
    folder.mkdir()
    config = {"num_attention_heads": 2, "max_position_embeddings": 4096, "vocab_size": 10}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "tokenizer.json").write_text("{}")
    return folder
