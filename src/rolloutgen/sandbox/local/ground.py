"""What a sandbox is made of, beside its spec."""

from dataclasses import dataclass
from typing import Final

from rolloutgen.sandbox.base import SandboxSpec
from rolloutgen.sandbox.local import cgroups

_COMMANDS_MB: Final = 16


@dataclass(frozen=True, slots=True)
class Ground:
    """What a sandbox stands on: fixed by the backend when it is created. ``image`` is "host" or a folder."""

    launch_id: str
    image: str
    hidden: tuple[str, ...]
    network: str
    output_limit: int
    start_timeout_sec: float

    @property
    def default_workdir(self) -> str:
        return "/app" if self.image == "host" else "/"

    def start_request(self, spec: SandboxSpec) -> dict[str, object]:
        """What the zygote is asked."""
        return {
            "op": "start",
            "launch_id": self.launch_id,
            "name": spec.name,
            "image": self.image,
            "hidden": self.hidden,
            "network": self.network,
            "workdir": spec.workdir or self.default_workdir,
            "storage_mb": storage_mb(spec),
            "memory_mb": spec.memory_mb,
            "cpus": spec.cpus,
            "pids": cgroups.PIDS_MAX,
        }


def storage_mb(spec: SandboxSpec) -> int | None:
    """What its files may take, in MiB (None: half of the machine's memory).

    Files lie in memory, so a sandbox whose files fill its memory could run no command any more, not even the verifier's
    first. An eighth of the memory (16 MiB at least) is kept for commands: the disk is full before.
    """
    if spec.memory_mb is None:
        return spec.storage_mb
    most = max(1, spec.memory_mb - max(_COMMANDS_MB, spec.memory_mb // 8))
    return most if spec.storage_mb is None else min(spec.storage_mb, most)
