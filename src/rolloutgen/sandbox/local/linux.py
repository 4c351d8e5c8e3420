"""The system calls that Python does not offer. All raise OSError, named after the call."""

import ctypes
import fcntl
import os
import socket
import struct
from typing import Final

MS_RDONLY: Final = 0x1
MS_NOSUID: Final = 0x2
MS_NODEV: Final = 0x4
MS_NOEXEC: Final = 0x8
MS_REMOUNT: Final = 0x20
MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 0x40000
MNT_DETACH: Final = 0x2

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_SET_SECCOMP: Final = 22
PR_CAPBSET_DROP: Final = 24
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38

CAP_SYS_ADMIN: Final = 21
CONTAINER_CAPABILITIES: Final = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 29, 31})
"""What root in a sandbox may: chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service,
sys_chroot, audit_write, setfcap. The usual set of containers, less mknod and net_raw."""

_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR: Final = 442
_AT_RECURSIVE: Final = 0x8000
_MOUNT_ATTR_RDONLY: Final = 0x1
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 0x1
_CAPABILITY_VERSION_3: Final = 0x20080522

_libc: Final = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *args: object) -> int:
    result = int(getattr(_libc, name)(*args))
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def _text(value: str | None) -> bytes | None:
    return None if value is None else os.fsencode(value)


def mount(source: str, target: str, fstype: str | None, flags: int, options: str = "") -> None:
    """mount(2). The error names the target."""
    arguments = (_text(source), _text(target), _text(fstype), ctypes.c_ulong(flags), _text(options or None))
    try:
        _call("mount", *arguments)
    except OSError as error:
        raise OSError(error.errno, f"mount {fstype or source} on {target}: {os.strerror(error.errno or 0)}") from None


def unmount_detached(target: str) -> None:
    _call("umount2", _text(target), MNT_DETACH)


def pivot_root_here() -> None:
    """Make the working directory the root; the old root lies stacked on it."""
    number = _PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(f"no number of pivot_root is known for {os.uname().machine}")
    _call("syscall", ctypes.c_long(number), b".", b".")


def make_readonly(path: str) -> None:
    """Make the mount at ``path``, and every mount below it, read-only (Linux 5.12)."""
    attributes = struct.pack("=QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    call = (ctypes.c_long(_MOUNT_SETATTR), ctypes.c_int(-100), _text(path), ctypes.c_uint(_AT_RECURSIVE))
    _call("syscall", *call, attributes, ctypes.c_size_t(len(attributes)))


def prctl(option: int, value: int | ctypes.Array[ctypes.c_char] = 0, third: object = 0) -> None:
    second = ctypes.c_ulong(value) if isinstance(value, int) else value
    last = ctypes.c_ulong(third) if isinstance(third, int) else third
    _call("prctl", ctypes.c_int(option), second, last, ctypes.c_ulong(0), ctypes.c_ulong(0))


def raise_loopback() -> None:
    """Bring up ``lo`` of this network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh22x", b"lo", _IFF_UP)
        fcntl.ioctl(any_socket.fileno(), _SIOCSIFFLAGS, request)


def set_hostname(name: str) -> None:
    _call("sethostname", name.encode(), ctypes.c_size_t(len(name)))


def drop_bounding_set(keep: frozenset[int]) -> None:
    """Give up for ever, for all descendants, every capability but ``keep``."""
    for capability in range(64):
        if capability not in keep:
            try:
                prctl(PR_CAPBSET_DROP, capability)
            except OSError:  # past the kernel's last capability
                return


def set_capabilities(keep: frozenset[int]) -> None:
    """Reduce the effective and permitted capabilities of this process to ``keep``; inheritable ones become none."""
    bits = sum(1 << capability for capability in keep)
    low, high = bits & 0xFFFFFFFF, bits >> 32
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _call("capset", header, struct.pack("=6I", low, low, 0, high, high, 0))


def has_capability(capability: int) -> bool:
    """Whether this process holds ``capability`` (effective)."""
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("CapEff:"))
    return bool(int(line.split()[1], 16) >> capability & 1)
