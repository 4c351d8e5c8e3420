"""What the machine offers the model server."""

import itertools
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from rolloutgen.settings import Settings


@cache
def gpus_seen() -> int:
    """How many NVIDIA GPUs this process may use: those of the machine that CUDA_VISIBLE_DEVICES leaves; 0 for none."""
    return visible(_gpus_of_machine(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible(gpus: int, devices: str | None) -> int:
    """How many of ``gpus`` CUDA shows where CUDA_VISIBLE_DEVICES is ``devices``: up to the first invalid name."""
    if devices is None:
        return gpus
    names = itertools.takewhile(lambda name: name.strip() not in ("", "-1", "NoDevFiles"), devices.split(","))
    return min(gpus, len(list(names)))


def _gpus_of_machine() -> int:
    """Those that ``nvidia-smi`` lists, else the device files."""
    command = shutil.which("nvidia-smi")
    if command is not None:
        try:
            listed = subprocess.run([command, "-L"], capture_output=True, text=True, timeout=60, check=True).stdout
            return sum(line.startswith("GPU ") for line in listed.splitlines())
        except (subprocess.SubprocessError, OSError):
            pass
    return sum(path.name.removeprefix("nvidia").isdigit() for path in Path("/dev").glob("nvidia*"))


def gpus_used(settings: Settings, seen: int) -> int:
    """The GPUs of this node that the server may use; 0: it runs on the CPU."""
    return seen if settings.gpus_per_node is None else settings.gpus_per_node


def data_parallel(settings: Settings, seen: int) -> int:
    """GEN_DP, or as many replicas as fill the node (A14); one without GPUs."""
    if settings.gen_dp is not None:
        return settings.gen_dp
    return max(1, gpus_used(settings, seen) // settings.gen_tp)
