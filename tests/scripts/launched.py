"""A launch with a model server and a gateway, looked at from outside."""

from pathlib import Path

from launching import Runner
from rolloutgen.gateway.record import GatewayRecord
from rolloutgen.processes import Process, marked
from rolloutgen.serving.record import ServerRecord

WAIT_SEC = 40


def server_of(runner: Runner) -> ServerRecord:
    (record,) = runner.records()
    server = ServerRecord.read(record.folder)
    assert server is not None
    return server


def gateway_of(runner: Runner) -> GatewayRecord:
    (record,) = runner.records()
    gateway = GatewayRecord.read(record.folder)
    assert gateway is not None
    return gateway


def mark_of(runner: Runner) -> str:
    (record,) = runner.records()
    return record.launch_id


def nothing_is_left(runner: Runner, mark: str, server: ServerRecord) -> bool:
    members = [server.serve, *server.members, *([server.vllm] if server.vllm else [])]
    return not marked(mark) and not any(member.alive() for member in members) and not runner.records()


def environ_of(process: Process) -> dict[bytes, bytes]:
    entries = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    return dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)
