from collections.abc import Iterator
from pathlib import Path

import pytest

from exporting import Results


@pytest.fixture
def results(tmp_path: Path) -> Iterator[Results]:
    found = Results(tmp_path, ["b", "a"])
    yield found
    found.site.clean()
