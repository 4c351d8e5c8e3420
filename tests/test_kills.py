"""kill -9 at random moments, through infer.sh, then the same command again (A20, C10, A29).

Of the driver, of vLLM's parent, of the gateway, of infer.sh alone, of everything: no verdict is lost, none is counted
twice, none is invented, and nothing of a dead launch lives on.
"""

import contextlib
import random
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from driving import Site, until
from launching import LAUNCHES, Runner, ask_stand_in, last_line_of_success
from real_jobs import DemoSite, need_real_parts
from rolloutgen import launches
from rolloutgen.gateway.record import GatewayRecord
from rolloutgen.processes import Process, marked
from rolloutgen.sandbox.local.cgroups import launch_folder
from rolloutgen.serving.leavings import temporary_folder
from rolloutgen.serving.record import ServerRecord

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

N_INSTANCES = 15
N_KILLS = 10
TARGETS = ("driver", "server", "gateway", "launcher", "everything")
REWARDS = {f"task{i:02}": i / 10 for i in range(N_INSTANCES)}
"""Known beforehand, and all different, so that a verdict in another's place shows; from 1 on they pass."""


@dataclass
class Victim:
    """A run that is killed again and again; keeps in mind what stood before and what lived, to look for it later."""

    runner: Runner
    stored: dict[Path, bytes] = field(default_factory=dict)
    seen: set[Process] = field(default_factory=set)
    files: set[Path] = field(default_factory=set)

    def kill(self, target: str) -> str:
        """SIGKILL to a part of the launch that runs, or to its launcher where that part has not started yet."""
        launcher = self.runner.started[-1]
        self.stored |= self.runner.site.outcomes()
        parts = self._look()
        aims = [parts[target]] if target in parts else []
        if target == "everything":
            aims = list(self.of_launches())
        if target in ("launcher", "everything") or not aims:
            launcher.kill()
        for aim in aims:
            aim.signal(signal.SIGKILL)
        if not aims or target == "launcher":
            target = "launcher"
        launcher.wait(timeout=90)  # one that was not hit ends by itself
        return target

    def go_on(self) -> None:
        """Start it again, to its end."""
        assert self.runner.start().wait(timeout=600) == 0, self.runner.err.read_text()[-3000:]

    def of_launches(self) -> set[Process]:
        """All that carries the mark of a launch of this run: servers, drivers, sandboxes."""
        return {process for launch_id in self.launch_ids() for process in marked(launch_id)}

    def launch_ids(self) -> list[str]:
        log = self.runner.site.log
        return re.findall(r"^=== launch (\S+):", log.read_text(), re.MULTILINE) if log.exists() else []

    def left(self) -> list[object]:
        """Whatever lives or lies around of any launch of this run."""
        ids = self.launch_ids()
        groups = [group for one in ids for group in Path("/sys/fs/cgroup").rglob(launch_folder(one))]
        mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if any(one in line for one in ids)]
        files = [file for file in {*self.files, *map(temporary_folder, ids)} if file.exists()]
        alive = [process for process in {*self.seen, *self.of_launches()} if process.alive()]
        return [*alive, *groups, *mounts, *files, *self.runner.records()]

    def latest(self) -> list[launches.Launch]:
        """The record of the launch that was started last, once there is one; an earlier one may still be ending."""
        return [record for record in self.runner.records() if record.launcher.pid == self.runner.started[-1].pid]

    def _look(self) -> dict[str, Process]:
        """The parts of the latest launch that run, by name; what the server has and shows is kept in mind."""
        parts: dict[str, Process | None] = {}
        for record in self.latest():
            server, gateway = ServerRecord.read(record.folder), GatewayRecord.read(record.folder)
            parts |= {"driver": launches.driver(record.folder), "server": server.serve if server else None}
            parts |= {"gateway": gateway.gateway if gateway else None}
            if server is not None:
                self.seen |= {server.serve, *server.members, *([server.vllm] if server.vllm else [])}
                self.files |= {Path(path) for path, _ in server.shared}
        found = {name: part for name, part in parts.items() if part is not None and part.alive()}
        self.seen |= {*self.of_launches(), *found.values()}
        return found


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    runner = Runner(Site(tmp_path / "killed"))
    runner.site.folder.mkdir()
    victim = Victim(runner)
    yield victim
    for launch_id in victim.launch_ids():  # one that was killed before it had a record leaves its folder for an hour
        with contextlib.suppress(OSError):
            (LAUNCHES / launch_id).rmdir()
    runner.end_all()


