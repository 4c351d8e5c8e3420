"""Plays the ``vllm`` command: ``vllm_stand_in.py serve MODEL --port N --served-model-name NAME ...``.

Like the real one it asks for VLLM_API_KEY (but not on /health), answers /health, /v1/models and chat completions, and
has children in its session: a tracker, and an engine that outlives its parent and shows no environment. It leaves
shared memory and a temporary file behind.
STAND_IN in the environment chooses how it goes wrong:

  hang        /health answers 503 for ever          die        an error in the log, exit 1
  wrong-name  /v1/models offers another model       open       takes every key
  mute        completions without text              stubborn   ignores TERM, and so does its engine
  alternate   not wrong: every second completion is a command that makes /app/done
"""

import itertools
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MODE = os.environ.get("STAND_IN", "")
KEY = os.environ.get("VLLM_API_KEY", "")
COMMANDS = itertools.cycle(("true", "touch /app/done"))
SLEEPER = "import signal, sys, time; sys.argv[1] and signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
DEATH = """\
(EngineCore pid=12) INFO 01-01 00:00:00 [core.py:1] Loading
(EngineCore pid=12) ERROR 01-01 00:00:01 [core.py:2] Traceback (most recent call last):
(EngineCore pid=12) ERROR 01-01 00:00:01 [core.py:2]   File "worker.py", line 1, in load
(EngineCore pid=12) ERROR 01-01 00:00:01 [core.py:2] ValueError: Free memory on device cuda:0 is less than desired
Traceback (most recent call last):
  File "api.py", line 1, in main
RuntimeError: Engine core initialization failed. See root cause above.
"""


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


class Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name is the base class's
        print(format % args)

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(503 if MODE == "hang" else 200, {})
        else:
            name = "another" if MODE == "wrong-name" else option("--served-model-name")
            self._answer_to_key({"data": [{"id": name}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer_to_key({"choices": [{"message": {"content": self._text()}}]})

    def _text(self) -> str:
        if MODE == "alternate":
            return next(COMMANDS)
        return "" if MODE == "mute" else "one, two, three"

    def _answer_to_key(self, body: object) -> None:
        known = MODE == "open" or self.headers["Authorization"] == f"Bearer {KEY}"
        self._answer(200 if known else 401, body if known else {"error": "Unauthorized"})

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    if MODE == "die":
        print(DEATH, flush=True)
        sys.exit(1)
    stubborn = "1" if MODE == "stubborn" else ""
    children = [
        subprocess.Popen([sys.executable, "-c", SLEEPER, ""]),
        subprocess.Popen([sys.executable, "-c", SLEEPER, stubborn], env={}),
    ]

    def end(*_: object) -> None:
        for child in children:
            child.terminate()
        sys.exit(0)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if stubborn else end)
    with Path(f"/dev/shm/stand-in-{os.getpid()}").open("w+b") as file:
        file.write(bytes(4096))
        file.flush()
        memory = mmap.mmap(file.fileno(), 4096)
    Path(os.environ["TMPDIR"], "socket").touch()
    assert memory
    time.sleep(0.2)
    ThreadingHTTPServer(("127.0.0.1", int(option("--port"))), Handler).serve_forever()


if __name__ == "__main__":
    main()
