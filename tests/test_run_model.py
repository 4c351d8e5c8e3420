"""The driver with a scaffold that asks a model: a scripted server, verdicts known beforehand (C10, A6, A13)."""

import asyncio
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from driving import Site, kill_session, until
from fakes.model_server import Call, ModelServer
from rolloutgen.config import load_config
from rolloutgen.paths import ResultsPaths
from rolloutgen.processes import Process
from rolloutgen.results.fingerprint import write_run
from rolloutgen.run import MODEL_KEY
from rolloutgen.serving import ServerRecord

_VERIFIER = "sleep 0.2; if [[ -e /app/done ]]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt"
N_INSTANCES = 10


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    site.tasks({f"task{i:02}": _VERIFIER for i in range(N_INSTANCES)})
    (site.folder / "model").mkdir()
    site.keys |= {
        "SCAFFOLD": "shell",
        "MODEL_PATH": str(site.folder / "model"),
        "TEMPERATURE": "0.7",
        "TOP_P": "0.9",
        "VLLM_MAX_MODEL_LEN": "2048",
        "MAX_RESPONSE_LEN": "64",
        "MAX_TURNS": "1",
    }
    yield site
    site.clean()


def solves_even_tasks(call: Call) -> str:
    number = int(call.task.partition("task")[2][:2])
    return "true" if number % 2 else "touch /app/done"


def launch(site: Site, server: ModelServer) -> tuple[Path, dict[str, str]]:
    """What prepare and serve leave for the driver."""
    settings = load_config(site.config).settings
    run_json = ResultsPaths(site.results).run_json
    site.results.mkdir(exist_ok=True)
    if not run_json.exists():
        write_run(run_json, settings, {})
    folder = site.new_launch()
    folder.mkdir(parents=True)
    me = Process.of(os.getpid())
    assert me is not None
    ServerRecord("ready", me, server.model, server.base_url).write(folder)
    return folder, {MODEL_KEY: server.key}


async def run_once(site: Site, server: ModelServer) -> int:
    folder, env = launch(site, server)
    process = site.start(folder, **env)
    return await asyncio.to_thread(process.wait, 300)


async def test_a13_a6_the_settings_reach_every_request_and_everything_said_is_kept(site: Site) -> None:
    async with ModelServer(solves_even_tasks) as server:
        assert await run_once(site, server) == 0
    assert len(server.calls) == 2 * N_INSTANCES
    assert {(call.body["temperature"], call.body["top_p"]) for call in server.calls} == {(0.7, 0.9)}
    assert [row["pass_rate"] for row in site.summary()] == ["1", "0"] * (N_INSTANCES // 2)
    lines = (site.results / "task00" / "trial_0" / "transcript.jsonl").read_text().splitlines()
    said = [message["content"] for line in lines for message in json.loads(line).get("messages", [])]
    assert any("Solve task00." in text for text in said)
    assert "touch /app/done" in said
    assert "holds at TEMPERATURE=0.7, as measured" in site.output
    assert server.key not in site.log.read_text() + site.output
    assert all(server.key.encode() not in path.read_bytes() for path in site.results.rglob("*") if path.is_file())


@pytest.mark.slow
async def test_c10_killed_runs_end_with_the_summary_of_an_undisturbed_one(site: Site) -> None:
    chance = random.Random(10)
    async with ModelServer(solves_even_tasks) as server:
        for more in (chance.randint(1, 4) for _ in range(5)):
            folder, env = launch(site, server)
            process = site.start(folder, **env)
            wanted, before = len(site.outcomes()) + more, site.outcomes()
            await asyncio.to_thread(until, lambda wanted=wanted: len(site.outcomes()) >= wanted, "verdicts")
            kill_session(process)
            assert all(site.outcomes()[path] == content for path, content in before.items())
        stored = site.outcomes()
        assert await run_once(site, server) == 0
    assert all(site.outcomes()[path] == content for path, content in stored.items())
    rows = [(row["instance_id"], row["n_pass"], row["n_fail"], row["complete"]) for row in site.summary()]
    wanted_rows = [(f"task{i:02}", *(("0", "2") if i % 2 else ("2", "0")), "true") for i in range(N_INSTANCES)]
    assert rows == wanted_rows


async def test_a_driver_without_a_ready_server_fails_by_name(site: Site) -> None:
    async with ModelServer(solves_even_tasks) as server:
        folder, env = launch(site, server)
    (folder / "server.json").unlink()
    assert await asyncio.to_thread(site.start(folder, **env).wait, 60) == 1
    assert "no model server is ready" in (folder / "reason").read_text()


async def test_a_server_that_is_gone_pauses_the_run_until_the_limit_then_it_fails_resumable(site: Site) -> None:
    site.keys["STALL_TIMEOUT_SEC"] = "8"
    server = ModelServer(solves_even_tasks)
    await server.start()
    folder, env = launch(site, server)
    await server.stop()
    assert await asyncio.to_thread(site.start(folder, **env).wait, 300) == 1
    assert "nothing could run for 8 s; last: model_down" in (folder / "reason").read_text()
    assert "new attempts pause for" in site.output
    assert site.outcomes() == {}
    async with ModelServer(solves_even_tasks) as server:
        assert await run_once(site, server) == 0  # nothing was charged to the trials
