"""What vLLM's /metrics tells of its engines (the names are those of vLLM 0.32): token counters, caches, requests."""

import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

_SAMPLE: Final = re.compile(rb"^vllm:(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)
_ENGINE: Final = re.compile(rb'(?:^|,)engine="([^"]*)"')
_FIELDS: Final = {
    b"prompt_tokens_total": "prompt_tokens",
    b"generation_tokens_total": "generation_tokens",
    b"prefix_cache_queries_total": "prefix_queries",
    b"prefix_cache_hits_total": "prefix_hits",
    b"kv_cache_usage_perc": "kv_used",
    b"num_requests_running": "running",
}
_WINDOW_SEC: Final = 10.0


@dataclass(frozen=True, slots=True)
class Counters:
    """Of one engine, or of all: tokens since the start, share of the KV cache in use, requests that run.

    Each step of an engine writes them anew, also one that brings no token (a part of a long prompt fills the cache).
    """

    prompt_tokens: float = 0.0
    generation_tokens: float = 0.0
    prefix_queries: float = 0.0
    prefix_hits: float = 0.0
    kv_used: float = 0.0
    running: float = 0.0


def read(text: bytes) -> dict[str, Counters]:
    """Engine -> what it tells, of the Prometheus text format; what is missing or no number is 0. Never raises."""
    found: dict[str, dict[str, float]] = {}
    for name, labels, value in _SAMPLE.findall(text):
        engine = _ENGINE.search(labels)
        if name in _FIELDS and engine is not None:
            found.setdefault(engine.group(1).decode(errors="replace"), {})[_FIELDS[name]] = _number(value)
    return {engine: Counters(**values) for engine, values in found.items()}


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


class Meter:
    """The readings of the last ten seconds, and since when each engine stands still."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._read_at = clock()
        self._engines: Mapping[str, Counters] = {}
        self._moved_at: dict[str, float] = {}
        self._tokens: deque[tuple[float, float]] = deque()

    def take(self, engines: Mapping[str, Counters]) -> bool:
        """Whether anything moved since the reading before."""
        now, before, known = self._clock(), self._engines, bool(self._engines)
        moved = [engine for engine in engines if engines[engine] != before.get(engine)]
        self._moved_at = {engine: self._moved_at.get(engine, now) for engine in engines} | dict.fromkeys(moved, now)
        self._read_at, self._engines = now, engines
        self._count(now, self._sum("generation_tokens"))
        return known and bool(moved)

    def standing(self, sec: float) -> str:
        """An engine that had requests to run, and did not move for ``sec`` up to the last reading (empty: none)."""
        busy = (engine for engine, counters in self._engines.items() if counters.running > 0)
        return next((engine for engine in busy if self._read_at - self._moved_at[engine] >= sec), "")

    def forget(self) -> None:
        """What was read before says nothing of what is read next."""
        self._engines = {}
        self._moved_at.clear()
        self._tokens.clear()

    @property
    def tokens_per_sec(self) -> float | None:
        """Sampled tokens, over the readings of the window; None before the second one."""
        if len(self._tokens) < 2:  # noqa: PLR2004  # a span has two ends
            return None
        (begin, first), (end, last) = self._tokens[0], self._tokens[-1]
        return (last - first) / max(end - begin, 1e-3)

    @property
    def prefix_hit_share(self) -> float | None:
        """Of all prompt tokens since the server's start."""
        queries = self._sum("prefix_queries")
        return self._sum("prefix_hits") / queries if queries else None

    @property
    def kv_used_share(self) -> float | None:
        """The mean of the engines."""
        return self._sum("kv_used") / len(self._engines) if self._engines else None

    def _sum(self, field: str) -> float:
        return sum(float(getattr(counters, field)) for counters in self._engines.values())

    def _count(self, now: float, tokens: float) -> None:
        if self._tokens and tokens < self._tokens[-1][1]:
            self._tokens.clear()  # another server
        self._tokens.append((now, tokens))
        while self._tokens[0][0] < now - _WINDOW_SEC and len(self._tokens) > 2:  # noqa: PLR2004  # likewise
            self._tokens.popleft()
