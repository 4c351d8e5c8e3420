"""Pid 1 of one sandbox: builds its world, then runs commands and copies for the driver until the control socket ends.

It is a fork of the zygote: nothing of it lies in the sandbox's files. It stays outside the sandbox's limits and keeps
more rights than any command has, so that a command can neither starve, trace nor stop it. When it goes, the kernel
kills everything in its pid namespace.
"""

import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from rolloutgen.sandbox.local import cgroups, command, linux, seccomp, wire, world
from rolloutgen.sandbox.local.jobs import Copy, Exec, Job

HOSTNAME: Final = "localhost"
_LOOK_MS: Final = 500


def run(control: socket.socket, request: wire.Message, group: cgroups.Group) -> None:
    """The whole life of a sandbox. Never returns an exception: what goes wrong in the start is told to the driver."""
    try:
        members = group.open_members()
        built = world.build(_plan(request))
        linux.set_hostname(HOSTNAME)
        if request["network"] != "open":
            linux.raise_loopback()
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        command.require_shell(request["image"])
        filtered = _harden(request["user_namespace"])
    except Exception as error:  # noqa: BLE001  (whatever it is, the driver must hear of it)
        wire.send(control, {"op": "failed", "error": str(error) or type(error).__name__})
        return
    stand_ins = rlimits(request, group)
    details = {
        "limits": group.describe() | _name_rlimits(stand_ins),
        "seccomp": filtered,
        "sys": built.sys,
        "read_only": built.read_only,
    }
    wire.send(control, {"op": "ready", "details": details})
    Init(control, null, members, stand_ins).loop()


def rlimits(request: wire.Message, group: cgroups.Group) -> dict[int, int]:
    """What stands in for a controller that is missing: limits per process (memory) and per user (pids)."""
    amounts = {}
    if "memory" not in group.folders and request["memory_mb"]:
        amounts[resource.RLIMIT_DATA] = request["memory_mb"] << 20
    if "pids" not in group.folders:
        amounts[resource.RLIMIT_NPROC] = request["pids"]
    return amounts


def _name_rlimits(amounts: dict[int, int]) -> dict[str, str]:
    names = {resource.RLIMIT_DATA: "memory", resource.RLIMIT_NPROC: "pids"}
    return {names[kind]: "rlimit (no writable cgroup)" for kind in amounts}


def _plan(request: wire.Message) -> world.Plan:
    return world.Plan(
        image=request["image"],
        hidden=request["hidden"],
        workdir=request["workdir"],
        storage_mb=request["storage_mb"],
        host_network=request["network"] == "open",
        user_namespace=request["user_namespace"],
    )


def _harden(user_namespace: bool) -> str:
    """Nothing that is forked from here on can get more rights than it is given. Says what seccomp does."""
    if user_namespace:
        enter_user_namespace(0, 0)  # a second one: it owns none of the mounts, and counts its processes by itself
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    linux.drop_bounding_set(linux.CONTAINER_CAPABILITIES)
    filtered = seccomp.install()
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    return filtered


def enter_user_namespace(uid: int, gid: int) -> None:
    """Become root of a new user namespace in which ``uid`` and ``gid`` of the old one are 0, and nobody else exists."""
    os.unshare(os.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


class Init:
    """The loop of pid 1: requests of the driver, reports of its forks, deadlines, orphans to reap."""

    def __init__(self, control: socket.socket, null: int, members: list[int], limits: dict[int, int]) -> None:
        self._control = control
        self._null = null
        self._root = os.open("/", os.O_PATH | os.O_CLOEXEC)
        self._members = members
        self._rlimits = limits
        self._jobs: dict[int, Job] = {}
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._disk_full = False
        self._wake_on_child()
        self._watch(control.fileno(), self._request)

    def loop(self) -> None:
        """Until the driver closes its end; then everything here dies with this process."""
        while True:
            for descriptor, _ in self._poll.poll(self._pause_ms()):
                handler = self._handlers.get(descriptor)
                if handler is not None:
                    handler()
            self._reap()
            self._is_disk_full()
            for job in list(self._jobs.values()):
                job.wake()
                if job.deadline is not None and time.monotonic() >= job.deadline:
                    job.end("timed_out")
                self._finish_if_done(job)

    def _wake_on_child(self) -> None:
        readable, writable = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        self._watch(readable, lambda: _drain(readable))

    def _watch(self, descriptor: int, handler: Callable[[], None]) -> None:
        self._handlers[descriptor] = handler
        self._poll.register(descriptor, select.POLLIN)

    def _pause_ms(self) -> float | None:
        """Wait for ever when idle; while a command runs, look at the disk now and then."""
        if not self._jobs:
            return None
        deadlines = [job.deadline - time.monotonic() for job in self._jobs.values() if job.deadline is not None]
        return min(_LOOK_MS, max(0.0, min(deadlines, default=1.0)) * 1000 + 1)

    def _request(self) -> None:
        received = wire.receive(self._control)
        if received is None:
            os._exit(0)
        message, descriptors = received
        try:
            getattr(self, f"_do_{message['op']}")(message, descriptors)
        except (OSError, LookupError) as error:
            self._answer(message["id"], {"error": str(error), "kind": type(error).__name__})
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _do_exec(self, message: wire.Message, descriptors: list[int]) -> None:
        job = Exec.start(message, descriptors, self._null, self._members, self._rlimits)
        self._add(message["id"], job)

    def _do_copy(self, message: wire.Message, descriptors: list[int]) -> None:
        self._add(message["id"], Copy.start(message, descriptors))

    def _do_kill(self, message: wire.Message, _: list[int]) -> None:
        job = self._jobs.get(message["job"])
        if job is not None:
            job.end("killed")

    def _do_ping(self, message: wire.Message, _: list[int]) -> None:
        self._answer(message["id"], {"disk_full": self._is_disk_full()})

    def _add(self, number: int, job: Job) -> None:
        job.number = number
        self._jobs[number] = job
        self._watch(job.report, job.read_report)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for job in self._jobs.values():
                job.child_ended(pid, status)

    def _finish_if_done(self, job: Job) -> None:
        if job.closed and job.report in self._handlers:
            self._poll.unregister(job.report)
            del self._handlers[job.report]
        if job.answer is not None:
            self._reap()  # whoever is told of the end finds no zombie of it
            del self._jobs[job.number]
            if job.report in self._handlers:
                self._poll.unregister(job.report)
                del self._handlers[job.report]
            os.close(job.report)
            self._answer(job.number, {**job.answer, "disk_full": self._is_disk_full()})

    def _answer(self, number: int, answer: dict[str, Any]) -> None:
        wire.send(self._control, {"op": "answer", "id": number, **answer})

    def _is_disk_full(self) -> bool:
        """Whether the writable layer was ever found without a free block or inode."""
        with suppress(OSError):
            status = os.fstatvfs(self._root)
            self._disk_full = self._disk_full or status.f_bavail == 0 or status.f_favail == 0
        return self._disk_full


def _drain(descriptor: int) -> None:
    with suppress(BlockingIOError):
        while os.read(descriptor, 4096):
            pass
