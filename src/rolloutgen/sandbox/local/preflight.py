"""Is BACKEND=local usable here? What is missing, and how to mend it."""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from rolloutgen.errors import Finding, Level, SandboxError
from rolloutgen.sandbox.base import Network, Sandbox, SandboxSpec

_MEND_NAMESPACES = (
    "run as root (in a container: --privileged), or allow user namespaces: sysctl user.max_user_namespaces=65536, and "
    "where they exist kernel.unprivileged_userns_clone=1 and kernel.apparmor_restrict_unprivileged_userns=0"
)


class Factory(Protocol):
    """What a probe needs of the backend."""

    def create(self, spec: SandboxSpec) -> Sandbox: ...


def check_images(
    images: Sequence[str | None], folder_of: Callable[[str | None], str | None], any_is_mapped: bool
) -> list[Finding]:
    """Every image must be mapped, and to a folder that is there; what serves where a task names none is told."""
    findings = []
    if None in images and not any_is_mapped:
        told = "tasks that name no image run on the machine's own root, whatever their Dockerfile builds"
        findings.append(Finding(Level.WARN, "LOCAL_IMAGES", told, mend=_mend_unmapped("*")))
    for image in dict.fromkeys(images):
        folder = folder_of(image)
        name = "tasks that name no image" if image is None else f"image {image!r}"
        if folder is None:
            findings.append(_fatal("LOCAL_IMAGES", f"{name}: not mapped", _mend_unmapped(image or "*")))
        elif folder != "host" and not Path(folder).is_dir():
            mend = "unpack the image there (docker export NAME | tar -x -C FOLDER), or correct the path"
            findings.append(_fatal("LOCAL_IMAGES", f"{name}: {folder} is not a folder", mend))
    return findings


def check_mapped(mapped: Iterable[str], images: Sequence[str | None]) -> list[Finding]:
    """A misspelt image would run on what serves for all others, and nobody would see it."""
    unused = sorted(set(mapped) - set(images))
    if not unused:
        return []
    message = f"no owed task names {', '.join(map(repr, unused))}"
    return [Finding(Level.WARN, "LOCAL_IMAGES", message, mend="write an image letter for letter as the tasks do")]


def _mend_unmapped(image: str) -> str:
    return f"set LOCAL_IMAGES='{image}=/path/to/unpacked/root', or '*=host' for the machine's own root"


def check_egress(egress: Network) -> list[Finding]:
    if egress is not Network.OPEN:
        return []
    message = "open: sandboxes of tasks that allow a network use this machine's own, with all that it reaches"
    return [
        Finding(Level.WARN, "SANDBOX_EGRESS", message, mend="set SANDBOX_EGRESS=model-only or none to cut them off")
    ]


async def check_probe(factory: Factory, image: str | None, launch_id: str) -> list[Finding]:
    """Start a sandbox, run ``true`` in it, remove it; say which limits and filters hold."""
    spec = SandboxSpec(f"probe-{launch_id}-{os.getpid()}", image, None, 1.0, 256, 64, Network.NONE)
    try:
        sandbox = factory.create(spec)
    except SandboxError:
        return []  # the image's own finding says it
    try:
        await sandbox.start()
        result = await sandbox.exec("true", timeout_sec=30)
        details = (await sandbox.report()).details
    except SandboxError as error:
        return [_fatal("BACKEND", f"local: no sandbox can be started: {error}", _MEND_NAMESPACES)]
    finally:
        await asyncio.shield(sandbox.stop())
    if result.exit_status != 0:
        message = f"local: `true` ends with {result.exit_status} in a sandbox: {result.stderr.decode(errors='replace')}"
        return [_fatal("BACKEND", message, "look at the image's root folder: is it whole?")]
    return [
        Finding(Level.OK, "BACKEND", "local: a sandbox was started, ran `true` and was removed"),
        *_quality(details),
    ]


def _quality(details: Mapping[str, object]) -> list[Finding]:
    findings = []
    limits = details.get("limits")
    for name, how in sorted(limits.items()) if isinstance(limits, dict) else ():
        findings.append(_graded(f"limit of {name}", str(how), "cgroup", "run as root for limits by cgroup"))
    filtered = str(details.get("seccomp"))
    findings.append(
        _graded("seccomp", filtered, "filter", "use a kernel with CONFIG_SECCOMP_FILTER on x86_64 or aarch64")
    )
    read_only = details.get("read_only")
    if isinstance(read_only, dict) and read_only:
        listed = ", ".join(f"{path} ({why})" for path, why in sorted(read_only.items()))
        findings.append(Finding(Level.OK, "read-only folders", listed))
    return findings


def _graded(subject: str, how: str, wanted: str, mend: str) -> Finding:
    good = how.startswith(wanted)
    return Finding(Level.OK if good else Level.WARN, subject, how, mend="" if good else mend)


def _fatal(subject: str, message: str, mend: str) -> Finding:
    return Finding(Level.FATAL, subject, message, mend=mend)
