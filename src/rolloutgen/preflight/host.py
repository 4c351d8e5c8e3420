"""Checks of this machine: disk, file descriptors, the server's port, GPUs."""

import errno
import resource
import socket
from collections.abc import Iterator
from typing import Final

from rolloutgen.errors import Finding
from rolloutgen.forecast import forecast
from rolloutgen.preflight.check import Check, Context, fatal, ok, warn
from rolloutgen.serving import gpus_seen

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


def raise_fd_limit() -> None:
    """Up to the hard limit, for this process and its children."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


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
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had: {error.strerror}"
            yield fatal("VLLM_PORT", f"127.0.0.1:{port} {why}", "take it out (a free port is chosen), or name another")
            return
    yield ok("VLLM_PORT", f"127.0.0.1:{port} is free")


def _gpus(context: Context) -> Iterator[Finding]:
    settings, seen = context.settings, gpus_seen()
    if not seen:
        yield ok("GPUS_PER_NODE", "no GPU is seen: the server runs on the CPU")
        return
    usable = seen if settings.gpus_per_node is None else settings.gpus_per_node
    if usable > seen:
        yield fatal("GPUS_PER_NODE", f"is {usable}, but {seen} GPUs are seen", f"set {seen} or less, or leave it out")
        return
    used = settings.gen_tp * (settings.gen_dp or max(1, usable // settings.gen_tp))
    if settings.gen_tp > usable:
        yield fatal("GEN_TP", f"is {settings.gen_tp}, but {usable} GPUs may be used", f"set {usable} or less")
    elif used > usable:
        yield fatal("GEN_DP", f"GEN_TP x GEN_DP is {used}, but {usable} GPUs may be used", "lower GEN_DP")
    elif used < usable:
        yield warn("GEN_DP", f"GEN_TP x GEN_DP is {used}: {usable - used} of {usable} GPUs stay idle", "raise GEN_DP")
    else:
        yield ok("GEN_DP", f"GEN_TP x GEN_DP fills the {usable} GPUs")


CHECKS: Final = (
    Check("disk", _disk, ("RESULTS_DIR",), plan=True, work=True),
    Check("N_CONCURRENT", _file_descriptors, ("N_CONCURRENT",)),
    Check("VLLM_PORT", _port, ("VLLM_PORT",), model=True, work=True),
    Check("GPUS_PER_NODE", _gpus, ("GPUS_PER_NODE", "GEN_TP", "GEN_DP"), model=True, work=True),
)
