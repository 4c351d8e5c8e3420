"""A small driver, to be killed: starts COUNT sandboxes with daemons and a running command each, says ``up``, waits."""

import asyncio
import sys

from rolloutgen.sandbox.base import Network, SandboxSpec
from rolloutgen.sandbox.local.backend import LocalBackend


async def main(launch_id: str, count: int) -> None:
    backend = LocalBackend(launch_id=launch_id, images={"*": "host"}, hidden=(), egress=Network.NONE)
    commands = []
    for number in range(count):
        sandbox = backend.create(SandboxSpec(f"{launch_id}-{number}", None, "/app", 1.0, 64, 16))
        await sandbox.start()
        await sandbox.exec(f"setsid sh -c 'while :; do sleep 1; done' {launch_id} >/dev/null 2>&1 &")
        commands.append(asyncio.create_task(sandbox.exec(f"sh -c 'while :; do sleep 1; done' {launch_id}")))
    sys.stdout.write("up\n")
    sys.stdout.flush()
    await asyncio.gather(*commands)


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
