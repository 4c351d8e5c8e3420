"""What vLLM's /metrics tells (the names are those of vLLM 0.32): token counters, prefix cache, KV cache."""

import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

_SAMPLE: Final = re.compile(rb"^vllm:(\w+)\{[^}]*\} (\S+)$", re.MULTILINE)
_WINDOW_SEC: Final = 10.0


_PROMPT: Final = b"prompt_tokens_total"
_GENERATION: Final = b"generation_tokens_total"
_QUERIES: Final = b"prefix_cache_queries_total"
_HITS: Final = b"prefix_cache_hits_total"
_KV_USED: Final = b"kv_cache_usage_perc"
_NAMES: Final = frozenset((_PROMPT, _GENERATION, _QUERIES, _HITS, _KV_USED))


@dataclass(frozen=True, slots=True)
class Counters:
    """One reading: sums over the engines; the share of the KV cache in use is their mean (None: it is not told)."""

    prompt_tokens: float
    generation_tokens: float
    prefix_queries: float
    prefix_hits: float
    kv_used: float | None

    @classmethod
    def read(cls, text: bytes) -> Self:
        """Of the Prometheus text format; what is missing or no number counts as 0. Never raises."""
        found: dict[bytes, list[float]] = {name: [] for name in _NAMES}
        for name, value in _SAMPLE.findall(text):
            if name in _NAMES:
                found[name].append(_number(value))
        used = found[_KV_USED]
        return cls(
            prompt_tokens=sum(found[_PROMPT]),
            generation_tokens=sum(found[_GENERATION]),
            prefix_queries=sum(found[_QUERIES]),
            prefix_hits=sum(found[_HITS]),
            kv_used=sum(used) / len(used) if used else None,
        )


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


class Meter:
    """The readings of the last ten seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._readings: deque[tuple[float, Counters]] = deque()

    @property
    def last(self) -> Counters | None:
        return self._readings[-1][1] if self._readings else None

    def take(self, counters: Counters) -> bool:
        """Whether anything moved since the reading before."""
        now, last = self._clock(), self.last
        if last is not None and counters.generation_tokens < last.generation_tokens:
            self._readings.clear()  # another server
        self._readings.append((now, counters))
        while self._readings[0][0] < now - _WINDOW_SEC and len(self._readings) > 2:  # noqa: PLR2004  # a span has two ends
            self._readings.popleft()
        return last is not None and counters != last

    @property
    def tokens_per_sec(self) -> float | None:
        """Sampled tokens, over the readings of the window; None before the second one."""
        if len(self._readings) < 2:  # noqa: PLR2004  # a span has two ends
            return None
        (begin, first), (end, last) = self._readings[0], self._readings[-1]
        return (last.generation_tokens - first.generation_tokens) / max(end - begin, 1e-3)

    @property
    def prefix_hit_share(self) -> float | None:
        last = self.last
        return last.prefix_hits / last.prefix_queries if last is not None and last.prefix_queries else None
