"""What the gateway says of itself and of the model server: one line of ``rolloutgen status``."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayStatus:
    """As of now. ``tokens_per_sec`` counts sampled tokens of the last ten seconds, of the whole server.

    ``at_server``, ``queued`` and ``held`` are calls (held: the server is away or fails). ``prefix_hit_share`` is of all
    prompt tokens since the server's start, ``kv_used_share`` of its KV cache now (None: the server does not tell).
    """

    attempts: int = 0
    at_server: int = 0
    queued: int = 0
    held: int = 0
    tokens_per_sec: float | None = None
    prefix_hit_share: float | None = None
    kv_used_share: float | None = None
    server: str = "starting"
    restarts: int = 0

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """Unknown fields are passed over, missing ones have their defaults."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in raw.items() if name in names})

    def line(self) -> str:
        """For people: ``server ready (1 restart): 1234 tokens/s, ...``."""
        times = f" ({self.restarts} restart{'s' * (self.restarts != 1)})" if self.restarts else ""
        rate = "" if self.tokens_per_sec is None else f"{self.tokens_per_sec:.0f} tokens/s, "
        shares = (("prefix-cache hits", self.prefix_hit_share), ("KV cache used", self.kv_used_share))
        told = "".join(f", {name} {share:.0%}" for name, share in shares if share is not None)
        calls = f"calls: {self.at_server} at the server, {self.queued} queued, {self.held} held"
        return f"server {self.server}{times}: {rate}{calls}; {self.attempts} attempts{told}"
