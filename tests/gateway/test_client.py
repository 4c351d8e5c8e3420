"""Leases: the driver's side of a real gateway process, which is killed, replaced, and outlives its model server."""

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from fakes.answers import HANG
from fakes.upstream import Upstream
from gateways import Launch, ask, sane, until
from rolloutgen.errors import InferenceError, StoreError
from rolloutgen.gateway import client
from rolloutgen.gateway.client import Gateway, Lease
from rolloutgen.gateway.record import GatewayRecord
from rolloutgen.outcomes import Cause


async def lease(gateway: Gateway, transcript: Path, *, max_turns: int | None = None, tools: bool = False) -> Lease:
    return await gateway.lease(
        transcript=transcript, label=transcript.stem, start={"n": 1}, uses_tools=tools, max_turns=max_turns
    )


def _lines(transcript: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in transcript.read_text().splitlines()]


async def test_a_key_lives_from_lease_to_close(
    launch: Launch, gateway: Gateway, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """A6: the transcript is the gateway's, and is closed when close returns; a dead key gets 401."""
    async with Upstream(sane) as upstream:
        launch.server(upstream)
        await launch.start()
        one = await lease(gateway, tmp_path / "one.jsonl")
        key = one.endpoint.api_key
        assert len(key) == 3 + 48
        assert key.startswith("rg-")
        assert (await ask(one, session))[0] == 200
        report = await one.close({"ending": "exit"})
        assert (report.turns, report.failure) == (1, "")
        assert report.model_sec > 0
        assert (await ask(one, session))[0] == 401
        assert await one.close({"ending": "again"}) == report == await one.report()
    last = _lines(tmp_path / "one.jsonl")[-1]
    assert (last["type"], last["ending"]) == ("end", "exit")
    assert key not in (tmp_path / "one.jsonl").read_text() + launch.log.read_text()


async def test_the_keys_of_a_driver_that_is_gone_die(
    launch: Launch, gateway: Gateway, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """Also of one that took the gateway for dead while it stood still. Keys of the next driver's attempts live on."""
    async with Upstream(lambda call: HANG if "hang" in str(call.body) else sane(call)) as upstream:
        launch.server(upstream)
        await launch.start()
        old = await lease(gateway, tmp_path / "old.jsonl")
        hanging = asyncio.create_task(ask(old, session, "hang"))
        await until(lambda: upstream.running == 1, "the call is at the server")
        following = Gateway(launch.folder)
        await following.open()
        new = await lease(following, tmp_path / "new.jsonl")
        await gateway.close()
        await until(lambda: upstream.running == 0, "the call is taken back")
        await asyncio.gather(hanging, return_exceptions=True)
        assert (await ask(old, session))[0] == 401
        assert (await ask(new, session))[0] == 200
        assert (await new.close({})).turns == 1
        await until(lambda: _lines(tmp_path / "old.jsonl")[-1]["type"] == "end", "the transcript is closed")
        await following.close()
    assert _lines(tmp_path / "old.jsonl")[-2]["end"] == "aborted"


async def test_parallel_attempts_are_told_apart(
    launch: Launch, gateway: Gateway, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with Upstream(sane) as upstream:
        launch.server(upstream)
        await launch.start()
        leases = [await lease(gateway, tmp_path / f"{n}.jsonl") for n in range(8)]
        assert len({one.endpoint.api_key for one in leases}) == 8
        await asyncio.gather(*(ask(one, session, f"I am {n}") for n, one in enumerate(leases) for _ in range(n)))
        reports = await asyncio.gather(*(one.close({}) for one in leases))
    assert [report.turns for report in reports] == list(range(8))
    for number in range(8):
        text = (tmp_path / f"{number}.jsonl").read_text()
        assert {n for n in range(8) if f"I am {n}" in text} == ({number} if number else set())


async def test_a_report_is_true_while_a_call_is_in_flight(
    launch: Launch, gateway: Gateway, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with Upstream(lambda call: HANG if "hang" in str(call.body) else sane(call)) as upstream:
        launch.server(upstream)
        await launch.start()
        one = await lease(gateway, tmp_path / "t.jsonl")
        hanging = asyncio.create_task(ask(one, session, "hang"))
        await until(lambda: upstream.running == 1, "the call is at the server")
        before = await one.report()
        await asyncio.sleep(0.05)
        now = await one.report()
        assert (now.calls, now.turns) == (1, 0)
        assert now.model_sec > before.model_sec
        final = await one.close({"ending": "agent_timeout"})
        assert (final.aborted, final.failure) == (1, "")
        with pytest.raises(aiohttp.ClientError):
            await hanging
    assert [line["type"] for line in _lines(tmp_path / "t.jsonl")][-2:] == ["reply", "end"]


async def test_a_transcript_that_exists_is_never_overwritten(launch: Launch, gateway: Gateway, tmp_path: Path) -> None:
    async with Upstream(sane) as upstream:
        launch.server(upstream)
        await launch.start()
        (tmp_path / "t.jsonl").write_text("evidence")
        with pytest.raises(StoreError, match="exists"):
            await lease(gateway, tmp_path / "t.jsonl")
    assert (tmp_path / "t.jsonl").read_text() == "evidence"


async def test_the_gateways_death_loses_its_leases_and_the_next_one_gives_new_ones(
    launch: Launch, gateway: Gateway, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with Upstream(sane) as upstream:
        launch.server(upstream)
        await launch.start()
        old = await lease(gateway, tmp_path / "old.jsonl")
        assert (await ask(old, session))[0] == 200
        seen = await old.report()
        lost = asyncio.create_task(old.lost())
        await launch.kill()
        error = await asyncio.wait_for(lost, 5)
        assert error.cause is Cause.MODEL_DOWN
        last = await old.report()
        assert last.server_down
        assert "gateway" in last.failure
        assert last.turns == seen.turns == 1
        waiting = asyncio.create_task(lease(gateway, tmp_path / "new.jsonl"))
        await launch.start()
        new = await waiting
        assert (await ask(new, session))[0] == 200
        assert (await old.close({})).failure == last.failure
        await new.close({})
    kinds = [line["type"] for line in _lines(tmp_path / "old.jsonl")]
    assert kinds[0] == "start"
    assert "reply" in kinds  # whole up to the kill
    assert "end" not in kinds


async def test_a_key_of_a_dead_gateway_is_unknown_to_the_next(
    launch: Launch, gateway: Gateway, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with Upstream(sane) as upstream:
        launch.server(upstream)
        await launch.start()
        old = await lease(gateway, tmp_path / "old.jsonl")
        await launch.kill()
        record = await launch.start()
        headers = {"Authorization": f"Bearer {old.endpoint.api_key}"}
        async with session.get(f"{record.base_url}/models", headers=headers) as response:
            assert response.status == 401


async def test_a_lease_waits_a_bounded_time_for_a_gateway(launch: Launch, tmp_path: Path) -> None:
    gateway = Gateway(launch.folder, lease_sec=0.2)
    await gateway.open()
    with pytest.raises(InferenceError, match="no gateway came") as error:
        await lease(gateway, tmp_path / "t.jsonl")
    await gateway.close()
    assert error.value.cause is Cause.MODEL_DOWN


async def test_a_server_that_failed_for_good_loses_all_and_reports_still_come(
    launch: Launch, gateway: Gateway, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with Upstream(sane) as upstream:
        launch.server(upstream)
        await launch.start()
        one = await lease(gateway, tmp_path / "one.jsonl")
        assert (await ask(one, session))[0] == 200
        failed, lost = asyncio.create_task(gateway.failed()), asyncio.create_task(one.lost())
        await asyncio.sleep(0.1)
        assert not failed.done()
        launch.server(state="failed", message="VLLM_RESTARTS is used up")
        assert "VLLM_RESTARTS is used up" in await asyncio.wait_for(failed, 10)
        assert (await asyncio.wait_for(lost, 10)).cause is Cause.MODEL_DOWN
        with pytest.raises(InferenceError, match="VLLM_RESTARTS"):
            await lease(gateway, tmp_path / "two.jsonl")
        assert not (tmp_path / "two.jsonl").exists()
        report = await one.close({"ending": "error"})
        assert (report.turns, report.failure) == (1, "")
    assert _lines(tmp_path / "one.jsonl")[-1]["type"] == "end"


async def test_a_dead_parent_of_the_server_is_a_server_that_failed(launch: Launch, gateway: Gateway) -> None:
    """It was killed with -9, so server.json says ready for ever."""
    async with Upstream(sane) as upstream:
        parent = launch.server(upstream).vllm
        assert parent is not None
        launch.server(upstream, serve=parent)
        await launch.start()
        parent.signal(9)
        assert "gone" in await asyncio.wait_for(gateway.failed(), 10)


async def test_calls_are_held_over_a_restart_on_another_port(
    launch: Launch, gateway: Gateway, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """Held time is reported while it lasts, and is no failure afterwards."""
    async with Upstream(sane) as upstream:
        launch.server(upstream)
        await launch.start()
        one = await lease(gateway, tmp_path / "one.jsonl")
        launch.server(state="restarting", message="it died")
        await upstream.stop()
        call = asyncio.create_task(ask(one, session))
        await until_held(one)
        await upstream.start(port=0)
        launch.server(upstream, restarts=1, seed=8)
        assert (await call)[0] == 200
        report = await one.close({})
    assert report.held_sec > 0
    assert report.waited_sec == report.held_sec + report.queued_sec
    assert (report.turns, report.failure) == (1, "")


async def until_held(one: Lease) -> None:
    for _ in range(500):
        if (await one.report()).held_sec > 0:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("in vain: the call is held")


async def test_max_turns_is_for_calls_with_the_agents_tools(
    launch: Launch, gateway: Gateway, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    tool = {"type": "function", "function": {"name": "run_command", "parameters": {"type": "object", "properties": {}}}}
    async with Upstream(sane) as upstream:
        launch.server(upstream)
        await launch.start()
        one = await lease(gateway, tmp_path / "t.jsonl", max_turns=2, tools=True)
        statuses = [(await ask(one, session, tools=[tool]))[0] for _ in range(3)]
        assert (await ask(one, session))[0] == 200  # a title
        report = await one.close({})
    assert statuses == [200, 200, 400]
    assert (report.turns, report.side_calls, report.max_turns) == (2, 1, True)
    assert (report.tools_offered, report.tool_calls) == (True, 2)


async def test_the_socket_of_a_dead_launch_is_not_waited_for(launch: Launch) -> None:
    async with Upstream(sane) as upstream:
        launch.server(upstream)
        await launch.start()
        await launch.kill()
        record = GatewayRecord.read(launch.folder)
        assert record is not None
        assert record.state == "ready"
        assert client.status(launch.folder) is None
