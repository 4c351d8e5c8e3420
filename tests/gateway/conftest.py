"""A launch folder with a gateway of its own, and the driver's side of it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from gateways import Launch
from rolloutgen.gateway.client import Gateway


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    with Launch(tmp_path) as launch:
        yield launch


@pytest.fixture
async def gateway(launch: Launch) -> AsyncIterator[Gateway]:
    """Open before any gateway process runs, as the driver's may be."""
    gateway = Gateway(launch.folder)
    await gateway.open()
    yield gateway
    await gateway.close()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """What a scaffold speaks with."""
    async with aiohttp.ClientSession() as session:
        yield session
