"""The one helper process of a driver: forks a sandbox's init on request, reaps it, and tells how it ended.

Single-threaded, loads the standard library only, knows nothing of a sandbox once it is started. As an ordinary user it
first becomes root of a user namespace. It dies with the driver: by the end of its socket, and by the parent's death.
"""

import errno
import gc
import os
import resource
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Final

from rolloutgen.sandbox.local import cgroups, init, linux, wire

_NO_ROOM: Final = frozenset({errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EMFILE, errno.ENFILE})
"""No more processes, memory, namespaces (ENOSPC) or files just now: later there may be."""


def main(descriptor: int, driver: int) -> None:
    """Serve the driver (its pid) on the socket ``descriptor`` until it closes."""
    control = socket.socket(fileno=descriptor)
    sys.path.clear()  # nothing is loaded from now on, least of all out of a sandbox
    user_namespace = False
    error = ""
    if not linux.has_capability(linux.CAP_SYS_ADMIN):
        try:
            init.enter_user_namespace(os.geteuid(), os.getegid())
            user_namespace = True
        except OSError as failure:
            error = f"{failure.filename or 'user namespace'}: {failure.strerror}"
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != driver:
        return
    _raise_open_files()
    gc.disable()
    gc.freeze()
    wire.send(control, {"op": "ready", "user_namespace": user_namespace, "error": error})
    _serve(control, user_namespace)


def _serve(control: socket.socket, user_namespace: bool) -> None:
    readable, writable = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(readable, select.POLLIN)
    launchers: set[int] = set()
    while True:
        ready = {number for number, _ in poll.poll()}
        if readable in ready:
            with suppress(BlockingIOError):
                os.read(readable, 4096)
        if control.fileno() in ready:
            received = wire.receive(control)
            if received is None:
                return
            launchers.add(_handle(*received, control, (readable, writable), user_namespace))
        _reap(control, launchers)


def _handle(
    message: wire.Message, descriptors: list[int], control: socket.socket, own: tuple[int, int], user_namespace: bool
) -> int:
    """Do what the driver asks; the pid of the fork that starts a sandbox (0: none)."""
    if message["op"] == "kill":
        with suppress(ProcessLookupError):
            os.kill(message["pid"], signal.SIGKILL)
        return 0
    try:
        launcher = os.fork()
    except OSError as error:
        with socket.socket(fileno=descriptors[0]) as channel:
            _refuse(channel, error)
        return 0
    if launcher == 0:
        try:
            signal.set_wakeup_fd(-1)
            control.close()
            for descriptor in own:
                os.close(descriptor)
            _start(socket.socket(fileno=descriptors[0]), message | {"user_namespace": user_namespace})
        except BaseException:  # noqa: BLE001  (a bug of ours, and nothing may run on in this fork)
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    for descriptor in descriptors:
        os.close(descriptor)
    return launcher


def _start(channel: socket.socket, request: wire.Message) -> None:
    """In a fork: make the limits and the namespaces, fork the init into them, tell its pid, and go."""
    limits = cgroups.Limits(request["memory_mb"], request["cpus"], request["pids"])
    group = cgroups.create(request["launch_id"], request["name"], limits)
    try:
        kinds = os.CLONE_NEWNS | os.CLONE_NEWPID | os.CLONE_NEWIPC | os.CLONE_NEWUTS
        os.unshare(kinds | (0 if request["network"] == "open" else os.CLONE_NEWNET))
        zygote, launcher = os.getppid(), os.getpid()
        pid = os.fork()
    except OSError as error:
        group.remove()
        _refuse(channel, error)
        return
    if pid == 0:
        if _wait_for_parent(zygote, launcher):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            init.run(channel, request, group)
        return
    wire.send(channel, {"op": "forked", "pid": pid, "version": group.version, "folders": group.folders})


def _refuse(channel: socket.socket, error: OSError) -> None:
    """Tell that there will be no sandbox; ``busy``: the machine has no room now, which hits all alike."""
    busy = error.errno in _NO_ROOM
    wire.send(channel, {"op": "failed", "error": f"namespaces: {error.strerror}", "busy": busy})


def _wait_for_parent(zygote: int, launcher: int) -> bool:
    """Until the zygote is this process's parent; False where it is gone.

    Only then may the parent's death be ours too: the launcher ends on purpose. The machine's own /proc tells; the pid
    namespace that we are the first of knows no parent.
    """
    while True:
        with open("/proc/self/stat", "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])
        if parent != launcher:
            return parent == zygote
        time.sleep(0.0002)


def _reap(control: socket.socket, launchers: set[int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in launchers:
            launchers.remove(pid)
            continue
        wire.send(control, {"op": "ended", "pid": pid, "status": os.waitstatus_to_exitcode(status)})


def _raise_open_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
