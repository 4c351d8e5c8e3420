"""A seccomp filter as a classic BPF program: what no task needs and a kernel should not be asked for gives EPERM.

A list of what is forbidden, not of what is allowed: a new harmless call keeps working. Known for x86_64 and aarch64;
elsewhere there is no filter, and ``install`` says so.
"""

import ctypes
import errno
import os
import struct
from typing import Final

from rolloutgen.sandbox.local import linux

_AUDIT_ARCH: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE: Final = {"x86_64": 56, "aarch64": 220}
_CLONE3: Final = 435
_NEW_NAMESPACES: Final = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_X32: Final = 0x40000000

# Names beside numbers: mount and its new kin, namespaces, modules, kexec, clocks, swap, keys, bpf, io_uring, handles.
_FORBIDDEN_EVERYWHERE: Final = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
    "quotactl_fd": 443,
}
_FORBIDDEN: Final = {
    "x86_64": {
        "syslog": 103,
        "uselib": 134,
        "vhangup": 153,
        "pivot_root": 155,
        "acct": 163,
        "settimeofday": 164,
        "mount": 165,
        "umount2": 166,
        "swapon": 167,
        "swapoff": 168,
        "reboot": 169,
        "sethostname": 170,
        "setdomainname": 171,
        "iopl": 172,
        "ioperm": 173,
        "create_module": 174,
        "init_module": 175,
        "delete_module": 176,
        "quotactl": 179,
        "nfsservctl": 180,
        "lookup_dcookie": 212,
        "clock_settime": 227,
        "kexec_load": 246,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "unshare": 272,
        "perf_event_open": 298,
        "fanotify_init": 300,
        "open_by_handle_at": 304,
        "clock_adjtime": 305,
        "setns": 308,
        "finit_module": 313,
        "kexec_file_load": 320,
        "bpf": 321,
        "userfaultfd": 323,
    },
    "aarch64": {
        "lookup_dcookie": 18,
        "umount2": 39,
        "mount": 40,
        "pivot_root": 41,
        "nfsservctl": 42,
        "vhangup": 58,
        "quotactl": 60,
        "acct": 89,
        "unshare": 97,
        "kexec_load": 104,
        "init_module": 105,
        "delete_module": 106,
        "clock_settime": 112,
        "syslog": 116,
        "reboot": 142,
        "sethostname": 161,
        "setdomainname": 162,
        "settimeofday": 170,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "swapon": 224,
        "swapoff": 225,
        "perf_event_open": 241,
        "fanotify_init": 262,
        "open_by_handle_at": 265,
        "clock_adjtime": 266,
        "setns": 268,
        "finit_module": 273,
        "bpf": 280,
        "userfaultfd": 282,
        "kexec_file_load": 294,
    },
}

_LOAD, _JUMP_EQUAL, _JUMP_GE, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(number: int, error: int) -> list[bytes]:
    return [_instruction(_JUMP_EQUAL, number, 0, 1), _instruction(_RETURN, _ERRNO | error)]


def program(machine: str) -> bytes | None:
    """The filter for ``machine`` (as ``uname -m``), or None where its system calls are not known here."""
    if machine not in _FORBIDDEN:
        return None
    steps = [_instruction(_LOAD, _ARCH), _instruction(_JUMP_EQUAL, _AUDIT_ARCH[machine], 1, 0)]
    steps += [_instruction(_RETURN, _ERRNO | errno.ENOSYS), _instruction(_LOAD, _NUMBER)]
    if machine == "x86_64":
        steps += [_instruction(_JUMP_GE, _X32, 0, 1), _instruction(_RETURN, _ERRNO | errno.ENOSYS)]
    for number in sorted({**_FORBIDDEN[machine], **_FORBIDDEN_EVERYWHERE}.values()):
        steps += _refuse(number, errno.EPERM)
    steps += _refuse(
        _CLONE3, errno.ENOSYS
    )  # its flags lie in memory, out of the filter's sight: libc falls back to clone
    steps += [_instruction(_JUMP_EQUAL, _CLONE[machine], 0, 3), _instruction(_LOAD, _FIRST_ARGUMENT)]
    steps += [_instruction(_JUMP_SET, _NEW_NAMESPACES, 0, 1), _instruction(_RETURN, _ERRNO | errno.EPERM)]
    steps += [_instruction(_RETURN, _ALLOW)]
    return b"".join(steps)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def install() -> str:
    """Filter this process and all its descendants (no_new_privs must be set); says what was done."""
    machine = os.uname().machine
    code = program(machine)
    if code is None:
        return f"none (not known for {machine})"
    buffer = ctypes.create_string_buffer(code, len(code))
    head = _Program(len(code) // 8, ctypes.addressof(buffer))
    try:
        linux.prctl(linux.PR_SET_SECCOMP, 2, ctypes.byref(head))
    except OSError as error:
        return f"none ({error.strerror})"
    return "filter"
