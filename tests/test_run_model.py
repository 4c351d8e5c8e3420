"""The driver with a scaffold that asks a model: a real gateway, a scripted server, known verdicts (C10, A6, A13)."""

import asyncio
import random
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from driving import Site, kill_session, until
from fakes.answers import Call, Reaction
from fakes.upstream import Upstream
from gateways import sane
from rolloutgen.config import load_config
from rolloutgen.gateway.record import GatewayRecord
from rolloutgen.paths import ResultsPaths
from rolloutgen.processes import Process
from rolloutgen.results.fingerprint import write_run
from rolloutgen.serving import MODEL_KEY
from rolloutgen.serving.record import ServerRecord
from rolloutgen.transcript.reader import read_calls

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


def of_attempts(call: Call) -> bool:
    """Not the gateway's own: the canary, the heartbeat."""
    return "Solve task" in str(call.body.get("messages"))


def solves_even_tasks(call: Call) -> Reaction:
    if not of_attempts(call):
        return sane(call)
    number = int(call.task.partition("task")[2][:2])
    return "true" if number % 2 else "touch /app/done"


@dataclass
class Launch:
    """One launch, as the launcher would have made it: server.json, a gateway, then the driver."""

    site: Site
    upstream: Upstream
    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def server(self, state: str, message: str = "") -> None:
        """What vLLM's parent says."""
        ServerRecord(state, Process.me(), "policy", self.upstream.base_url, message, seed=1).write(self.folder)  # type: ignore[arg-type]  # one of its states

    async def gateway(self) -> subprocess.Popen[bytes]:
        """A gateway that is ready."""
        process = self.site.spawn("gateway", self.folder, **{MODEL_KEY: self.upstream.key})
        self.processes.append(process)

        def is_ready() -> bool:
            record = GatewayRecord.read(self.folder)
            assert process.poll() is None, self.site.output
            return record is not None and (record.state, record.gateway.pid) == ("ready", process.pid)

        await asyncio.to_thread(until, is_ready, "the gateway is ready")
        return process

    def driver(self) -> subprocess.Popen[bytes]:
        self.processes.append(self.site.start(self.folder))
        return self.processes[-1]

    async def end(self, process: subprocess.Popen[bytes]) -> int:
        return await asyncio.to_thread(process.wait, 300)

    @property
    def reason(self) -> str:
        return (self.folder / "reason").read_text()


@asynccontextmanager
async def launched(site: Site, upstream: Upstream) -> AsyncIterator[Launch]:
    settings, run_json = load_config(site.config).settings, ResultsPaths(site.results).run_json
    site.results.mkdir(exist_ok=True)
    if not run_json.exists():
        write_run(run_json, settings, {})
    folder = site.new_launch()
    folder.mkdir(parents=True)
    launch = Launch(site, upstream, folder)
    launch.server("ready")
    try:
        await launch.gateway()
        yield launch
    finally:
        for process in launch.processes:
            kill_session(process)


async def run_once(site: Site, upstream: Upstream) -> int:
    async with launched(site, upstream) as launch:
        return await launch.end(launch.driver())


