"""The parts of a sandbox's world that look the same whatever its root is: /proc, /sys, /dev, masks, small files.

All of it runs after pivot_root, so that no symbolic link of an image leads out of the sandbox. Host objects are
reached through descriptors that were opened before.
"""

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from rolloutgen.sandbox.local import linux

SHM_SIZE_MB: Final = 256
_SHM: Final = "/dev/shm"  # noqa: S108  (the sandbox's own)
DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")

_QUIET: Final = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
_PROC_READ_ONLY: Final = ("sys", "irq", "bus", "fs", "sysrq-trigger")
_PROC_HIDDEN: Final = ("kcore", "keys", "latency_stats", "timer_list", "sched_debug", "acpi", "scsi")
_HOSTS: Final = "127.0.0.1\tlocalhost\n::1\tlocalhost\n"


def descriptor_path(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def mount_proc() -> None:
    """A /proc of this pid namespace, with what reaches the machine itself read-only or hidden."""
    _folder("/proc")
    linux.mount("proc", "/proc", "proc", _QUIET)
    for name in _PROC_READ_ONLY:
        with suppress(FileNotFoundError):
            bind(f"/proc/{name}", f"/proc/{name}", read_only=True)


def hide_in_proc() -> None:
    """Needs /dev/null in place."""
    hide(f"/proc/{name}" for name in _PROC_HIDDEN)


def mount_sys(old_sys: int) -> str:
    """A read-only /sys: a fresh one where the kernel allows it, else the machine's; says which."""
    _folder("/sys")
    try:
        linux.mount("sysfs", "/sys", "sysfs", _QUIET | linux.MS_RDONLY)
    except OSError:
        try:
            bind(descriptor_path(old_sys), "/sys", read_only=True)
        except OSError as error:
            return f"empty ({error.strerror})"
        return "the machine's, read-only"
    return "fresh, read-only"


def mount_dev(devices: dict[str, int]) -> None:
    """A minimal /dev from ``devices`` (name -> descriptor of the machine's node), with its own pts and shm."""
    _folder("/dev")
    linux.mount("tmpfs", "/dev", "tmpfs", linux.MS_NOSUID, "mode=755,size=1m")
    for name, descriptor in devices.items():
        _file(f"/dev/{name}", "")
        bind(descriptor_path(descriptor), f"/dev/{name}")
    for folder in ("pts", "shm"):
        os.mkdir(f"/dev/{folder}")
    linux.mount("devpts", "/dev/pts", "devpts", linux.MS_NOSUID | linux.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    linux.mount("tmpfs", _SHM, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, f"mode=1777,size={SHM_SIZE_MB}m")
    links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd"}
    links |= {name: f"/proc/self/fd/{number}" for number, name in enumerate(("stdin", "stdout", "stderr"))}
    for name, target in links.items():
        os.symlink(target, f"/dev/{name}")


def bind(source: str, target: str, *, read_only: bool = False) -> None:
    """Bind ``source`` with all mounts below it."""
    linux.mount(source, target, None, linux.MS_BIND | linux.MS_REC)
    if read_only:
        _make_readonly(target)


def hide(paths: Iterable[str]) -> None:
    """Cover each path that exists by an empty read-only folder, or by an empty file."""
    for path in paths:
        with suppress(FileNotFoundError, NotADirectoryError):
            if stat.S_ISDIR(os.stat(path).st_mode):
                linux.mount("tmpfs", path, "tmpfs", _QUIET | linux.MS_RDONLY, "size=4k,mode=755")
            else:
                bind("/dev/null", path)


def empty_files(paths: Iterable[str]) -> None:
    """Give each file that exists an empty one in its place, which can be written; where that cannot be, cover it."""
    for path in paths:
        if os.path.exists(path) and not _replace(path, ""):
            hide([path])


def write_network_files(resolv_conf: str | None) -> None:
    """Make names resolve: ``localhost`` always, others where ``resolv_conf`` (the machine's) is given."""
    _folder("/etc")
    if not _size("/etc/hosts"):
        _replace("/etc/hosts", _HOSTS)
    if resolv_conf is not None:
        _replace("/etc/resolv.conf", resolv_conf)


def _make_readonly(target: str) -> None:
    try:
        linux.make_readonly(target)
    except OSError:  # before Linux 5.12: this mount alone, keeping the flags that it has
        flags = os.statvfs(target).f_flag & (_QUIET | linux.MS_RDONLY)
        linux.mount("none", target, None, linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | flags)


def _folder(path: str) -> None:
    with suppress(FileExistsError):
        os.mkdir(path)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _file(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _replace(path: str, text: str) -> bool:
    """Put a file where there may be a link; False where an ordinary user's world cannot change what is there."""
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
        _file(path, text)
    except OSError:
        return False
    return True
