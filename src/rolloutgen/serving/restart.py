"""When the model server is started again: who may ask for it (restart.json of a launch), and how often it happens."""

import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rolloutgen.processes import Process
from rolloutgen.results.durable import replace

FILE: Final = "restart.json"
_HOUR_SEC: Final = 3600.0
_WHY_MAX: Final = 500


def ask_restart(launch: Path, vllm: Process, why: str) -> None:
    """Ask vLLM's parent to replace the server that runs as ``vllm``, and no later one. Raises StoreError."""
    replace(launch / FILE, json.dumps({"vllm": asdict(vllm), "why": why}).encode())


def take_request(launch: Path, vllm: Process | None) -> str | None:
    """Why ``vllm`` is to be replaced; None where nobody asks for that. What was read is removed.

    One that names another server was met already, and what cannot be read asks for nothing.
    """
    file = launch / FILE
    try:
        raw = file.read_bytes()
        file.unlink(missing_ok=True)
        request = json.loads(raw)
        asked, why = Process.read(request["vllm"]), " ".join(str(request["why"]).split())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return why[:_WHY_MAX] if asked == vllm else None


class Restarts:
    """At most ``limit`` restarts in any hour. ``clock`` tells seconds."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self._begun: deque[float] = deque()

    def take(self) -> int | None:
        """Count one more: its number within the last hour; None where the limit forbids it."""
        now = self._clock()
        while self._begun and now - self._begun[0] >= _HOUR_SEC:
            self._begun.popleft()
        if len(self._begun) >= self.limit:
            return None
        self._begun.append(now)
        return len(self._begun)
