"""Where the gateway listens: a TCP port for scaffolds, a Unix socket for the driver."""

import asyncio
import errno
import resource
import socket
from pathlib import Path
from typing import Final

from aiohttp import web

from rolloutgen.gateway.record import GatewayFailedError
from rolloutgen.serving.command import HOST
from rolloutgen.serving.leavings import make_temporary_folder, temporary_folder
from rolloutgen.serving.ports import owner
from rolloutgen.settings import Settings

_BACKLOG: Final = 1024
_SHARE: Final = 0.5
"""Of the files that this process may have open: connections from outside get no more, and the rest is for transcripts,
the model server and the driver."""
_SOCKET: Final = "gateway.sock"
_MODE: Final = 0o600


def bind_outside(settings: Settings) -> socket.socket:
    """The socket at which scaffolds find the gateway. Raises GatewayFailedError."""
    host, port = settings.gateway_host or HOST, settings.gateway_port or 0
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            who = owner(port) or "a process that cannot be seen from here"
            mend = "unset GATEWAY_PORT, or name a free port"
            raise GatewayFailedError(f"GATEWAY_PORT={port} is in use at {host} by {who}; {mend}") from error
        told = f"the gateway cannot listen at GATEWAY_HOST={host}, port {port or 'any'}: {error}"
        raise GatewayFailedError(told) from error


def bind_inside(launch: Path) -> tuple[Path, socket.socket]:
    """The driver's socket and its path. Raises GatewayFailedError."""
    path = temporary_folder(launch.name) / _SOCKET
    try:
        make_temporary_folder(launch.name)
        return path, bind_file(path)
    except OSError as error:
        raise GatewayFailedError(f"the driver's socket {path} cannot be made: {error}") from error


def base_url(settings: Settings, door: socket.socket) -> str:
    host = settings.gateway_host or HOST
    return f"http://{f'[{host}]' if ':' in host else host}:{door.getsockname()[1]}/v1"


def bind_file(path: Path) -> socket.socket:
    """A socket at ``path`` for its owner alone; one that a dead gateway left there is replaced. Raises OSError."""
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX)
    try:
        bound.bind(str(path))
        path.chmod(_MODE)  # before anybody can connect
    except OSError:
        bound.close()
        raise
    return bound


async def listen(runner: web.AppRunner, door: socket.socket, *, trusted: bool) -> asyncio.Server:
    """Serve at ``door``; ``runner`` is set up, and its cleanup ends the connections."""
    server = runner.server
    assert server is not None
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] * (1.0 if trusted else _SHARE)

    def protocol() -> asyncio.Protocol:
        return server() if len(server.connections) < most else _Refused()

    return await asyncio.get_running_loop().create_server(protocol, sock=door, backlog=_BACKLOG)


class _Refused(asyncio.Protocol):
    """A connection that is one too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
