"""The model server as the gateway's calls see it: where it is, and whether it serves."""

import asyncio
from typing import Final, Literal

State = Literal["starting", "ready", "restarting", "failed"]


class ServerState:
    """Kept true by whoever follows server.json; calls read it and wait for changes.

    ``base_url`` ends with ``/v1``, and may be another one after a restart; ``seed`` is that of the server that runs;
    ``gone`` says for people why no server will come any more (empty: one will).
    """

    def __init__(self) -> None:
        self.state: State = "starting"
        self.base_url = ""
        self.seed: int | None = None
        self.gone = ""
        self._changed: Final = asyncio.Condition()

    @property
    def ready(self) -> bool:
        return self.state == "ready"

    async def update(self, state: State, *, base_url: str = "", seed: int | None = None, message: str = "") -> None:
        """Take over what is known now; calls that wait look at it at once. ``failed`` is for good."""
        self.state, self.base_url, self.seed = state, base_url, seed
        self.gone = (message or "the model server failed") if state == "failed" else ""
        async with self._changed:
            self._changed.notify_all()

    async def changed(self, timeout_sec: float) -> None:
        """Return at the next update, or when the time is up."""
        try:
            async with asyncio.timeout(timeout_sec), self._changed:
                await self._changed.wait()
        except TimeoutError:
            return
