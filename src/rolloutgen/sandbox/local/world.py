"""Build the root of one sandbox and move into it. Runs once, in the init, before any command.

The writable layer is one tmpfs of the sandbox's storage limit: full is this sandbox's own limit, and everything
vanishes with the namespace, also after SIGKILL. Below it lies the machine's root, folder by folder (in a user namespace
an overlay over ``/`` fails where other file systems are mounted below it), or an unpacked image.
"""

import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from rolloutgen.sandbox.local import linux, mounts

HOST: Final = "host"
STAGE: Final = "/tmp"  # noqa: S108  (a folder that every machine has; covered in a private namespace)

_OWN: Final = {"tmp": 0o1777, "home": 0o755, "root": 0o700, "run": 0o755, "app": 0o755, "tests": 0o755, "logs": 0o755}
"""Top-level folders that a sandbox on the machine's root gets empty."""
_LEFT_OUT: Final = frozenset({*_OWN, "proc", "sys", "dev", "boot", "lost+found", "snap"})
_SECRET_FILES: Final = ("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-")
_SECRETS: Final = (
    "/etc/ssh",
    "/etc/kubernetes",
    "/etc/rancher",
    "/var/lib/kubelet",
    "/var/lib/rancher",
    "/var/lib/docker",
    "/var/lib/containerd",
)
_PSEUDO: Final = frozenset({"proc", "sysfs", "cgroup", "cgroup2", "devtmpfs", "devpts", "autofs", "nsfs", "overlay"})


@dataclass(slots=True)
class World:
    """What was built, for the report: ``read_only`` folders have no writable layer, and why."""

    read_only: dict[str, str] = field(default_factory=dict)
    sys: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """``image`` is HOST or a folder; ``storage_mb`` MiB (None: half of the machine's memory, the kernel's default)."""

    image: str
    hidden: Sequence[str]
    workdir: str | None
    storage_mb: int | None
    host_network: bool
    user_namespace: bool


def build(plan: Plan) -> World:
    """Enter the finished world. Raises OSError that names the step."""
    world = World()
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    resolv_conf = _read("/etc/resolv.conf") if plan.host_network else None
    devices = {name: _handle(f"/dev/{name}") for name in mounts.DEVICES if os.path.exists(f"/dev/{name}")}
    old_sys = _handle("/sys")
    _build_root(plan, world)
    old_root = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    os.chdir(f"{STAGE}/root")
    linux.pivot_root_here()
    _furnish(plan, world, devices, old_sys, resolv_conf)
    os.fchdir(old_root)
    linux.unmount_detached(".")
    os.chdir("/")
    for descriptor in (*devices.values(), old_sys, old_root):
        os.close(descriptor)
    return world


def _build_root(plan: Plan, world: World) -> None:
    lower = _handle("/" if plan.image == HOST else plan.image)
    folders = _host_folders() if plan.image == HOST else {}
    size = f",size={plan.storage_mb}m" if plan.storage_mb else ""
    linux.mount("tmpfs", STAGE, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, f"mode=755{size}")
    for name in ("root", "upper", "work"):
        os.mkdir(f"{STAGE}/{name}")
    if plan.image != HOST:
        _overlay(lower, "root", f"{STAGE}/root", plan.user_namespace)
    else:
        linux.mount(f"{STAGE}/root", f"{STAGE}/root", None, linux.MS_BIND)
        _lay_host_folders(folders, world, plan.user_namespace)
    for descriptor in (lower, *folders.values()):
        os.close(descriptor)


def _host_folders() -> dict[str, int]:
    """Path -> handle: the top-level folders, then the file systems mounted below them."""
    names = sorted(entry.name for entry in os.scandir("/") if entry.is_dir(follow_symlinks=False))
    tops = [f"/{name}" for name in names if name not in _LEFT_OUT]
    folders = {}
    for path in [*tops, *_mounted_below(tops)]:
        with suppress(OSError):
            folders[path] = _handle(path)
    return folders


def _mounted_below(tops: Sequence[str]) -> list[str]:
    """The outermost mount points below ``tops`` that hold files of interest."""
    found: list[str] = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        lines = [(line.split()[4], line.partition(" - ")[2].split()[0]) for line in table]
    for path, kind in sorted(lines):
        below = any(path.startswith(f"{top}/") for top in tops)
        if below and kind not in _PSEUDO and not any(path == seen or path.startswith(f"{seen}/") for seen in found):
            found.append(_unescape(path))
    return found


def _unescape(path: str) -> str:
    """As mountinfo writes it. By hand: a codec would be loaded from disk, which is out of reach by now."""
    for code in (0o40, 0o11, 0o12, 0o134):
        path = path.replace(f"\\{code:03o}", chr(code))
    return path


def _lay_host_folders(folders: Mapping[str, int], world: World, user_namespace: bool) -> None:
    for entry in os.scandir("/"):
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), f"{STAGE}/root/{entry.name}")
    for name, mode in _OWN.items():
        _make_folder(f"{STAGE}/root/{name}", mode)
    for path, handle in folders.items():
        _lay(path, handle, world, user_namespace)
    vartmp = f"{STAGE}/upper/vartmp"
    _make_folder(vartmp, 0o1777)
    with suppress(FileNotFoundError):
        linux.mount(vartmp, f"{STAGE}/root/var/tmp", None, linux.MS_BIND)


def _lay(path: str, handle: int, world: World, user_namespace: bool) -> None:
    target = f"{STAGE}/root{path}"
    if path.count("/") > 1:
        with suppress(OSError):
            mounts.bind(mounts.descriptor_path(handle), target, read_only=True)
            world.read_only[path] = "a file system of its own"
        return
    _make_folder(target, stat.S_IMODE(os.fstat(handle).st_mode))
    if not os.listdir(mounts.descriptor_path(handle)):
        return
    try:
        _overlay(handle, path.strip("/"), target, user_namespace)
    except OSError as error:
        mounts.bind(mounts.descriptor_path(handle), target, read_only=True)
        world.read_only[path] = error.strerror or str(error)


def _overlay(lower: int, name: str, target: str, user_namespace: bool) -> None:
    """``lower`` with a writable layer of its own. The layer's top gets the mode and owner of the folder below it."""
    upper, work = f"{STAGE}/upper/{name}", f"{STAGE}/work/{name}"
    status = os.fstat(lower)
    _make_folder(upper, stat.S_IMODE(status.st_mode))
    with suppress(OSError):  # an owner that this user namespace does not know
        os.chown(upper, status.st_uid, status.st_gid)
    _make_folder(work, 0o700)
    options = f"lowerdir={mounts.descriptor_path(lower)},upperdir={upper},workdir={work}"
    linux.mount("overlay", target, "overlay", linux.MS_NODEV, options + (",userxattr" if user_namespace else ""))


def _furnish(plan: Plan, world: World, devices: dict[str, int], old_sys: int, resolv_conf: str | None) -> None:
    mounts.mount_proc()
    mounts.mount_dev(devices)
    mounts.hide_in_proc()
    world.sys = mounts.mount_sys(old_sys)
    if plan.image == HOST:
        mounts.empty_files(_SECRET_FILES)
        mounts.hide([*_SECRETS, *plan.hidden])
    for name, mode in {**_OWN, "var/tmp": 0o1777}.items():
        with suppress(FileExistsError):
            os.makedirs(f"/{name}")
            os.chmod(f"/{name}", mode)
    mounts.write_network_files(resolv_conf)
    os.makedirs(plan.workdir or "/", exist_ok=True)


def _make_folder(path: str, mode: int) -> None:
    os.mkdir(path)
    os.chmod(path, mode)


def _handle(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None
