"""scripts/models/make_smollm2.sh: whole or not at all, and once. The Python of vLLM's environment is played here."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

PLAYED = """#!/bin/bash
# "-m pip ..." installs; "smollm2.py FILE FOLDER" writes a model, or stops half way where SLOW exists.
[[ $1 != -m ]] || exit 0
mkdir -p "$3"
echo weights >"$3/model.safetensors"
if [[ -e "${0%/*}/SLOW" ]]; then touch "${0%/*}/half-way" && sleep 600; fi
echo '{}' >"$3/config.json"
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    path = tmp_path / "bin" / "python"
    path.parent.mkdir()
    path.write_text(PLAYED)
    path.chmod(0o755)
    return path


def command(repository: Path, target: Path) -> list[str]:
    return ["bash", str(repository / "scripts" / "models" / "make_smollm2.sh"), str(target)]


def make(repository: Path, target: Path, python: Path | str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"VLLM_PYTHON": str(python)}
    return subprocess.run(command(repository, target), env=environment, capture_output=True, text=True, check=False)


def test_it_is_made_once(repository: Path, python: Path, tmp_path: Path) -> None:
    target = tmp_path / "it's a folder" / "m"
    made = make(repository, target, python)
    assert made.returncode == 0, made.stderr
    assert "is ready after" in made.stdout
    before = {file: file.stat().st_mtime_ns for file in target.iterdir()}
    assert "is there" in make(repository, target, python).stdout
    assert {file: file.stat().st_mtime_ns for file in target.iterdir()} == before


def test_a_kill_half_way_leaves_no_model(repository: Path, python: Path, tmp_path: Path) -> None:
    target = tmp_path / "models" / "m"
    slow = python.with_name("SLOW")
    slow.touch()
    environment = os.environ | {"VLLM_PYTHON": str(python)}
    killed = subprocess.Popen(command(repository, target), env=environment, start_new_session=True)
    while not python.with_name("half-way").exists():
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert not target.exists()
    slow.unlink()
    assert make(repository, target, python).returncode == 0
    assert sorted(path.name for path in target.parent.iterdir()) == ["m", "m.lock"]
    assert sorted(path.name for path in target.iterdir()) == ["config.json", "model.safetensors"]


def test_a_folder_in_the_way_and_a_missing_python_are_told(repository: Path, python: Path, tmp_path: Path) -> None:
    target = tmp_path / "m"
    assert "VLLM_PYTHON must name" in make(repository, target, "").stderr
    target.mkdir()
    (target / "notes.txt").touch()
    refused = make(repository, target, python)
    assert refused.returncode == 1
    assert f"{target} is in the way" in refused.stderr
    assert (target / "notes.txt").exists()
