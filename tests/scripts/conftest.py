"""A place for one run through infer.sh."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from driving import Site
from launching import Runner


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    runner = Runner(Site(tmp_path))
    yield runner
    runner.end_all()
