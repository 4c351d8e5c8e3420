"""A30: the README's table is the code's, and no key is accepted and then ignored."""

import ast
from pathlib import Path

from rolloutgen.config.parameters import between_markers, table
from rolloutgen.settings import KNOBS

LAUNCHER_ONLY = {"venv_path"}
"""Read by scripts/infer/infer.sh, before there is a Python to read it."""


def test_a30_the_readme_holds_the_table_of_every_key(repository: Path) -> None:
    readme = (repository / "README.md").read_text(encoding="utf-8")
    wanted = table(repository / "scripts" / "templates")
    assert between_markers(readme) == wanted, "put the output of `rolloutgen parameters` between the markers"


def test_every_key_has_a_row_with_its_default(repository: Path) -> None:
    rows = table(repository / "scripts" / "templates").splitlines()[4:]
    assert [row.split("`")[1] for row in rows] == list(KNOBS)
    assert all(row.split(" | ")[3].strip() for row in rows)


def test_every_key_is_read_by_the_program(repository: Path) -> None:
    """A variable that may be set and does nothing is a bug."""
    read: set[str] = set()
    for file in (repository / "src").rglob("*.py"):
        if file.name not in ("settings.py", "knobs.py", "reading.py"):
            nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            read |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    ignored = {key.lower() for key in KNOBS} - read - LAUNCHER_ONLY
    assert ignored == set()


def test_the_launcher_reads_its_own_keys(repository: Path) -> None:
    launcher = (repository / "scripts" / "infer" / "infer.sh").read_text(encoding="utf-8")
    assert all(key.upper() in launcher for key in LAUNCHER_ONLY)
