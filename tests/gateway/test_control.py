"""The driver's door refuses what is no request of the driver's, in words."""

import json
from typing import Any

import aiohttp
import pytest

from fakes.upstream import Upstream
from gateways import Launch, sane

WHOLE = {"transcript": "/none/t.jsonl", "label": "x", "start": {}, "uses_tools": False, "max_turns": None}


async def _ask(launch: Launch, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    assert launch.record is not None
    connector = aiohttp.UnixConnector(launch.record.socket)
    async with (
        aiohttp.ClientSession("http://gateway", connector=connector) as session,
        session.request(method, path, data=body if isinstance(body, bytes) else json.dumps(body)) as response,
    ):
        return response.status, await response.json(content_type=None)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        ({}, 400),
        (WHOLE | {"max_turns": "many"}, 400),
        (WHOLE | {"start": 7}, 400),
        (WHOLE, 409),
    ],
)
async def test_a_bad_registration_is_told_why(launch: Launch, body: Any, status: int) -> None:
    async with Upstream(sane) as upstream:
        launch.server(upstream)
        await launch.start()
        seen, answer = await _ask(launch, "POST", "/attempts", body)
        assert seen == status
        assert answer["error"]


async def test_unknown_attempts_are_not_found(launch: Launch) -> None:
    async with Upstream(sane) as upstream:
        launch.server(upstream)
        await launch.start()
        assert (await _ask(launch, "GET", "/attempts/0"))[0] == 404
        assert (await _ask(launch, "POST", "/attempts/0/close", {"ending": {}}))[0] == 404


async def test_no_sandbox_can_reach_it_by_http(launch: Launch) -> None:
    """Only the model's routes are there."""
    async with Upstream(sane) as upstream, aiohttp.ClientSession() as session:
        launch.server(upstream)
        root = (await launch.start()).base_url.removesuffix("/v1")
        for path in ("/attempts", "/status", "/watch", "/metrics", "/docs", "/health"):
            async with session.get(root + path) as response:
                assert response.status == 404
