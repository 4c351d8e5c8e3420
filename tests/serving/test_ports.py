"""Ports: free ones, and whose the others are."""

import os
import socket
from pathlib import Path

from rolloutgen.serving.ports import free_port, is_free, owner


def test_a_free_port_is_free_and_no_port_of_outgoing_connections() -> None:
    port = free_port()
    assert is_free(port)
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not low <= port <= high


def test_a_port_in_use_is_known_with_its_owner() -> None:
    """C22"""
    for host in ("127.0.0.1", "0.0.0.0"):
        with socket.create_server((host, 0)) as server:
            port = server.getsockname()[1]
            assert not is_free(port)
            assert owner(port).startswith(f"pid {os.getpid()} (")
        assert is_free(port)
    assert owner(port) == ""
