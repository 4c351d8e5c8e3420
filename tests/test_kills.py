"""A20, C10: kill -9 at random moments of a run whose verdicts are known, through infer.sh: of the driver, of vLLM's parent
process, of infer.sh alone, of everything at once. No verdict is lost, none counted twice, none invented, nothing left."""

import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from driving import REPOSITORY, Site, until
from launching import LAUNCHES, Runner, last_line_of_success
from rolloutgen import launches
from rolloutgen.processes import Process, marked
from rolloutgen.results.summary import read_summary
from rolloutgen.serving.leavings import temporary_folder
from rolloutgen.serving.record import ServerRecord
from standing_in import make_model, make_vllm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

N_INSTANCES = 15
N_TRIALS = 4
N_KILLS = 10
TARGETS = ("driver", "server", "launcher", "everything")
REWARDS = {f"task{i:02}": i / 10 for i in range(N_INSTANCES)}
"""All different, so that a verdict at the wrong place shows; from 1 on they pass."""


@dataclass
class Victim:
    """A Runner that is killed again and again, and what was seen of its launches, so that whatever lives on is known."""

    runner: Runner
    seen: set[Process] = field(default_factory=set)
    files: set[Path] = field(default_factory=set)
    stored: dict[Path, bytes] = field(default_factory=dict)

    def kill(self, target: str, process: "object") -> None:
        """SIGKILL to ``target`` of the launch that runs now. What stood before is kept in mind."""
        self.stored |= self.runner.site.outcomes()
        parts = self._look()
        launcher = self.runner.started[-1]
        aims: list[Process | None] = {
            "driver": [parts.get("driver")],
            "server": [parts.get("server")],
            "launcher": [],
            "everything": list(self._everything()),
        }[target]
        if target in ("launcher", "everything") or not any(aims):
            launcher.kill()
        for aim in aims:
            if aim is not None:
                aim.signal(signal.SIGKILL)
