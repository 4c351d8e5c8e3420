"""A RESULTS_DIR with transcripts, made by the real store and the real recorder, and the command on it."""

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import orjson

from driving import Site
from recording import Talk, answered, assistant, system, user
from rolloutgen.cli import main
from rolloutgen.config import load_config
from rolloutgen.models import Trial
from rolloutgen.paths import TRANSCRIPT, ResultsPaths
from rolloutgen.results.fingerprint import write_run
from rolloutgen.results.store import Store
from samples import error, instances, verdict

MODEL = {"TEMPERATURE": "1.0", "VLLM_MAX_MODEL_LEN": "4096", "GEN_TP": "1", "GPUS_PER_NODE": "1"}
OPENING = [system("s"), user("an example"), assistant("from the scaffold"), user("task")]

type Script = Callable[[Talk], object]


class Results:
    """One run's results; ``play`` adds a trial."""

    def __init__(self, folder: Path, ids: list[str], **keys: str) -> None:
        self.site = Site(folder, keys={"SCAFFOLD": "shell", "MODEL_PATH": str(folder / "step_7_hf"), **MODEL, **keys})
        self.site.tasks(dict.fromkeys(ids, ""))
        self.instances = {instance.instance_id: instance for instance in instances(ids)}
        self.paths = ResultsPaths(self.site.results)
        self.paths.root.mkdir()
        settings = load_config(self.site.config).settings
        fingerprint = {"TEMPERATURE": 1.0, "MAX_TURNS": 50, "SCAFFOLD": "shell", "MODEL_PATH/config.json": "abc"}
        self.store = Store(self.paths, write_run(self.paths.run_json, settings, fingerprint).run_id)

    def play(self, instance: str, number: int, passed: bool | None, script: Script | None, **more: Any) -> Path:
        """One attempt (None: without a verdict); returns where its folder lies then."""
        attempt = self.store.begin(Trial(self.instances[instance], number))
        if script is not None:
            flags = {name: more.pop(name) for name in ("token_ids", "logprobs") if name in more}
            talk = Talk(attempt.folder / TRANSCRIPT, scaffold="shell", model="policy", **flags)
            script(talk)
            talk.recorder.close({"ending": "done"})
        self.store.finish(attempt, error() if passed is None else verdict(passed, **more))
        return attempt.folder if passed is None else self.paths.verdict(attempt.trial)

    def export(self, *arguments: str) -> CompletedProcess[str]:
        """The command, in this process."""
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        line = ["export", str(self.site.config), *arguments]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(line)
        out.seek(0)
        return CompletedProcess(line, status, out.read(), err.getvalue())

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        shown = self.export(*arguments)
        assert shown.returncode == 0, shown.stderr
        return [orjson.loads(line) for line in shown.stdout.splitlines()]


def conversation(talk: Talk, turns: int = 2, first: int = 10) -> None:
    """So many commands, each with three ids and two more of what comes back; nothing is changed on its way."""
    history, ids = [*OPENING], [1, 2]
    for turn in range(turns):
        sampled = [first + 3 * turn + each for each in range(3)]
        reply = answered(
            assistant(f"step {turn}"),
            prompt_ids=ids,
            response_ids=sampled,
            logprobs=[-0.25 * each for each in range(3)],
        )
        talk.ask(history, reply)
        history += [assistant(f"step {turn}"), user(f"seen {turn}")]
        ids = [*ids, *sampled, 5, 6]
