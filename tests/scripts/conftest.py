"""A place for one run through infer.sh."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from driving import FAILS, Site
from launching import Runner, ask_stand_in


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    runner = Runner(Site(tmp_path))
    yield runner
    runner.end_all()


@pytest.fixture
def served(runner: Runner) -> Runner:
    """A run whose scaffold asks a model, and whose verifier takes five minutes."""
    site = runner.site
    site.tasks({"long": "sleep 302; " + FAILS})
    ask_stand_in(site)
    return runner
