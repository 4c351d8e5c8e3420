"""Imports point down, and harbor is imported in one place: the contracts of pyproject.toml hold."""

import subprocess
import sys
from pathlib import Path

from driving import environment


def test_every_module_has_its_layer_and_imports_point_down(repository: Path) -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    shown = subprocess.run(
        [lint, "--no-cache"], capture_output=True, text=True, cwd=repository, env=environment(), check=False
    )
    assert shown.returncode == 0, shown.stdout
    assert "3 kept, 0 broken" in shown.stdout
