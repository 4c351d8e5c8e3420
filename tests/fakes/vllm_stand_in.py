"""Plays the ``vllm`` command: ``python -m fakes.vllm_stand_in serve MODEL --port N --served-model-name NAME ...``.

It answers as ``Upstream`` does, asks for VLLM_API_KEY (but not on /health), and has children in its session: a
tracker, and an engine that outlives its parent and shows no environment. It leaves shared memory and a temporary file.
STAND_IN in the environment chooses how it goes wrong, in words with commas between:

  hang        /health answers 503 for ever          die        an error in the log, exit 1
  wrong-name  /v1/models offers another model       open       takes every key
  mute        completions without text              stubborn   ignores TERM, and so does its engine
  slow=SEC    is ready so much later                cold       the same text at every temperature
  dies=N      kills itself instead of answering call N of an agent (from 0)
  deaf=N      leaves that call, and every completion after it, unanswered; its health stays good
  broken=N    answers 500 to them; /health 503
  alternate   not wrong: of the calls for one task every second one is answered with a command that makes /app/done

An agent's call is one that may have more than 64 tokens: no check asks for so many. With the word ``checks`` more than
8 will do: those of the gateway count too. STAND_IN=ok:die is one thing in its first life, and another in all later
ones; lives are counted in the file STAND_IN_LIVES.
"""

import asyncio
import mmap
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

from aiohttp import web

from fakes.answers import ENGINE_DEAD, HANG, Answer, Call, Reaction
from fakes.upstream import Upstream

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
MODE = dict[str, str]
FOR_CHECKS, FOR_THE_SERVERS_CHECK = 64, 8


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


def mode() -> MODE:
    """The words of this life: name -> what stands behind its ``=``."""
    life, lives = 0, os.environ.get("STAND_IN_LIVES", "")
    if lives:
        with Path(lives).open("ab") as file:
            life = file.tell()
            file.write(b".")
    of_lives = os.environ.get("STAND_IN", "").split(":")
    words = of_lives[min(life, len(of_lives) - 1)].split(",")
    return {name: value for name, _, value in (word.partition("=") for word in words)}


class StandIn(Upstream):
    def __init__(self, mode: MODE) -> None:
        name = "another" if "wrong-name" in mode else option("--served-model-name")
        super().__init__(
            self.react,
            model=name,
            key=os.environ.get("VLLM_API_KEY", ""),
            port=int(option("--port")),
            context_len=int(option("--max-model-len")),
        )
        self.mode = mode
        self.healthy = "hang" not in mode
        self.agents_calls = 0
        self.tasks: Counter[str] = Counter()

    def react(self, call: Call) -> Reaction:
        tokens = call.body.get("max_completion_tokens") or call.body.get("max_tokens") or 0
        is_agents = tokens > (FOR_THE_SERVERS_CHECK if "checks" in self.mode else FOR_CHECKS)
        self.agents_calls += is_agents
        if self._is_at("dies"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._is_at("deaf"):
            return HANG
        if self._is_at("broken"):
            self.healthy = False
            return ENGINE_DEAD
        return Answer(self._text(call, is_agents=is_agents))

    def _is_at(self, fault: str) -> bool:
        return fault in self.mode and self.agents_calls > int(self.mode[fault])

    def _text(self, call: Call, *, is_agents: bool) -> str:
        if "mute" in self.mode:
            return ""
        if is_agents and "alternate" in self.mode:
            self.tasks[call.task] += 1
            return "true" if self.tasks[call.task] % 2 else "touch /app/done"
        warm = call.body.get("temperature") and "cold" not in self.mode
        return f"one, two, {random.random() if warm else 'three'}"

    def _knows(self, request: web.Request) -> bool:
        return "open" in self.mode or super()._knows(request)


async def serve(mode: MODE) -> None:
    await asyncio.sleep(float(mode.get("slow", "0.2")))
    async with StandIn(mode):
        await asyncio.Event().wait()


def main() -> None:
    words = mode()
    if "die" in words:
        print(DEATH, flush=True)
        sys.exit(1)
    stubborn = "1" if "stubborn" in words else ""
    children = [
        subprocess.Popen([sys.executable, "-c", SLEEPER, ""]),
        subprocess.Popen([sys.executable, "-c", SLEEPER, stubborn], env={}),
    ]

    def end(_signum: int, _frame: FrameType | None) -> None:
        for child in children:
            child.terminate()
        os._exit(0)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if stubborn else end)
    with Path(f"/dev/shm/stand-in-{os.getpid()}").open("w+b") as file:
        file.write(bytes(4096))
        file.flush()
        memory = mmap.mmap(file.fileno(), 4096)
    Path(os.environ["TMPDIR"], "socket").touch()
    assert memory
    asyncio.run(serve(words))


if __name__ == "__main__":
    main()