def prepare(site: Site) -> None:
    site.tasks({name: f"sleep 0.5; echo {reward} > /logs/verifier/reward.txt" for name, reward in REWARDS.items()})
    ask_stand_in(site)
    site.keys |= {"N_TRIALS": "4", "N_CONCURRENT": "2"}


@pytest.fixture
def undisturbed(tmp_path: Path) -> Iterator[bytes]:
    """summary.csv of the same run, left alone."""
    runner = Runner(Site(tmp_path / "undisturbed"))
    runner.site.folder.mkdir()
    prepare(runner.site)
    done = runner.finish()
    assert done.returncode == 0, done.stderr
    yield (runner.site.results / "summary.csv").read_bytes()
    runner.end_all()


def wait_for_moment(victim: Victim, process: subprocess.Popen[bytes], chance: random.Random) -> None:
    """Some time into the start, or some time after some more verdicts; or the end of the run."""
    site = victim.runner.site
    if chance.random() < 0.25:
        until(lambda: process.poll() is not None or bool(victim.latest()), "a launch")
    else:
        wanted = len(site.outcomes()) + chance.randint(0, 3)
        until(lambda: process.poll() is not None or len(site.outcomes()) >= max(1, wanted), "verdicts", 120)
    time.sleep(chance.uniform(0, 1))


def test_a20_c10_ten_kills_and_the_summary_is_that_of_an_undisturbed_run(victim: Victim, undisturbed: bytes) -> None:
    """A20, C10: known verdicts, each stored once and never changed, whatever is killed and whenever."""
    prepare(victim.runner.site)
    seed = random.randrange(10**6)
    chance, story = random.Random(seed), [f"seed {seed}"]
    targets = [*TARGETS, *TARGETS, *chance.sample(TARGETS, N_KILLS - 2 * len(TARGETS))]
    chance.shuffle(targets)
    for target in targets:
        process = victim.runner.start()
        wait_for_moment(victim, process, chance)
        story.append(f"{victim.kill(target)} at {len(victim.stored)} verdicts")
    assert len(victim.stored) < 4 * N_INSTANCES, f"nothing was left to do: {story}"
    victim.go_on()
    site, told = victim.runner.site, ", ".join(story)
    assert victim.runner.last_line == last_line_of_success(site), told
    outcomes = site.outcomes()
    assert {path: outcomes.get(path) for path in victim.stored} == victim.stored, told
    assert len(outcomes) == 4 * N_INSTANCES, told
    assert (site.results / "summary.csv").read_bytes() == undisturbed, told
    log = Counter(re.findall(r" (task\d\d trial_\d): (?:pass|fail)", site.log.read_text()))
    assert set(log.values()) == {1}, f"{told}: {log.most_common(3)}"
    until(lambda: not victim.left(), f"nothing is left: {told}: {victim.left()}", 10)


def test_a20_kill_9_of_everything_under_the_real_server(tmp_path: Path) -> None:
    """A20, A29: the demo is killed and resumed; vLLM's engine (gigabytes, without a mark of ours) does not live on."""
    need_real_parts()
    site = DemoSite(tmp_path, {"N_TRIALS": "2"})
    victim = Victim(Runner(site))
    try:
        process = victim.runner.start()
        until(lambda: process.poll() is not None or len(site.outcomes()) >= 2, "two verdicts", 500)
        victim.kill("everything")
        assert 2 <= len(victim.stored) < 16
        assert len(victim.seen) > 4
        victim.go_on()
        outcomes = site.outcomes()
        assert {path: outcomes.get(path) for path in victim.stored} == victim.stored
        assert len(outcomes) == 16
        assert victim.runner.last_line == last_line_of_success(site)
        until(lambda: not victim.left(), f"nothing is left: {victim.left()}", 10)
    finally:
        victim.runner.end_all()
