"""Harbor's own resume: a finished job of N trials over a folder of tasks, to its end again.

python tests/benchmarks/harbor_resume.py make|resume JOBS_DIR TASKS_DIR N
"""

import asyncio
import contextlib
import datetime as dt
import json
import os
import sys
from pathlib import Path

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

from harbor.job import Job
from harbor.models.job.config import JobConfig
from harbor.models.trial.config import AgentConfig, TaskConfig, TrialConfig
from harbor.models.trial.result import AgentInfo, TimingInfo, TrialResult
from harbor.models.verifier.result import VerifierResult


def config(jobs: Path, tasks: Path, n_trials: int) -> JobConfig:
    folders = sorted(tasks.iterdir())
    return JobConfig(
        job_name="resume",
        quiet=True,
        jobs_dir=jobs,
        n_attempts=n_trials // len(folders),
        agents=[AgentConfig(name="nop")],
        tasks=[TaskConfig(path=folder) for folder in folders],
    )


def result(trial: TrialConfig, folder: Path) -> TrialResult:
    """One as Harbor leaves it after a pass."""
    now = dt.datetime.now(dt.UTC)
    timing = TimingInfo(started_at=now, finished_at=now)
    return TrialResult(
        task_name=trial.trial_name,
        trial_name=trial.trial_name,
        trial_uri=folder.absolute().as_uri(),
        task_id=trial.task.get_task_id(),
        task_checksum="0" * 64,
        config=trial,
        agent_info=AgentInfo(name="nop", version="1"),
        verifier_result=VerifierResult(rewards={"reward": 1.0}),
        started_at=now,
        finished_at=now,
        environment_setup=timing,
        agent_setup=timing,
        agent_execution=timing,
        verifier=timing,
    )


async def main() -> None:
    step, jobs, tasks, n_trials = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    job = await Job.create(config(jobs, tasks, n_trials))
    if step == "make":
        (job.job_dir / "config.json").write_text(job.config.model_dump_json())
        for trial in job._trial_configs:
            folder = job.job_dir / trial.trial_name
            folder.mkdir()
            (folder / "config.json").write_text(trial.model_dump_json())
            (folder / "result.json").write_text(result(trial, folder).model_dump_json())
    else:
        with contextlib.redirect_stdout(sys.stderr):
            await job.run()
    print(json.dumps({"trials": len(job), "owed": len(job._remaining_trial_configs)}))


if __name__ == "__main__":
    asyncio.run(main())
