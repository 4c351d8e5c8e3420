"""Backends and sandboxes for tests. A backend that joins the contract adds its name to BACKENDS and a branch to
``backend``.
"""

import itertools
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from rolloutgen.sandbox.base import Network, Sandbox, SandboxBackend, SandboxSpec
from rolloutgen.sandbox.local.backend import LocalBackend

BACKENDS = ("local",)

type MakeSandbox = Callable[..., Awaitable[Sandbox]]
type MakeLocal = Callable[..., LocalBackend]


@pytest.fixture
def launch_id() -> str:
    return f"test-{os.getpid()}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def made_local() -> list[LocalBackend]:
    return []


@pytest.fixture
def make_local(launch_id: str, made_local: list[LocalBackend]) -> MakeLocal:
    """Local backends of this test's launch; closed at its end."""

    def make(
        images: dict[str, str] | None = None, hidden: tuple[Path, ...] = (), egress: Network = Network.OPEN
    ) -> LocalBackend:
        mapped = {"*": "host"} if images is None else images
        backend = LocalBackend(launch_id=launch_id, images=mapped, hidden=hidden, egress=egress, exec_output_max_mb=1)
        made_local.append(backend)
        return backend

    return make


@pytest.fixture(autouse=True)
async def close_local(made_local: list[LocalBackend]) -> AsyncIterator[None]:
    yield
    for backend in made_local:
        await backend.close()


@pytest.fixture(params=BACKENDS)
async def backend(request: pytest.FixtureRequest, make_local: MakeLocal) -> AsyncIterator[SandboxBackend]:
    """One backend of each kind that this machine is meant to have, open."""
    makers = {"local": make_local}
    made = makers[request.param]()
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def make_sandbox(backend: SandboxBackend, launch_id: str) -> AsyncIterator[MakeSandbox]:
    """Started sandboxes; keyword arguments change the spec."""
    numbers = itertools.count()
    made: list[Sandbox] = []

    async def make(**changes: object) -> Sandbox:
        name = f"{launch_id}-{next(numbers)}"
        wanted: dict[str, object] = {"workdir": "/app", "memory_mb": 512, "storage_mb": 256, "network": Network.NONE}
        spec = SandboxSpec(**{"name": name, "image": None, **wanted, **changes})
        sandbox = backend.create(spec)
        made.append(sandbox)
        await sandbox.start()
        return sandbox

    yield make
    for sandbox in made:
        await sandbox.stop()


@pytest.fixture
async def sandbox(make_sandbox: MakeSandbox) -> Sandbox:
    return await make_sandbox()
