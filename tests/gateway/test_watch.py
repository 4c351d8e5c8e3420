"""A stuck model server is found and replaced; a busy one is left alone."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from fakes.answers import ENGINE_DEAD, HANG, Call, Fault, Reaction
from fakes.upstream import Upstream
from gateways import Launch, ask, sane, until
from rolloutgen.gateway.client import Gateway, Lease, status
from rolloutgen.serving.restart import FILE, take_request


class TwoEngines(Upstream):
    """The second one never moves; ``stuck_running`` are its requests."""

    stuck_running = 0

    async def _metrics(self, request: web.Request) -> web.Response:
        told = str((await super()._metrics(request)).text)
        second = f'vllm:num_requests_running{{engine="1",model_name="policy"}} {self.stuck_running}\n'
        return web.Response(text=told + second)


def is_heartbeat(call: Call) -> bool:
    return call.path == "/v1/completions" and call.body.get("max_tokens") == 1


def deaf(call: Call) -> Reaction:
    """Heartbeats wait, as behind a full queue; other calls are answered."""
    return HANG if is_heartbeat(call) else sane(call)


async def _lease(gateway: Gateway, transcript: Path) -> Lease:
    return await gateway.lease(transcript=transcript, label="one", start={}, uses_tools=False, max_turns=None)


@asynccontextmanager
async def moving(upstream: Upstream) -> AsyncIterator[None]:
    """The server samples tokens for others meanwhile."""

    async def move() -> None:
        while True:
            upstream.counters["generation_tokens"] += 1
            await asyncio.sleep(0.05)

    task = asyncio.create_task(move())
    yield
    task.cancel()


@pytest.mark.parametrize("fault", [HANG, ENGINE_DEAD])
async def test_a_stuck_server_is_replaced_and_its_calls_are_held(
    launch: Launch, gateway: Gateway, session: aiohttp.ClientSession, tmp_path: Path, fault: Fault
) -> None:
    """Silent, or failing everything: no heartbeat is answered, and no counter moves."""
    async with Upstream(sane) as upstream:
        server = launch.server(upstream)
        await launch.start(HEARTBEAT_SEC="1")
        one = await _lease(gateway, tmp_path / "t.jsonl")
        upstream.rule = lambda _: fault
        call = asyncio.create_task(ask(one, session))
        await until((launch.folder / FILE).exists, "a restart is asked for")
        assert "stuck" in (take_request(launch.folder, server.vllm) or "")
        await until(lambda: _state(launch) == "restarting", "the gateway waits for another server")
        await asyncio.sleep(0.6)  # server.json still says ready, of the stuck one
        assert _state(launch) == "restarting"
        upstream.rule = sane
        await upstream.stop()  # as the kill of the old one does: calls break off
        await upstream.start()
        launch.server(upstream, restarts=1)
        assert (await call)[0] == 200
        report = await one.close({})
        assert (report.turns, report.failure, report.retried) == (1, "", True)
        assert report.held_sec > 0
        assert "it is restarted" in launch.log.read_text()


async def test_a_full_queue_alone_is_healthy(launch: Launch) -> None:
    async with Upstream(sane) as upstream:
        launch.server(upstream)
        await launch.start(HEARTBEAT_SEC="1")
        upstream.rule = deaf
        await until(lambda: any(map(is_heartbeat, upstream.calls)), "a heartbeat is sent")
        async with moving(upstream):
            await asyncio.sleep(3)
        assert not (launch.folder / FILE).exists()
        assert _state(launch) == "ready"
        await until((launch.folder / FILE).exists, "stuck, when the counters stand still")


async def test_one_engine_that_stands_still_among_others_is_found(launch: Launch) -> None:
    """GEN_DP: heartbeats are answered by the others."""
    async with TwoEngines(sane) as upstream:
        launch.server(upstream)
        await launch.start(HEARTBEAT_SEC="1")
        async with moving(upstream):
            await asyncio.sleep(2)
            assert not (launch.folder / FILE).exists()
            upstream.stuck_running = 3
            await until((launch.folder / FILE).exists, "a restart is asked for")
        assert "engine 1" in launch.log.read_text()


async def test_an_idle_server_gets_one_heartbeat_at_a_time_and_nobody_records_it(
    launch: Launch, gateway: Gateway, tmp_path: Path
) -> None:
    async with Upstream(sane) as upstream:
        launch.server(upstream)
        await launch.start(HEARTBEAT_SEC="1")
        one = await _lease(gateway, tmp_path / "t.jsonl")
        await until(lambda: sum(map(is_heartbeat, upstream.calls)) >= 3, "heartbeats are sent")
        assert (await one.close({})).calls == 0
        assert _state(launch) == "ready"
        upstream.rule = deaf
        asked = sum(map(is_heartbeat, upstream.calls))
        async with moving(upstream):
            await asyncio.sleep(2)
        assert sum(map(is_heartbeat, upstream.calls)) <= asked + 1


async def test_a_gateway_that_stood_still_itself_does_not_count_that_time(launch: Launch) -> None:
    async with Upstream(sane) as upstream:
        launch.server(upstream)
        await launch.start(HEARTBEAT_SEC="1")
        upstream.rule = deaf
        await until(lambda: any(map(is_heartbeat, upstream.calls)), "a heartbeat is sent")
        launch.gateways[-1].send_signal(signal.SIGSTOP)
        await asyncio.sleep(6)
        launch.gateways[-1].send_signal(signal.SIGCONT)
        await until((launch.folder / FILE).exists, "a restart is asked for")
    found = re.search(r"no sign of life for (\d+) s", launch.log.read_text())
    assert found is not None
    assert int(found.group(1)) < 6


async def test_suspicion_takes_time_from_calls_in_flight_until_a_sign_of_life(
    launch: Launch, gateway: Gateway, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with Upstream(sane) as upstream:
        launch.server(upstream)
        await launch.start(HEARTBEAT_SEC="8")
        one = await _lease(gateway, tmp_path / "t.jsonl")
        assert (await one.report()).suspect_sec == 0
        upstream.rule = lambda _: HANG
        call = asyncio.create_task(ask(one, session))
        while (await one.report()).suspect_sec == 0:  # noqa: ASYNC110  # the limit is that of the test
            await asyncio.sleep(0.05)
        assert (await one.report()).suspect_sec > 3
        upstream.counters["generation_tokens"] += 1
        while (await one.report()).suspect_sec > 0:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert not (launch.folder / FILE).exists()
        report = await one.close({})
        assert report.suspect_sec == 0
        await asyncio.gather(call, return_exceptions=True)


def _state(launch: Launch) -> str:
    seen = status(launch.folder)
    return seen.server if seen is not None else ""