async def reached(condition: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(until, condition, what)


async def test_a13_a6_the_settings_reach_every_request_and_everything_said_is_kept(site: Site) -> None:
    async with Upstream(solves_even_tasks) as upstream:
        assert await run_once(site, upstream) == 0
    calls = [call for call in upstream.calls if of_attempts(call)]
    assert len(calls) == 2 * N_INSTANCES
    assert {(call.body["temperature"], call.body["top_p"]) for call in calls} == {(0.7, 0.9)}
    assert [row["pass_rate"] for row in site.summary()] == ["1", "0"] * (N_INSTANCES // 2)
    (call,) = read_calls(site.results / "task00" / "trial_0" / "transcript.jsonl")
    said = [message["content"] for message in call.conversation()]
    assert said[-2:] == ["Solve task00.", "touch /app/done"]
    assert "holds at TEMPERATURE=0.7, as measured" in site.output
    kept = [path.read_bytes() for path in (*site.results.rglob("*"), site.log) if path.is_file()]
    assert not [content for content in kept if upstream.key.encode() in content or b"rg-" in content]


async def test_a13_a_policy_without_pins_is_the_scaffolds_and_the_end_says_so(site: Site) -> None:
    site.keys |= {"SAMPLING_PASSTHROUGH": "1", "N_TRIALS": "1"}
    async with Upstream(solves_even_tasks) as upstream:
        assert await run_once(site, upstream) == 0
    assert not any("temperature" in call.body for call in upstream.calls if of_attempts(call))
    assert "SAMPLING_PASSTHROUGH=1: the filtered index holds for whatever the scaffold asked" in site.output
    assert "holds at TEMPERATURE" not in site.output


@pytest.mark.slow
async def test_c10_killed_runs_end_with_the_summary_of_an_undisturbed_one(site: Site) -> None:
    chance = random.Random(10)
    async with Upstream(solves_even_tasks) as upstream:
        for more in (chance.randint(1, 4) for _ in range(5)):
            async with launched(site, upstream) as launch:
                process, before = launch.driver(), site.outcomes()
                wanted = len(before) + more
                await reached(lambda wanted=wanted: len(site.outcomes()) >= wanted, "verdicts")  # type: ignore[misc]  # a lambda's default
                kill_session(process)
            assert all(site.outcomes()[path] == content for path, content in before.items())
        stored = site.outcomes()
        assert await run_once(site, upstream) == 0
    assert all(site.outcomes()[path] == content for path, content in stored.items())
    assert known_rows(site)


def known_rows(site: Site) -> bool:
    rows = [(row["instance_id"], row["n_pass"], row["n_fail"], row["complete"]) for row in site.summary()]
    return rows == [(f"task{i:02}", *(("0", "2") if i % 2 else ("2", "0")), "true") for i in range(N_INSTANCES)]


async def test_a_driver_without_a_gateway_fails_by_name(site: Site) -> None:
    async with Upstream(solves_even_tasks) as upstream, launched(site, upstream) as launch:
        (launch.folder / "gateway.json").unlink()
        assert await launch.end(launch.driver()) == 1
        assert "no gateway was started" in launch.reason


async def test_a_server_that_does_not_come_back_pauses_the_run_until_the_limit_then_it_fails_resumable(
    site: Site,
) -> None:
    """Held calls fail in the end, new attempts pause, and nothing is charged to the trials."""
    site.keys |= {"STALL_TIMEOUT_SEC": "8", "GATEWAY_HOLD_SEC": "1", "N_CONCURRENT": "2"}
    async with Upstream(solves_even_tasks) as upstream:
        async with launched(site, upstream) as launch:
            launch.server("restarting", "it died")
            assert await launch.end(launch.driver()) == 1
            assert "nothing could run for 8 s; last: model_down" in launch.reason
        assert "new attempts pause for" in site.output
        assert site.outcomes() == {}
        assert await run_once(site, upstream) == 0
    assert known_rows(site)


async def test_a_server_that_is_gone_for_good_fails_the_run_by_its_name_with_everything_resumable(site: Site) -> None:
    """Dispatch stops, what asks or would ask ends as error: inference, what is graded keeps its verdict."""
    asked = asyncio.Event()

    async def hang_later(call: Call) -> Reaction:
        if of_attempts(call) and site.outcomes():
            asked.set()
            await asyncio.Event().wait()
        return solves_even_tasks(call)

    async with Upstream(hang_later) as upstream:
        async with launched(site, upstream) as launch:
            driver = launch.driver()
            await asked.wait()
            launch.server("failed", "restarted 3 times within an hour")
            assert await launch.end(driver) == 1
            assert "restarted 3 times within an hour; resumable" in launch.reason
        stored = site.outcomes()
        assert 0 < len(stored) == sum(int(row["n_scored"]) for row in site.summary()) < 2 * N_INSTANCES
        assert "error, inference: model_down" in site.log.read_text()
        upstream.rule = solves_even_tasks
        assert await run_once(site, upstream) == 0
    assert all(site.outcomes()[path] == content for path, content in stored.items())
    assert known_rows(site)
    assert all(row["n_error"] == "0" for row in site.summary())


async def test_kill_9_of_the_gateway_ends_its_attempts_and_each_trial_counts_once(site: Site) -> None:
    """The launcher starts another one; the attempts of the dead one are retried, and none is charged."""
    site.keys["ATTEMPTS_PER_TRIAL"] = "1"
    asked = asyncio.Event()

    async def hang_once(call: Call) -> Reaction:
        if of_attempts(call) and len(site.outcomes()) >= 3 and not asked.is_set():
            asked.set()
            await asyncio.Event().wait()
        return solves_even_tasks(call)

    async with Upstream(hang_once) as upstream, launched(site, upstream) as launch:
        driver, gateway = launch.driver(), launch.processes[0]
        await asked.wait()
        gateway.send_signal(signal.SIGKILL)
        gateway.wait()
        await launch.gateway()
        assert await launch.end(driver) == 0
    assert known_rows(site)
    log = site.log.read_text()
    assert "error, inference: model_down" in log
    assert len(site.outcomes()) == 2 * N_INSTANCES
