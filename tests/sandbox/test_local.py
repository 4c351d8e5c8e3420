"""What only the local backend promises: how it isolates, what it leaves (nothing), what it says of this machine."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rolloutgen.errors import Finding, Level, SandboxError
from rolloutgen.outcomes import Cause
from rolloutgen.sandbox.base import Network, Sandbox, SandboxSpec

from .conftest import MakeLocal, MakeSandbox


def _commands() -> Iterator[tuple[int, str]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                yield int(folder.name), (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue


def _cgroups(launch_id: str) -> list[Path]:
    return [Path(top, name) for top, names, _ in os.walk("/sys/fs/cgroup") for name in names if launch_id in name]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An unpacked image: nothing but a shell, what it needs, and traps for whoever follows links of an image."""
    root = tmp_path / "image"
    libraries = subprocess.run(["ldd", "/bin/sh"], check=True, capture_output=True, text=True).stdout.split()
    for name in ("/bin/sh", *(word for word in libraries if word.startswith("/"))):
        (root / name[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(name, root / name[1:])
    (root / "tmp").symlink_to(tmp_path / "trap")
    (tmp_path / "trap").mkdir()
    (root / "of-the-image").write_text("here\n")
    tmp_path.chmod(0o755)
    return root


async def test_hidden_paths_are_empty_also_behind_links(make_local: MakeLocal, launch_id: str, tmp_path: Path) -> None:
    """No view of RESULTS_DIR, the repository or HOME."""
    repository = Path(__file__).resolve().parents[2]
    link = tmp_path / "link"
    link.symlink_to("/usr/share")
    backend = make_local(hidden=(repository, link, Path("/etc/passwd"), Path("/no/such/path")))
    sandbox = backend.create(SandboxSpec(launch_id, None, "/app", network=Network.NONE))
    await sandbox.start()
    result = await sandbox.exec(
        f"ls -A {repository} /usr/share /root; cat /etc/passwd; echo > {repository}/x || echo no"
    )
    assert result.stdout.replace(b"\n\n", b"\n").split(b"\n")[-2] == b"no"
    assert (
        await sandbox.exec(f"ls -A {repository} /usr/share /root | grep -v :$; cat /etc/passwd")
    ).stdout.split() == []


@pytest.mark.parametrize(
    "command",
    [
        "mount -t tmpfs x /mnt",
        "mount -o remount,rw /proc/sys",
        "umount -l /proc/sys",
        "unshare -U true",
        "unshare -m true",
        "nsenter -t 1 -m true",
        "mknod /tmp/disk b 254 0",
        "echo 1 > /proc/sys/kernel/sysrq",
        "echo b > /proc/sysrq-trigger",
        "echo 0 > /sys/kernel/mm/ksm/run",
        "hostname other",
        "kill -9 1 && sleep 0.2 && ! kill -0 1",
        "dd if=/proc/1/mem of=/dev/null bs=1 count=1",
        "ls /proc/1/root/",
        "readlink /proc/1/fd/0",
        "dmesg",
        "date -s 2001-01-01",
    ],
)
async def test_root_in_a_sandbox_is_no_root_of_the_machine(sandbox: Sandbox, command: str) -> None:
    assert (await sandbox.exec(command, timeout_sec=30)).exit_status != 0


async def test_rights_of_a_command(sandbox: Sandbox) -> None:
    status = dict(
        line.split(":", 1) for line in (await sandbox.exec("cat /proc/self/status")).stdout.decode().splitlines()
    )
    assert int(status["CapBnd"], 16) == int(status["CapEff"], 16) == 0xA00405FB
    assert (status["NoNewPrivs"].strip(), status["Seccomp"].strip()) == ("1", "2")
    assert (await sandbox.report()).details["seccomp"] == "filter"


async def test_writes_stay_in_the_sandbox(sandbox: Sandbox, launch_id: str) -> None:
    name = f"/usr/written-by-{launch_id}"
    assert (await sandbox.exec(f"echo x > {name} && cat {name}")).stdout == b"x\n"
    assert not Path(name).exists()


async def test_open_network_is_the_machines(make_sandbox: MakeSandbox) -> None:
    names = {line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]}
    for network, seen in ((Network.OPEN, names), (Network.MODEL_ONLY, {"lo"}), (Network.NONE, {"lo"})):
        sandbox = await make_sandbox(network=network)
        result = await sandbox.exec("tail -n +3 /proc/net/dev | cut -d: -f1; test -r /etc/resolv.conf")
        assert set(result.stdout.decode().split()) == seen
        assert result.exit_status == 0


async def test_egress_none_cuts_off_tasks_that_allow_a_network(make_local: MakeLocal, launch_id: str) -> None:
    sandbox = make_local(egress=Network.NONE).create(SandboxSpec(launch_id, None, "/app", network=Network.OPEN))
    await sandbox.start()
    assert (await sandbox.exec("tail -n +3 /proc/net/dev | cut -d: -f1")).stdout.split() == [b"lo"]


async def test_unpacked_image_is_the_root(make_local: MakeLocal, launch_id: str, image: Path, tmp_path: Path) -> None:
    backend = make_local(images={"small:1": str(image)})
    sandbox = backend.create(SandboxSpec(launch_id, "small:1", "/work/here", network=Network.NONE))
    await sandbox.start()
    result = await sandbox.exec(
        'read x < /of-the-image; echo $x; pwd; echo "$0"; echo y > /of-the-image; echo z > /new'
    )
    assert result.stdout == b"here\n/work/here\nsh\n"
    await sandbox.download("/of-the-image", tmp_path / "back")
    assert (tmp_path / "back").read_text() == "y\n"
    await sandbox.stop()
    assert (image / "of-the-image").read_text() == "here\n"
    assert not (image / "new").exists()
    assert list((tmp_path / "trap").iterdir()) == []


async def test_unmapped_image_is_refused_by_name(make_local: MakeLocal, launch_id: str) -> None:
    with pytest.raises(SandboxError, match=r"foo:2.*LOCAL_IMAGES") as caught:
        make_local(images={"small:1": "host"}).create(SandboxSpec(launch_id, "foo:2", None))
    assert caught.value.cause is Cause.SANDBOX_START


async def test_image_without_a_shell_does_not_start(make_local: MakeLocal, launch_id: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    tmp_path.chmod(0o755)
    sandbox = make_local(images={"*": str(tmp_path / "empty")}).create(SandboxSpec(launch_id, None, None))
    with pytest.raises(SandboxError, match="no bash and no sh") as caught:
        await sandbox.start()
    assert caught.value.cause is Cause.SANDBOX_START


async def test_preflight_names_images_and_says_how_to_mend(make_local: MakeLocal, tmp_path: Path) -> None:
    backend = make_local(images={"a": "host", "b": str(tmp_path / "gone")})
    findings = {f.message: f for f in await backend.check(["a", "b", "c:1", None])}
    fatal = [finding for finding in findings.values() if finding.level is Level.FATAL]
    assert [_names(finding) for finding in fatal] == ["b", "c:1"]
    assert all(finding.subject == "LOCAL_IMAGES" and finding.mend for finding in fatal)
    assert "c:1=/" in fatal[1].mend
    assert [f.subject for f in findings.values() if f.level is Level.WARN and f.subject == "SANDBOX_EGRESS"]
    assert any("was removed" in message for message in findings)


async def test_a_helper_that_does_not_start_is_told_as_that(
    make_local: MakeLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as a lack of namespaces; and preflight says how to mend what it found."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    findings = await make_local().check([None])
    (fatal,) = [finding for finding in findings if finding.level is Level.FATAL]
    assert (fatal.subject, bool(fatal.mend)) == ("BACKEND", True)
    assert "the helper process did not start" in fatal.message
    assert "does not let us" not in fatal.message


async def test_tasks_that_name_no_image_need_no_mapping_and_it_is_told(make_local: MakeLocal, tmp_path: Path) -> None:
    """A8: LOCAL_IMAGES is needed where tasks name images. One of every image holds for those that name none, too."""
    mappings: list[dict[str, str]] = [{}, {"*": "host"}, {"*": str(tmp_path / "gone")}]
    findings = [await make_local(images=images).check([None]) for images in mappings]
    about = [[f.level for f in found if f.subject == "LOCAL_IMAGES"] for found in findings]
    assert about == [[Level.WARN], [], [Level.FATAL]]


async def test_an_image_that_no_task_names_is_told(make_local: MakeLocal) -> None:
    """A misspelt one would run on what `*` names."""
    mappings: list[dict[str, str]] = [{"a:1": "host", "*": "host"}, {"a:l": "host", "*": "host"}]
    findings = [await make_local(images=images).check(["a:1", None]) for images in mappings]
    told = [[(f.level, f.message) for f in found if f.subject == "LOCAL_IMAGES"] for found in findings]
    assert told == [[], [(Level.WARN, "no owed task names 'a:l'")]]


def _names(finding: Finding) -> str:
    return next(name for name in ("c:1", "b") if name in finding.message.replace("image 'b'", "b"))


async def test_nothing_is_left_of_a_stopped_sandbox(make_sandbox: MakeSandbox, launch_id: str) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    marker = f"{launch_id}-left"
    sandbox = await make_sandbox()
    await sandbox.exec(f"setsid sh -c 'while :; do sleep 1; done' {marker} >/dev/null 2>&1 &")
    assert [pid for pid, command in _commands() if marker in command]
    await sandbox.stop()
    assert [pid for pid, command in _commands() if marker in command] == []
    assert _cgroups(launch_id) == []
    assert Path("/proc/self/mountinfo").read_text() == mounts


async def test_closed_backend_leaves_no_process_and_no_descriptor(make_local: MakeLocal, launch_id: str) -> None:
    before = {path.name for path in Path("/proc/self/fd").iterdir()}
    backend = make_local()
    await backend.open()
    for number in range(3):
        sandbox = backend.create(SandboxSpec(f"{launch_id}-{number}", None, "/app", memory_mb=64))
        await sandbox.start()
        await sandbox.exec("sleep 60", timeout_sec=0.05)
    await backend.close()
    assert [command for _, command in _commands() if "zygote.main(" in command and f", {os.getpid()})" in command] == []
    assert len({path.name for path in Path("/proc/self/fd").iterdir()} - before) <= 1  # the listing's own


async def test_init_killed_from_outside_is_a_sandbox_error_that_says_so(sandbox: Sandbox) -> None:
    inits = [pid for pid, command in _commands() if "zygote.main(" in command and _is_pid_1(pid)]
    for pid in inits:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(SandboxError):
        await sandbox.exec("sleep 5")
    for _ in range(100):
        report = await sandbox.report()
        if "SIGKILL" in report.dead:
            break
        await asyncio.sleep(0.02)
    assert "killed from outside by SIGKILL" in report.dead
    assert not report.own_fault
    with pytest.raises(SandboxError, match="SIGKILL"):
        await sandbox.check()


def _is_pid_1(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("NSpid:"))
    parent = next(line for line in status.splitlines() if line.startswith("PPid:")).split()[1]
    ours = Path(f"/proc/{parent}/status").read_text()
    return line.split()[-1] == "1" and len(line.split()) > 2 and f"PPid:\t{os.getpid()}\n" in ours


async def test_killed_helper_is_replaced_for_the_next_sandbox(make_local: MakeLocal, launch_id: str) -> None:
    backend = make_local()
    first = backend.create(SandboxSpec(f"{launch_id}-1", None, "/app"))
    await first.start()
    for pid, command in _commands():
        if "zygote.main(" in command and f", {os.getpid()})" in command and not _is_pid_1(pid):
            os.kill(pid, signal.SIGKILL)
    with pytest.raises(SandboxError):
        await first.exec("sleep 5")
    second = backend.create(SandboxSpec(f"{launch_id}-2", None, "/app"))
    await second.start()
    assert (await second.exec("echo on")).stdout == b"on\n"


async def test_sixty_at_once(make_sandbox: MakeSandbox, launch_id: str) -> None:
    """A19: as many as N_CONCURRENT asks for, started, used and stopped together."""
    sandboxes = await asyncio.gather(*(make_sandbox(memory_mb=64, storage_mb=16) for _ in range(60)))
    results = await asyncio.gather(*(each.exec(f"echo {n}") for n, each in enumerate(sandboxes)))
    assert [int(result.stdout) for result in results] == list(range(60))
    await asyncio.gather(*(each.stop() for each in sandboxes))
    assert _cgroups(launch_id) == []
