"""Checks of the gateway: where it will listen, what it lets through, and keys that nothing asks for."""

import ipaddress
import socket
from collections.abc import Iterator
from typing import Final

from rolloutgen.errors import Finding
from rolloutgen.preflight.check import Check, Context, fatal, ok, warn
from rolloutgen.scaffold import TOOL_USERS
from rolloutgen.serving.command import HOST
from rolloutgen.serving.ports import owner
from rolloutgen.settings import Settings


def _address(context: Context) -> Iterator[Finding]:
    """The gateway listens at one address of this machine, and sandboxes are given the same."""
    settings = context.settings
    host = settings.gateway_host or HOST
    problem = _host_problem(host)
    if problem:
        yield fatal("GATEWAY_HOST", f"{host} {problem}", "name an address of this machine that sandboxes can reach")
    elif settings.gateway_port is not None:
        yield _port(settings, host, settings.gateway_port)
    else:
        yield ok("GATEWAY_HOST", f"the gateway will listen at {host}, on a free port")


def _host_problem(host: str) -> str:
    """Why the gateway cannot listen there (empty: it can)."""
    try:
        if ipaddress.ip_address(host).is_unspecified:
            return "stands for every address, and sandboxes need one"
    except ValueError:
        pass  # a name
    refused = _refused(host, 0)
    return f"is no address of this machine ({refused})" if refused else ""


def _refused(host: str, port: int) -> str:
    """What the system answers to a server that would listen there (empty: it may)."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _port(settings: Settings, host: str, port: int) -> Finding:
    mend = "take it out (a free port is chosen), or name another"
    if port == settings.vllm_port:
        return fatal("GATEWAY_PORT", f"{port} is VLLM_PORT too", mend)
    if not _refused(host, port):
        return ok("GATEWAY_PORT", f"{host}:{port} is free")
    who = owner(port)
    return fatal("GATEWAY_PORT", f"{host}:{port} is in use" + (f" by {who}" if who else ""), mend)


def _passthrough(context: Context) -> Iterator[Finding]:
    """A13: without pins nobody knows which policy was measured."""
    if context.settings.sampling_passthrough:
        yield warn(
            "SAMPLING_PASSTHROUGH",
            "is 1: calls carry the scaffold's own sampling parameters or vLLM's defaults, not TEMPERATURE, TOP_P, "
            "TOP_K and MIN_P: what is measured is not the policy that will train",
            "take it out, unless that is what you want to measure",
        )


def _tool_canary(context: Context) -> Iterator[Finding]:
    """A key that somebody set, and that cannot act, is told: without tools and parser nothing asks for a tool call."""
    settings = context.settings
    acts = settings.scaffold in TOOL_USERS or settings.tool_call_parser is not None
    if "TOOL_CANARY" in context.draft.values and not acts:
        why = f"the scaffold {settings.scaffold} sends no tools, and TOOL_CALL_PARSER is not set"
        yield warn("TOOL_CANARY", f"does nothing: {why}", "take it out")


CHECKS: Final = (
    Check("GATEWAY_HOST", _address, ("GATEWAY_HOST", "GATEWAY_PORT", "VLLM_PORT"), model=True, work=True),
    Check("SAMPLING_PASSTHROUGH", _passthrough, ("SAMPLING_PASSTHROUGH",), model=True),
    Check("TOOL_CANARY", _tool_canary, ("TOOL_CANARY", "TOOL_CALL_PARSER"), model=True),
)
