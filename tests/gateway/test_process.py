"""The gateway's process: what it says of itself, where it listens, and how it ends."""

import asyncio
import json
import signal
import socket
import stat
from pathlib import Path

import aiohttp
import pytest

from fakes.answers import HANG, Call, Reaction
from fakes.upstream import Upstream
from gateways import KEY, Launch, ask, sane, until
from rolloutgen.gateway.client import Gateway, Lease, status


async def _lease(gateway: Gateway, transcript: Path) -> Lease:
    return await gateway.lease(transcript=transcript, label="one", start={}, uses_tools=False, max_turns=None)


async def test_it_is_ready_after_its_canary_and_says_where_it_is(launch: Launch) -> None:
    async with Upstream(sane) as upstream:
        launch.server(upstream)
        record = await launch.start()
        assert record.state == "ready", record.message
        assert record.base_url.startswith("http://127.0.0.1:")
        assert record.base_url.endswith("/v1")
        assert any("TEMPERATURE" in line for line in record.findings)
        assert KEY not in launch.log.read_text() + (launch.folder / "gateway.json").read_text()


async def test_its_socket_is_for_its_owner_alone(launch: Launch) -> None:
    async with Upstream(sane) as upstream:
        launch.server(upstream)
        path = Path((await launch.start()).socket)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_with_its_transcripts_closed(launch: Launch, tmp_path: Path, signum: int) -> None:
    def rule(call: Call) -> Reaction:
        return HANG if call.body["messages"][-1]["content"] == "hang" else sane(call)

    async with Upstream(rule) as upstream, aiohttp.ClientSession() as session:
        launch.server(upstream)
        path = Path((await launch.start()).socket)
        gateway = Gateway(launch.folder)
        await gateway.open()
        lease = await _lease(gateway, tmp_path / "t.jsonl")
        hanging = asyncio.create_task(ask(lease, session, "hang"))
        await until(lambda: upstream.running == 1, "the call is at the server")
        launch.gateways[-1].send_signal(signum)
        assert await launch.ended() == 0
        await asyncio.gather(hanging, return_exceptions=True)
        await gateway.close()
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [line["type"] for line in lines][-2:] == ["reply", "end"]
    assert lines[-2]["end"] == "aborted"
    assert not path.exists()


async def test_it_ends_with_its_launcher(launch: Launch) -> None:
    launcher = await asyncio.create_subprocess_exec("sleep", "600")
    async with Upstream(sane) as upstream:
        launch.server(upstream)
        await launch.start(launcher_pid=launcher.pid)
        launcher.kill()
        await launcher.wait()
        assert await launch.ended() == 0


async def test_a_port_that_is_taken_is_named_with_its_owner(launch: Launch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with Upstream(sane) as upstream:
            launch.server(upstream)
            record = await launch.start(GATEWAY_PORT=str(port))
            assert await launch.ended() == 1
    assert record.state == "failed"
    assert f"GATEWAY_PORT={port} is in use" in record.message
    assert "pid " in record.message


@pytest.mark.parametrize(("host", "shown"), [("localhost", "localhost"), ("::1", "[::1]")])
async def test_it_is_found_at_the_host_that_is_named(
    launch: Launch, session: aiohttp.ClientSession, host: str, shown: str
) -> None:
    async with Upstream(sane) as upstream:
        launch.server(upstream)
        url = (await launch.start(GATEWAY_HOST=host)).base_url
        assert url.startswith(f"http://{shown}:")
        async with session.get(f"{url}/models") as response:
            assert response.status == 401


async def test_a_host_that_is_not_of_this_machine_is_named(launch: Launch) -> None:
    async with Upstream(sane) as upstream:
        launch.server(upstream)
        record = await launch.start(GATEWAY_HOST="192.0.2.1")
        assert await launch.ended() == 1
    assert "GATEWAY_HOST=192.0.2.1" in record.message


async def test_it_waits_for_a_server_that_starts_and_fails_with_one_that_failed(launch: Launch) -> None:
    launch.server(state="starting")
    process = launch.spawn()
    await until(lambda: launch.record is not None, "gateway.json is written")
    assert launch.record is not None
    assert launch.record.state == "starting"
    launch.server(state="failed", message="CUDA out of memory")
    assert await launch.ended() == 1
    assert process.returncode == 1
    assert launch.record.state == "failed"
    assert "CUDA out of memory" in launch.record.message


async def test_a_second_gateway_of_a_launch_asks_no_canary(launch: Launch) -> None:
    async with Upstream(sane) as upstream:
        launch.server(upstream)
        first = await launch.start()
        await launch.kill()
        asked = len(upstream.calls)
        assert asked > 0
        second = await launch.start()
        assert second.state == "ready"
        assert second.findings == first.findings
        assert len(upstream.calls) == asked
        assert second.socket == first.socket  # the dead one's was replaced


async def test_status_tells_of_calls_and_of_the_server(launch: Launch, tmp_path: Path) -> None:
    async with Upstream(sane) as upstream, aiohttp.ClientSession() as session:
        upstream.kv_usage, upstream.cached_share = 0.25, 0.5
        launch.server(upstream, restarts=2)
        await launch.start(HEARTBEAT_SEC="10")
        gateway = Gateway(launch.folder)
        await gateway.open()
        lease = await _lease(gateway, tmp_path / "t.jsonl")
        assert (await ask(lease, session))[0] == 200
        await until(lambda: _tells_rates(launch.folder), "two readings of the counters")
        seen = status(launch.folder)
        assert seen is not None
        assert (seen.attempts, seen.at_server, seen.server, seen.restarts) == (1, 0, "ready", 2)
        assert seen.kv_used_share == 0.25
        assert seen.prefix_hit_share == pytest.approx(0.5, abs=0.05)
        assert "server ready (2 restarts)" in seen.line()
        assert "KV cache used 25%" in seen.line()
        await gateway.close()
    await launch.kill()
    assert status(launch.folder) is None


def _tells_rates(folder: Path) -> bool:
    seen = status(folder)
    return seen is not None and seen.tokens_per_sec is not None
