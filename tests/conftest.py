"""What all tests share: real inputs, and the rule that a skip is never taken for a pass."""

import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
signal.signal(signal.SIGINT, signal.default_int_handler)  # what was started with & ignores it, and children would too
NO_SKIPS = os.environ.get("ROLLOUTGEN_TESTS_NO_SKIPS") == "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where every part is promised to be there (CI), a skipped test is a failed one."""
    report = yield
    if NO_SKIPS and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped where nothing may be: {reason}"
    return report


def _inputs(name: str) -> Path:
    root = Path(os.environ.get("TEST_INPUTS") or REPOSITORY.parent / "shared")
    folder = root / name
    if not (folder / "index.parquet").is_file():
        pytest.skip(f"no test input {folder}: set TEST_INPUTS to the folder that holds {name}/")
    return folder


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def humaneval() -> Path:
    """164 real Harbor tasks and their index."""
    return _inputs("humaneval")


@pytest.fixture(scope="session")
def quixbugs() -> Path:
    """29 real Harbor tasks and their index."""
    return _inputs("quixbugs")
