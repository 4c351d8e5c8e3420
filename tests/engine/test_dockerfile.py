"""The working directory that a Dockerfile ends with."""

import pytest

from rolloutgen.engine.dockerfile import last_workdir

CASES = [
    ("FROM a\nWORKDIR /app\n", "/app"),
    ("FROM a\nworkdir /app", "/app"),
    ("FROM a\nRUN true", None),
    ("", None),
    ("FROM a\nWORKDIR /a\nWORKDIR b\nWORKDIR c/d", "/a/b/c/d"),
    ("FROM a\nWORKDIR b", "/b"),
    ("FROM a AS one\nWORKDIR /one\nFROM b\nRUN true", None),
    ("FROM a AS one\nWORKDIR /one\nFROM one AS two\nWORKDIR sub", "/one/sub"),
    ("FROM --platform=linux/amd64 a AS One\nWORKDIR /one\nFROM one", "/one"),
    ("FROM a\nENV HOME=/home/u X=1\nWORKDIR $HOME/work", "/home/u/work"),
    ("FROM a\nENV BASE /srv\nWORKDIR ${BASE}/x", "/srv/x"),
    ("ARG D=/opt\nFROM a\nWORKDIR ${D}", "/opt"),
    ("FROM a\nWORKDIR ${NOT_SET}/x", None),
    ("FROM a\nWORKDIR ${NOT_SET:-/x}", "/x"),
    ('FROM a\nWORKDIR "/with space"', "/with space"),
    ("FROM a\nRUN echo \\\n  WORKDIR /no\nWORKDIR /yes", "/yes"),
    ("FROM a\nWORKDIR /yes\n# WORKDIR /no\n", "/yes"),
    ("FROM a\nRUN true && \\\n# WORKDIR /no\n  false\nWORKDIR /yes", "/yes"),
]


@pytest.mark.parametrize(("text", "workdir"), CASES)
def test_last_workdir(text: str, workdir: str | None) -> None:
    assert last_workdir(text) == workdir
