"""A sandbox can reach the gateway's port, and is not to be trusted: bytes that are no request, huge bodies."""

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from fakes.upstream import Upstream
from gateways import Launch, ask, sane, until
from rolloutgen.gateway.client import Gateway, Lease

type Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def _leased(launch: Launch, folder: Path, files: int = 1024) -> AsyncIterator[Lease]:
    """Of a gateway that may have so many ``files`` open."""
    async with Upstream(sane) as upstream:
        launch.server(upstream)
        resource.prlimit(launch.spawn().pid, resource.RLIMIT_NOFILE, (files, files))
        await until(lambda: launch.record is not None and launch.record.state == "ready", "the gateway is ready")
        async with _lease(launch, folder / "first.jsonl") as lease:
            yield lease


@asynccontextmanager
async def _lease(launch: Launch, transcript: Path) -> AsyncIterator[Lease]:
    gateway = Gateway(launch.folder)
    await gateway.open()
    try:
        yield await gateway.lease(transcript=transcript, label="one", start={}, uses_tools=False, max_turns=None)
    finally:
        await gateway.close()


async def _connect(lease: Lease) -> Connection:
    host, port = lease.endpoint.base_url.removeprefix("http://").removesuffix("/v1").split(":")
    return await asyncio.open_connection(host, int(port))


@pytest.mark.parametrize("bad", ["GET /{key} HTTP/1.1\x01", "GET / HTTP/1.1\r\nAuthorization: Bearer {key}\x01"])
async def test_what_is_no_http_is_not_logged(launch: Launch, tmp_path: Path, bad: str) -> None:
    """A key may stand in it, and it comes as often as a sandbox likes."""
    async with _leased(launch, tmp_path) as lease:
        before = launch.log.read_text()
        reader, writer = await _connect(lease)
        writer.write(f"{bad}\r\n\r\n".replace("{key}", lease.endpoint.api_key).encode())
        assert b" 400 " in await reader.readline()
        await reader.read()
        writer.close()
    assert launch.log.read_text() == before


async def test_large_bodies_that_come_at_once_keep_nobody_waiting_for_all(launch: Launch, tmp_path: Path) -> None:
    """The driver takes a gateway for dead that is silent for half a minute, and all attempts would end with it."""
    body = b'{"messages": [{"role": "user", "content": "a"}], "x": [' + b"{}," * 700_000 + b"0]}"
    heard: list[float] = []
    async with _leased(launch, tmp_path) as lease:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {lease.endpoint.api_key}\r\n"
        connections = [await _connect(lease) for _ in range(16)]
        for _, writer in connections:
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:-1])
            await writer.drain()
        looking = asyncio.create_task(_look(lease, heard))
        for _, writer in connections:
            writer.write(body[-1:])
        answers = [await reader.readline() for reader, _ in connections]
        looking.cancel()
        for _, writer in connections:
            writer.close()
    assert all(b" 200 " in answer for answer in answers)
    assert len(heard) >= len(answers) / 2


async def _look(lease: Lease, heard: list[float]) -> None:
    """As the driver does, again and again."""
    while True:
        heard.append((await lease.report()).model_sec)


async def test_connections_from_outside_leave_files_for_everything_else(launch: Launch, tmp_path: Path) -> None:
    """Without a key and without a word, as many as a sandbox likes: transcripts and the driver must not lack them."""
    async with _leased(launch, tmp_path, files=128) as lease, aiohttp.ClientSession() as session:
        connections = [await _connect(lease) for _ in range(150)]
        assert await connections[-1][0].read() == b""
        async with _lease(launch, tmp_path / "second.jsonl") as other:
            assert (await other.close({})).failure == ""
        for _, writer in connections:
            writer.close()
        status = 0
        while status != 200:  # until the gateway has seen them go
            with suppress(aiohttp.ClientError):
                status, _ = await ask(lease, session)
        assert (await lease.close({})).turns == 1
