"""Messages between the driver, the zygote and the inits: JSON objects on SOCK_SEQPACKET, with file descriptors.

A message is a packet: either the JSON itself, or, where it is too long for one, a memfd that holds it.
"""

import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

Message = dict[str, Any]

_INLINE_MAX: Final = 32 * 1024
_MAX_FDS: Final = 8


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(end: socket.socket, message: Mapping[str, object], fds: Sequence[int] = ()) -> None:
    """Send at once. Raises BlockingIOError where the other side does not keep up and ``end`` is non-blocking."""
    data = json.dumps(message).encode()
    if len(data) <= _INLINE_MAX:
        socket.send_fds(end, [b"i" + data], fds)
        return
    memory = os.memfd_create("message", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(memory), "wb") as file:
            file.write(data)
        socket.send_fds(end, [b"m"], [memory, *fds])
    finally:
        os.close(memory)


def receive(end: socket.socket) -> tuple[Message, list[int]] | None:
    """The next message and its descriptors (close-on-exec), or None at the end."""
    data, fds, _, _ = socket.recv_fds(end, _INLINE_MAX + 1024, _MAX_FDS, socket.MSG_CMSG_CLOEXEC)
    if not data:
        return None
    if data[:1] == b"m":
        with os.fdopen(fds.pop(0), "rb") as file:
            file.seek(0)
            return json.load(file), fds
    return json.loads(data[1:]), fds
