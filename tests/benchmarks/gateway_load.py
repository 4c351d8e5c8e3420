"""The load of bench_gateway.py, in a process of its own: a round of conversations over as many connections as keys.

Reads a ``Load`` as JSON from stdin, prints a ``Seen`` as JSON. It looks for the answers' words in the raw bytes and
parses nothing, so that it costs little beside what it measures.
"""

import asyncio
import json
import resource
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import cast

import orjson
import uvloop

MARK = b"zz"
"""Every token of the answers has this and nothing else in a stream has."""
PART = 4000
"""Letters of a message: the prompt is made of messages of this size, as the outputs of commands are."""


@dataclass(frozen=True)
class Load:
    """``calls`` conversations of one turn more each, on each of ``keys``; prompts begin with ``size`` bytes.

    ``ids`` asks for token ids (what the gateway asks for by itself). Streams begin spread over ``spread_sec``.
    """

    host: str
    port: int
    keys: list[str]
    size: int
    calls: int
    tokens: int
    spread_sec: float
    ids: bool


@dataclass
class Seen:
    """Times to the first token in seconds, one a call; ``tokens`` received in ``sec`` seconds."""

    first_sec: list[float] = field(default_factory=list)
    tokens: int = 0
    sec: float = 0.0
    cpu_sec: float = 0.0


class Stream(asyncio.Protocol):
    """One connection; one call at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.done: asyncio.Future[None] | None = None
        self.first = 0.0
        self.tokens = 0
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are, and do not say so

    async def ask(self, head: bytes, body: bytes) -> float:
        """Seconds to the first token, after the whole answer."""
        assert self.transport is not None
        self.done = asyncio.get_running_loop().create_future()
        self.first, self.tokens, self._tail = 0.0, 0, b""
        began = time.perf_counter()
        self.transport.write(head + body)
        await self.done
        return self.first - began

    def data_received(self, data: bytes) -> None:
        assert self.done is not None
        if not self._tail and not data.startswith(b"HTTP/1.1 200"):
            self.done.set_exception(RuntimeError(f"refused: {data[:500]!r}"))
            return
        # A mark may lie across two pieces: the last letter is looked at again, and cannot be a whole mark.
        self.tokens += (self._tail[-1:] + data).count(MARK)
        if self.tokens and not self.first:
            self.first = time.perf_counter()
        self._tail = (self._tail + data)[-64:]
        if self._tail.endswith(b"\r\n0\r\n\r\n"):
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(RuntimeError(f"connection lost: {exc}"))


class Conversation:
    """Messages as JSON text, so that a longer prompt costs no more than to put it together."""

    def __init__(self, load: Load, number: int) -> None:
        self.load = load
        self.messages = [_message("system", "You are an agent. " * 50), _message("user", f"Solve task {number}.")]
        for part in range(load.size // PART):
            filler = f"{part:04} total drwxr-xr-x root value {part % 7} = x[{part}]; "
            self._add("assistant" if part % 2 else "user", (filler * (PART // len(filler) + 1))[:PART])

    def answered(self, text: str) -> None:
        self._add("assistant", text)
        self._add("user", f"output {len(self.messages)}: " + "no such file or directory; " * 60)

    def body(self) -> bytes:
        rest = {"model": "policy", "max_tokens": 4096, "stream": True, "temperature": 1.0, "return_token_ids": True}
        if not self.load.ids:
            del rest["return_token_ids"]
        return orjson.dumps(rest)[:-1] + b',"messages":[' + b",".join(self.messages) + b"]}"

    def _add(self, role: str, text: str) -> None:
        self.messages.append(_message(role, text))


def _message(role: str, text: str) -> bytes:
    return orjson.dumps({"role": role, "content": text})


def answer(tokens: int) -> str:
    """What the upstream answers, end-of-turn token aside."""
    return " ".join(f"zz{number}" for number in range(tokens - 1))


async def _run_stream(load: Load, number: int, seen: Seen) -> None:
    conversation = Conversation(load, number)
    _, stream = await asyncio.get_running_loop().create_connection(Stream, load.host, load.port)
    await asyncio.sleep(load.spread_sec * number / len(load.keys))
    for _ in range(load.calls):
        body = conversation.body()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {load.host}\r\nAuthorization: Bearer {load.keys[number]}\r\n"
        )
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        seen.first_sec.append(await stream.ask(head.encode(), body))
        seen.tokens += stream.tokens
        conversation.answered(answer(load.tokens))
    assert stream.transport is not None
    stream.transport.close()


async def main() -> None:
    load, seen = Load(**json.load(sys.stdin)), Seen()
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(len(load.keys)):
            group.create_task(_run_stream(load, number, seen))
    seen.sec = time.perf_counter() - began
    usage = resource.getrusage(resource.RUSAGE_SELF)
    seen.cpu_sec = usage.ru_utime + usage.ru_stime
    print(json.dumps(asdict(seen)))


if __name__ == "__main__":
    uvloop.run(main())
