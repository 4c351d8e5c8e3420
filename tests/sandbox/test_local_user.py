"""The whole contract once more as an ordinary user of the machine. Where the suite runs as one already, it just did."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
NOBODY = 65534
RIGHTS = "-all,+dac_read_search"
"""It may read every file, as the interpreter may lie in a closed HOME; it has no other right."""


def run_as_nobody(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with ``arguments`` as uid 65534; ``folder`` becomes its own."""
    os.chown(folder, NOBODY, NOBODY)
    for parent in (folder, *folder.parents):
        if parent.name.startswith("pytest-"):
            parent.chmod(0o755)
    user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    rights = [f"--inh-caps={RIGHTS}", f"--ambient-caps={RIGHTS}", f"--bounding-set={RIGHTS}"]
    environment = {"HOME": "/nonexistent", "PATH": os.environ["PATH"], "PYTHONPATH": str(FOLDER.parents[1] / "src")}
    command = ["setpriv", *user, *rights, sys.executable, "-B", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=FOLDER.parents[1])


if os.geteuid() == 0:

    @pytest.mark.parametrize(
        "name",
        [
            "test_contract_exec.py",
            "test_contract_copy.py",
            "test_contract_life.py",
            "test_local.py",
            "test_local_limits.py",
        ],
    )
    def test_contract_as_an_ordinary_user(tmp_path: Path, name: str) -> None:
        options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", f"--basetemp={tmp_path}/t"]
        result = run_as_nobody(tmp_path, *options, str(FOLDER / name))
        assert result.returncode == 0, result.stdout + result.stderr
        assert " passed" in result.stdout

    def test_report_says_which_limits_stand_in(tmp_path: Path) -> None:
        """An ordinary user without a cgroup gets rlimits, and is told so, as a WARN that says how to mend it."""
        script = (
            "import asyncio; from rolloutgen.sandbox.base import Network\n"
            "from rolloutgen.sandbox.local.backend import LocalBackend\n"
            "b = LocalBackend(launch_id='t', images={'*': 'host'}, hidden=(), egress=Network.NONE)\n"
            "for f in asyncio.run(b.check([None])): print(f.level, f.subject, f.message, f.mend, sep='|')"
        )
        lines = run_as_nobody(tmp_path, "-c", script).stdout.splitlines()
        assert "WARN|limit of memory|rlimit (no writable cgroup)|run as root for limits by cgroup" in lines
        assert any(line.startswith("ok|BACKEND|") for line in lines)
