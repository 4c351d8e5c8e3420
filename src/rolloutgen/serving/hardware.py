"""What the machine offers the model server."""

import shutil
import subprocess
from functools import cache
from pathlib import Path

from rolloutgen.settings import Settings


@cache
def gpus_seen() -> int:
    """How many NVIDIA GPUs this machine shows: those that ``nvidia-smi`` lists, else the device files; 0 for none."""
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
