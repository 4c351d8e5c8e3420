"""What the gateway opens, to whom, and what it does not take."""

import asyncio
import io
from typing import Any

import aiohttp
import pytest

from fakes.answers import Fault
from fakes.upstream import Upstream as FakeServer
from rolloutgen.gateway.bodies import MAX_BYTES
from rolloutgen.gateway.web import COUNTED_MAX_BYTES, IN_FLIGHT_MAX
from rolloutgen.transcript.recorder import MESSAGES_MAX

from .conftest import CONTEXT_LEN, HELLO, Gates, until

POSTS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens", "/tokenize")


@pytest.mark.parametrize("path", POSTS)
async def test_nobody_without_a_live_key(gate: Gates, path: str) -> None:
    """A key dies with its attempt: no stray agent spends GPU time or writes into another's transcript."""
    async with FakeServer(lambda _: "hello") as fake, gate(fake) as g:
        attempt = g.attempt()
        dead, live = attempt.key, g.attempt()
        await attempt.close()
        for key in ("", "EMPTY", fake.key, dead, f"{live.key}x", live.key[:-1]):
            said = await live.ask({"messages": HELLO, "prompt": "x"}, path, Authorization=f"Bearer {key}")
            assert said.status == 401
            assert "no live key" in said.body["error"]["message"]
            other = await live.ask({"messages": HELLO}, path, **{"Authorization": "", "x-api-key": key})
            assert other.status == 401
    assert fake.calls == []


async def test_both_ways_to_send_a_key(gate: Gates) -> None:
    async with FakeServer(lambda _: "hello") as fake, gate(fake) as g:
        attempt = g.attempt()
        for headers in ({"Authorization": f"bearer {attempt.key}"}, {"Authorization": "", "x-api-key": attempt.key}):
            assert (await attempt.ask({"messages": HELLO}, **headers)).status == 200


async def test_nothing_else_is_there(gate: Gates) -> None:
    """No admin, no metrics, no docs; not even with a key."""
    async with FakeServer(lambda _: "hello") as fake, gate(fake) as g:
        headers = {"Authorization": f"Bearer {g.attempt().key}"}
        paths = (
            "/metrics",
            "/health",
            "/docs",
            "/openapi.json",
            "/detokenize",
            "/v1/responses",
            "/v1/load_lora_adapter",
        )
        for path in ("/", *paths, "/sleep", "/invocations", "/v1/chat/completions/render", "//v1/models", "/v1"):
            for method in ("GET", "POST"):
                async with g.client.request(method, g.root + path, headers=headers) as answer:
                    assert answer.status == 404, path
        async with g.client.get(f"{g.root}/v1/chat/completions", headers=headers) as answer:
            assert answer.status == 404


async def test_models(gate: Gates) -> None:
    async with FakeServer(lambda _: "hello") as fake, gate(fake) as g:
        headers = {"Authorization": f"Bearer {g.attempt().key}"}
        async with g.client.get(f"{g.root}/v1/models", headers=headers) as answer:
            listed = await answer.json()
        async with g.client.get(f"{g.root}/v1/models") as answer:
            assert answer.status == 401
    assert [(model["id"], model["max_model_len"]) for model in listed["data"]] == [("policy", CONTEXT_LEN)]


async def test_tokenize_is_no_turn(gate: Gates) -> None:
    async with FakeServer(lambda _: "hello") as fake, gate(fake, hold_sec=0.2) as g:
        attempt, alive = g.attempt(), g.attempts._pulse.last
        for path in ("/tokenize", "/v1/tokenize"):
            assert (await attempt.ask({"prompt": "three small words"}, path)).body["count"] == 3
            chat = await attempt.ask({"messages": HELLO, "chat_template": "{{ 1 }}", "model": "x"}, path)
            assert chat.body["count"] > 1
        assert (await attempt.ask({"prompt": 5}, "/tokenize")).status == 400
        report = attempt.report()
        assert g.attempts._pulse.last == alive, "the engine has shown nothing of itself"
        await fake.stop()
        assert (await attempt.ask({"prompt": "x"}, "/tokenize")).status == 503
    assert (report.calls, report.side_calls, report.aborted, report.turns, fake.calls) == (0, 5, 0, 0, [])


@pytest.mark.parametrize("path", ["/tokenize", "/v1/messages/count_tokens"])
async def test_counts_of_tokens_wait_for_a_restart_as_calls_do(gate: Gates, path: str) -> None:
    """An agent that counts before it asks must not end for an outage; and its wait is not its time."""
    async with FakeServer(lambda _: "hello") as fake, gate(fake) as g:
        attempt = g.attempt()
        await g.server.update("restarting", message="the engine died")
        asked = asyncio.create_task(attempt.ask({"model": "m", "messages": HELLO}, path))
        await until(lambda: attempt.report().held_sec > 0)
        assert not asked.done()
        await g.moved(fake)
        said, report = await asked, attempt.report()
        assert await attempt.calls() == []
    assert said.status == 200
    assert (report.failure, report.turns) == ("", 0)
    assert report.held_sec > 0


