"""Anthropic's official Python client reads what we write; vLLM's environment has it."""

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web

from real_jobs import VLLM, need_real_parts
from rolloutgen.gateway.anthropic import PING, EventStream, error_body, from_chat, from_tokenize, to_chat, to_tokenize

from .test_events import LAST, USAGE, called, chunk

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("official_client.py")
PIECES = [
    *({"role": "assistant", "content": ""}, {"reasoning": "h"}, {"reasoning": "m"}, {"content": "I "}),
    *({"content": "look."}, called(0, first=True), called(0, '{"command"'), called(0, ': "ls"}')),
    called(1, '{"command": "cat"}', first=True),
]
CALLS = [
    {"id": f"call_{n}", "function": {"name": "Bash", "arguments": f'{{"command": "{c}"}}'}}
    for n, c in enumerate(("ls", "cat"))
]
MESSAGE = {"reasoning": "hm", "content": "I look.", "tool_calls": CALLS}
ANSWER = {"id": "chatcmpl-1", "choices": [{"message": MESSAGE, "finish_reason": "tool_calls"}], "usage": USAGE}
REFUSED = {"full": (400, "maximum context length is 8"), "gone": (503, "The model server is gone.")}


async def messages(request: web.Request) -> web.StreamResponse:
    """Plays the gateway: a stop sequence names the failure that is wanted."""
    chat = to_chat(await request.json())
    stop = chat.get("stop", [""])[0]
    if stop in REFUSED:
        status, text = REFUSED[stop]
        return web.json_response(error_body(status, text), status=status)
    if not chat.get("stream"):
        return web.json_response(from_chat(ANSWER, "m"))
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(PING)
    stream = EventStream("m")
    for piece in [*(chunk(**one) for one in PIECES), chunk("tool_calls"), LAST]:
        await response.write(stream.chunk(piece))
        if stop == "broken":
            await response.write(stream.error(503, "The model server is gone."))
            return response
    await response.write(stream.end())
    return response


async def count(request: web.Request) -> web.Response:
    assert to_tokenize(await request.json())["messages"]
    return web.json_response(from_tokenize({"count": 42}))


async def test_the_official_client_reads_answers_streams_and_errors() -> None:
    need_real_parts()
    app = web.Application()
    app.router.add_post("/v1/messages", messages)
    app.router.add_post("/v1/messages/count_tokens", count)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        process = await asyncio.create_subprocess_exec(
            str(VLLM.with_name("python")), str(SCRIPT), url, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
    finally:
        await runner.cleanup()
    assert process.returncode == 0
    read = json.loads(out)
    assert read["whole"]["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "unsigned"},
        {"type": "text", "text": "I look."},
        *(
            {"type": "tool_use", "id": f"call_{n}", "name": "Bash", "input": {"command": c}}
            for n, c in enumerate(("ls", "cat"))
        ),
    ]
    assert read["streamed"] == read["whole"]
    assert read["kinds"][0] == "message_start"
    assert read["failures"] == [
        ["BadRequestError", f"Error code: 400 - {error_body(*REFUSED['full'])}"],
        ["ServiceUnavailableError", f"Error code: 503 - {error_body(*REFUSED['gone'])}"],
        ["APIStatusError", str(error_body(*REFUSED["gone"]))],
    ]
    assert read["counted"] == 42
