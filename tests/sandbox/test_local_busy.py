"""A machine without room for another process: no sandbox now, none lost, and nothing charged to a trial."""

from pathlib import Path

import pytest

from rolloutgen.errors import SandboxError
from rolloutgen.outcomes import Cause
from rolloutgen.sandbox.base import SandboxSpec
from rolloutgen.sandbox.local import cgroups

from .conftest import MakeLocal


@pytest.mark.parametrize("room", [1, 2], ids=["for no fork", "for the launcher alone"])
async def test_no_room_for_a_process_is_busy_and_passes(make_local: MakeLocal, launch_id: str, room: int) -> None:
    """The process that starts all sandboxes lives on, and so do those that run."""
    group = cgroups.create(launch_id, "starved", cgroups.Limits(pids=room))
    if "pids" not in group.folders:
        pytest.skip(f"no limit of processes can be set here: {group.refused['pids']}")
    folder, backend = Path(group.folders["pids"]), make_local()
    await backend.open()
    running = backend.create(SandboxSpec(f"running-{launch_id}", None, None))
    await running.start()
    assert backend._zygote is not None
    pid = backend._zygote._process.pid
    (folder / "cgroup.procs").write_text(str(pid))
    with pytest.raises(SandboxError, match="temporarily unavailable") as refused:
        await backend.create(SandboxSpec(f"starved-{launch_id}", None, None)).start()
    assert refused.value.cause is Cause.SANDBOX_BUSY
    assert (await running.exec("echo on")).stdout == b"on\n"
    (folder / "pids.max").write_text("max")
    await backend.create(SandboxSpec(f"later-{launch_id}", None, None)).start()
    assert backend._zygote._process.pid == pid
    await backend.close()
    assert str(folder) in cgroups.sweep_cgroups(launch_id)
