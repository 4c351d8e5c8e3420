"""What the benchmarks share: a step in a process of its own, with its seconds and its peak memory."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[2] / "src"


def fresh(script: str, *arguments: object) -> dict[str, Any]:
    """Run ``script`` with ``arguments`` in a new Python: what it prints as JSON, and ``sec`` and ``peak_mb`` of it.

    Seconds are from the start of the process to its end, imports included: what a person waits for.
    """
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the step failed with exit status {process.returncode}")
    told = json.loads(output) if output.strip() else {}
    cpu = usage.ru_utime + usage.ru_stime
    return {**told, "sec": time.perf_counter() - started, "cpu_sec": cpu, "peak_mb": usage.ru_maxrss / 1024}


def show(name: str, result: dict[str, Any]) -> None:
    rest = "  ".join(f"{k}={v}" for k, v in result.items() if k not in ("sec", "cpu_sec", "peak_mb"))
    print(f"{name:<34} {result['sec']:8.2f} s  {result['cpu_sec']:8.2f} CPU s  {result['peak_mb']:8.0f} MiB  {rest}")


def show_ratio(ours: dict[str, Any], peer: dict[str, Any], name: str) -> None:
    cpu, memory = ours["cpu_sec"] / peer["cpu_sec"], ours["peak_mb"] / peer["peak_mb"]
    print(f"CPU time {cpu:.3f} of {name}, memory {memory:.2f}")
