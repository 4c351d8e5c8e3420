"""What the installed vLLM says of itself and of our command line. It is never imported here, only run."""

import json
import os
import subprocess
from pathlib import Path
from typing import Final

from rolloutgen.errors import Finding, FindingsError, Level
from rolloutgen.serving.command import command_line, environment, vllm_bin
from rolloutgen.settings import Settings

_SCRIPT: Final = Path(__file__).with_name("vllm_arguments.py")
_VERSION_SEC: Final = 60.0
_PARSE_SEC: Final = 300.0
_ANY_PORT: Final = 8000
_FOR_US: Final = "the server is for this run alone, on 127.0.0.1"
_SAMPLING: Final = "the sampling is that of TEMPERATURE, TOP_P, TOP_K, MIN_P and MAX_RESPONSE_LEN"
_NOT_EXTRA: Final = {
    "--port": "name it in VLLM_PORT",
    "--served-model-name": "name it in SERVED_MODEL_NAME",
    "--host": _FOR_US,
    "--uds": _FOR_US,
    "--root-path": _FOR_US,
    "--ssl-keyfile": _FOR_US,
    "--ssl-certfile": _FOR_US,
    "--grpc": _FOR_US,
    "--headless": _FOR_US,
    "--api-key": "each launch makes a key of its own",
    "--config": "name here the arguments that the file holds: those of a file are not seen",
    "--max-model-len": "name it in VLLM_MAX_MODEL_LEN",
    "--dtype": "name it in VLLM_DTYPE",
    "--tensor-parallel-size": "name it in GEN_TP",
    "-tp": "name it in GEN_TP",
    "--data-parallel-size": "name it in GEN_DP",
    "-dp": "name it in GEN_DP",
    "--gpu-memory-utilization": "name it in GPU_MEMORY_UTILIZATION",
    "--tool-call-parser": "name it in TOOL_CALL_PARSER",
    "--enable-auto-tool-choice": "TOOL_CALL_PARSER brings it",
    "--seed": "each start has a fresh one; with one of yours, a server that is restarted says the same things again",
    "--generation-config": _SAMPLING,
    "--override-generation-config": _SAMPLING,
    "--logprobs-mode": "RECORD_LOGPROBS=1 records those of the distribution that was sampled",
    "--disable-log-stats": "the server's counters tell whether it is stuck",
}
"""Arguments with a key of their own, by which we would look for the server in vain, or that break what a run promises;
and how to do it rightly."""


def vllm_version(settings: Settings) -> str:
    """The version of the installed vLLM, part of the run's fingerprint. Raises FindingsError where there is none."""
    try:
        return _ask(settings, [], 0, _VERSION_SEC)["version"]
    except ValueError as error:
        raise FindingsError([_broken(settings, error)]) from None


def check_command_line(settings: Settings, gpus_seen: int) -> list[Finding]:
    """Whether the installed vLLM takes our command line, by its own parser: in seconds, without loading the model."""
    if taken := [finding for word in settings.vllm_extra_args if (finding := _taken(word))]:
        return taken
    command = command_line(settings, settings.vllm_port or _ANY_PORT, gpus_seen, seed=0)
    try:
        answer = _ask(settings, [json.dumps(command[2:])], gpus_seen, _PARSE_SEC)
    except ValueError as error:
        return [_broken(settings, error)]
    version = answer["version"]
    if answer["error"]:
        mend = "change VLLM_EXTRA_ARGS, or the key that brings this argument, or take another vLLM (VLLM_BIN)"
        return [Finding(Level.FATAL, "vLLM", f"{version} refuses its command line: {answer['error']}", mend=mend)]
    return [Finding(Level.OK, "vLLM", f"{version} takes its command line")]


def vllm_python(command: Path) -> Path:
    """The Python that runs ``vllm``: the one its first line names, else the one beside it. Raises ValueError."""
    try:
        with command.open("rb") as file:
            first = file.readline(1024).decode(errors="replace").strip()
    except OSError as error:
        raise ValueError(f"{command} cannot be read: {error.strerror}") from None
    named = Path(first.removeprefix("#!").strip())
    candidates = [named] if first.startswith("#!/") and named.name.startswith("python") else []
    for python in [*candidates, command.parent / "python", command.parent / "python3"]:
        if os.access(python, os.X_OK):
            return python
    raise ValueError(f"no Python is found for {command}: neither in its first line nor beside it")


def _ask(settings: Settings, arguments: list[str], gpus_seen: int, timeout_sec: float) -> dict[str, str]:
    command = vllm_bin(settings)
    if not os.access(command, os.X_OK):
        raise ValueError(f"{command} is {'not executable' if command.exists() else 'missing'}")
    python = vllm_python(command)
    try:
        done = subprocess.run(
            [python, _SCRIPT, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_sec,
            stdin=subprocess.DEVNULL,
            env=environment(settings, gpus_seen),
        )
        answer = json.loads(done.stdout.strip().rpartition("\n")[2])
        version, error = str(answer["version"]), str(answer["error"])
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise ValueError(f"{command} cannot be asked: {problem}") from None
    except (json.JSONDecodeError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ValueError(f"{command} cannot be asked: status {done.returncode}, {last}") from None
    if not version:
        raise ValueError(f"{command} is no vLLM: its Python, {python}, has none installed")
    return {"version": version, "error": error}


def _taken(word: str) -> Finding | None:
    """vLLM's parser takes ``_`` for ``-``, any beginning of a long name that tells which is meant, and NAME.FIELD."""
    shown = word.partition("=")[0].partition(".")[0]
    name = shown.replace("_", "-")
    long = name.startswith("--") and name != "--"
    meant = next((known for known in _NOT_EXTRA if known == name or (long and known.startswith(name))), "")
    if not meant:
        return None
    return Finding(
        Level.FATAL, "VLLM_EXTRA_ARGS", f"{shown} is set by this program", mend=f"take it out: {_NOT_EXTRA[meant]}"
    )


def _broken(settings: Settings, error: ValueError) -> Finding:
    ours = settings.vllm_bin is None
    mend = "remove .venv-vllm; infer.sh makes it anew" if ours else "VLLM_BIN must name a vllm command that works"
    return Finding(Level.FATAL, "VLLM_BIN", str(error), mend=mend)
