"""What a sandbox is made of, beside its spec."""

from dataclasses import dataclass

from rolloutgen.sandbox.base import SandboxSpec
from rolloutgen.sandbox.local import cgroups


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
            "storage_mb": spec.storage_mb,
            "memory_mb": spec.memory_mb,
            "cpus": spec.cpus,
            "pids": cgroups.PIDS_MAX,
        }
