"""Checks of this machine: disk, file descriptors, the server's port, GPUs."""

import resource
from collections.abc import Iterator
from typing import Final

from rolloutgen.errors import Finding
from rolloutgen.forecast import forecast
from rolloutgen.preflight.check import Check, Context, fatal, ok, warn
from rolloutgen.serving import data_parallel, gpus_seen, gpus_used
from rolloutgen.serving.ports import is_free, owner
from rolloutgen.settings import Settings

_FDS_PER_ATTEMPT: Final = 24
"""Pipes, sockets and files that the driver holds for one running attempt."""
_FDS_OF_OURS: Final = 256


def _disk(context: Context) -> Iterator[Finding]:
    assert context.plan is not None
    wanted = forecast(context.plan)
    if wanted.disk_wanted_mb > wanted.disk_free_mb:
        yield fatal(
            "RESULTS_DIR",
            f"about {wanted.disk_wanted_mb} MiB are wanted, {wanted.disk_free_mb} MiB are free",
            "make room, or name a RESULTS_DIR on another disk",
        )
    elif wanted.inodes_free is not None and wanted.inodes_wanted > wanted.inodes_free:
        yield fatal(
            "RESULTS_DIR",
            f"about {wanted.inodes_wanted} inodes are wanted, {wanted.inodes_free} are free",
            "name a RESULTS_DIR on another disk",
        )
    else:
        yield ok("disk", f"about {wanted.disk_wanted_mb} MiB wanted, {wanted.disk_free_mb} MiB free")


def fds_wanted(n_concurrent: int) -> int:
    return _FDS_OF_OURS + _FDS_PER_ATTEMPT * n_concurrent


def _file_descriptors(context: Context) -> Iterator[Finding]:
    wanted = fds_wanted(context.settings.n_concurrent)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and wanted > hard:
        yield fatal(
            "N_CONCURRENT",
            f"{context.settings.n_concurrent} attempts want about {wanted} file descriptors; {hard} are allowed",
            f"raise the hard limit (ulimit -Hn {wanted}), or lower N_CONCURRENT",
        )
    else:
        yield ok("N_CONCURRENT", f"{context.settings.n_concurrent} attempts fit into the file-descriptor limit")


def _port(context: Context) -> Iterator[Finding]:
    """C22: whoever listens there now would answer in our server's place."""
    port = context.settings.vllm_port
    if port is None:
        return
    if is_free(port):
        yield ok("VLLM_PORT", f"127.0.0.1:{port} is free")
        return
    who = owner(port)
    message = f"127.0.0.1:{port} is in use" + (f" by {who}" if who else "")
    yield fatal("VLLM_PORT", message, "take it out (a free port is chosen), or name another")


def _gpus(context: Context) -> Iterator[Finding]:
    yield gpu_finding(context.settings, gpus_seen())


def gpu_finding(settings: Settings, seen: int) -> Finding:
    """A14: one server fills the node. ``seen``: the GPUs of this machine."""
    usable = gpus_used(settings, seen)
    used = settings.gen_tp * data_parallel(settings, seen)
    if usable > seen:
        most = f"{seen} or less" if seen else "0"
        return fatal("GPUS_PER_NODE", f"is {usable}, but {seen} GPUs are seen", f"set {most}, or leave it out")
    if not usable:
        return ok("GPUS_PER_NODE", f"the server runs on the CPU ({seen} GPUs are seen)")
    if settings.gen_tp > usable:
        return fatal("GEN_TP", f"is {settings.gen_tp}, but {usable} GPUs may be used", f"set {usable} or less")
    if used > usable:
        return fatal("GEN_DP", f"GEN_TP x GEN_DP is {used}, but {usable} GPUs may be used", "lower GEN_DP")
    if used < usable:
        mend = "raise GEN_DP" if usable - used >= settings.gen_tp else f"take a GEN_TP that divides {usable}"
        return warn("GEN_DP", f"GEN_TP x GEN_DP is {used}: {usable - used} of {usable} GPUs stay idle", mend)
    return ok("GEN_DP", f"GEN_TP x GEN_DP fills the {usable} GPUs")


CHECKS: Final = (
    Check("disk", _disk, ("RESULTS_DIR",), plan=True, work=True),
    Check("N_CONCURRENT", _file_descriptors, ("N_CONCURRENT",)),
    Check("VLLM_PORT", _port, ("VLLM_PORT",), model=True, work=True),
    Check("GPUS_PER_NODE", _gpus, ("GPUS_PER_NODE", "GEN_TP", "GEN_DP"), model=True, work=True),
)