async def test_a_count_of_tokens_ends_with_its_key(gate: Gates) -> None:
    async with FakeServer(lambda _: "hello") as fake, gate(fake) as g:
        attempt = g.attempt()
        await g.server.update("restarting", message="the engine died")
        asked = asyncio.create_task(attempt.ask({"prompt": "x"}, "/tokenize"))
        await until(lambda: attempt.report().held_sec > 0)
        report = await attempt.close()
        with pytest.raises(aiohttp.ClientError):
            await asked
    assert report.aborted == 1


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"messages": [], "temperature": NaN}', "not valid JSON"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}], "temperature": NaN}', "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b"{}", "messages must be"),
        (b'{"messages": "hello"}', "messages must be"),
        (b'{"messages": ["hello"]}', r"messages[0] must be"),
        (b'{"messages": [{"role": "user"}], "tools": "all"}', "tools must be"),
        (b'{"messages": [{"role": "user"}], "stream": "yes"}', "stream must be"),
        (b'{"messages": [{"role": "user"}], "stop": [' + b'"x",' * 64 + b'"x"]}', "stop must be"),
        (b'{"messages": [{"role": "user"}], "stop": "' + b"x" * 4097 + b'"}', "stop must be"),
        (b'{"messages": [{"role": "user"}], "stop_token_ids": [' + b"1," * 64 + b"1]}", "stop_token_ids must be"),
        (b'{"messages": [{"x": ' + b"[" * 300 + b"]" * 300 + b"}]}", "cannot be passed on"),
        (b'{"messages": [{"role": "user"}], "x": ' + b"[" * 300 + b"]" * 300 + b"}", "cannot be passed on"),
        (b'{"messages": [{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]}", "not valid JSON"),
        (
            b'{"messages": [{"x": "\\ud800' + b"\\u0000" * 10 + b'", "y":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
            "JSON",
        ),
    ],
)
async def test_bodies_that_nobody_can_take_are_refused(gate: Gates, raw: bytes, why: str) -> None:
    async with FakeServer(lambda _: "hello") as fake, gate(fake) as g:
        attempt = g.attempt()
        said = await attempt.ask(raw)
        report = attempt.report()
    assert said.status == 400
    assert why in said.body["error"]["message"]
    assert said.body["error"]["type"] == "invalid_request_error"
    assert (report.calls, report.failure, fake.calls) == (0, "", [])


async def test_a_body_has_a_largest_size(gate: Gates) -> None:
    async with FakeServer(lambda _: "hello") as fake, gate(fake) as g:
        attempt = g.attempt()
        said = await attempt.ask(io.BytesIO(b" " * (MAX_BYTES + 1)))
        assert (await attempt.chat()).status == 200
        for path in ("/tokenize", "/v1/messages/count_tokens"):
            counted = await attempt.ask(io.BytesIO(b'{"prompt": "%b"}' % (b"x" * COUNTED_MAX_BYTES)), path)
            assert counted.status == 413
    assert (said.status, said.body["error"]["code"]) == (413, 413)


async def test_one_attempt_cannot_take_all(gate: Gates) -> None:
    opened = asyncio.Event()

    async def rule(_: Any) -> str:
        await opened.wait()
        return "hello"

    async with FakeServer(rule) as fake, gate(fake, places=2) as g:
        greedy, other = g.attempt(), g.attempt()
        tasks = [asyncio.create_task(greedy.chat()) for _ in range(IN_FLIGHT_MAX)]
        await until(lambda: greedy.report().calls == IN_FLIGHT_MAX)
        more = await greedy.chat()
        assert (more.status, more.headers["Retry-After"]) == (429, "1")
        tasks.append(asyncio.create_task(other.chat()))
        await until(lambda: other.report().calls == 1)
        opened.set()
        assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}
        assert (await greedy.chat()).status == 200


async def test_what_shapes_the_prompt_is_counted_too(gate: Gates) -> None:
    """Also where it is false."""
    async with FakeServer(lambda _: "hello") as fake, gate(fake) as g:
        attempt = g.attempt()
        open_end = await attempt.ask({"messages": HELLO, "add_generation_prompt": False, "tools": []}, "/tokenize")
        counted = await attempt.ask({"messages": HELLO}, "/tokenize")
    assert open_end.body["count"] < counted.body["count"]


async def test_bodies_together_have_a_largest_size(gate: Gates) -> None:
    """One that is sent in pieces may be as large as any."""
    async with FakeServer(lambda _: "hello") as fake, gate(fake) as g:
        attempt, other = g.attempt(), g.attempt()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {attempt.key}\r\n"
        host, port = g.root.removeprefix("http://").split(":")
        writers = []
        for _ in range(4):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n".encode())
            writers.append(writer)
        while (said := await attempt.chat()).status == 200:
            pass
        assert said.status == 429
        assert (await other.chat()).status == 200
        for writer in writers:
            writer.close()
            await writer.wait_closed()
        while (await attempt.chat()).status == 429:
            pass


async def test_one_attempt_cannot_fill_memory_and_disk(gate: Gates) -> None:
    """Each message that is new is remembered and written down, also of a call that the model server refuses."""
    many = b",".join(b'{"a":%d}' % number for number in range(MESSAGES_MAX + 1))
    async with FakeServer(lambda _: Fault(status=400)) as fake, gate(fake) as g:
        attempt, other = g.attempt(), g.attempt()
        assert (await attempt.ask(io.BytesIO(b'{"messages": [%b]}' % many))).status == 400
        assert (await attempt.chat()).status == 413
        assert (await other.chat()).status == 400
        report = attempt.report()
    assert (report.calls, report.failure) == (1, "")
