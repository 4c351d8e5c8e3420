"""What the user's documentation promises of set-up and several nodes, as it is typed (A7-A10, A18, A21, A22, A27)."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from driving import FAILS, PASSES, REPOSITORY, Site, environment, make_index, make_task, until
from launching import Runner, ask_stand_in, last_line_of_success, make_model
from rolloutgen.config import load_config
from rolloutgen.index import Index, select
from rolloutgen.paths import default_exp

A8_KEYS = {
    "PROJECT_NAME",
    "SCAFFOLD",
    "BACKEND",
    "MODEL_PATH",
    "INDEX_FILE",
    "INSTANCES_FILE",
    "RESULTS_DIR",
    "OUTPUT_INDEX",
    "N_TRIALS",
    "N_CONCURRENT",
    "TEMPERATURE",
    "GEN_TP",
    "GPUS_PER_NODE",
    "VLLM_MAX_MODEL_LEN",
}


README = (REPOSITORY / "README.md").read_text()


def bash(line: str, cwd: Path, timeout_sec: float = 120) -> "subprocess.CompletedProcess[str]":
    """A line as a person types it."""
    env = {name: text for name, text in environment().items() if name != "PYTHONPATH"}
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, cwd=cwd, env=env, check=False, timeout=timeout_sec
    )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What a fresh clone holds, once this working tree is committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=REPOSITORY, capture_output=True, check=True
    )
    for name in listed.stdout.decode().split("\0"):
        source, target = REPOSITORY / name, tmp_path / "clone" / name
        if name and source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    return tmp_path / "clone"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "site").mkdir()
    site = Site(tmp_path / "site", {"VENV_PATH": sys.prefix})
    yield site
    site.clean()


def fatal_keys(shown: "subprocess.CompletedProcess[str]") -> set[str]:
    return set(re.findall(r"^FATAL ([^:]+):", shown.stdout, re.MULTILINE))


def test_a7_a8_the_template_on_a_fresh_clone(clone: Path, site: Site) -> None:
    """A7: copied as documented; its dry run names what only the user knows. A8: filled in, nothing else is needed."""
    config = clone / "scripts" / "infer" / "configs" / "my_infer.env"
    assert bash("cp scripts/infer/_template.env scripts/infer/configs/my_infer.env", clone).returncode == 0
    template = config.read_text() + f"VENV_PATH={sys.prefix}\n"
    config.write_text(template)
    dry_run = "bash scripts/infer/infer.sh --dry-run scripts/infer/configs/my_infer.env"
    shown = bash(dry_run, clone)
    assert shown.returncode == 2
    assert {"INDEX_FILE", "MODEL_PATH"} <= fatal_keys(shown) <= {"INDEX_FILE", "MODEL_PATH", "GPUS_PER_NODE"}

    site.tasks({"one": PASSES, "two": FAILS})
    (site.folder / "ids").write_text("two\n")
    values = {
        "MODEL_PATH": make_model(site.folder / "model"),
        "INDEX_FILE": site.folder / "index.parquet",
        "INSTANCES_FILE": site.folder / "ids",
        "RESULTS_DIR": site.results,
        "OUTPUT_INDEX": site.selected,
        "GPUS_PER_NODE": 0,
        "VLLM_MAX_MODEL_LEN": 4096,
    }
    filled = template
    for key, value in values.items():
        filled, n_set = re.subn(rf"^(# )?{key}=\S+", f"{key}={value}", filled, flags=re.MULTILINE)
        assert n_set == 1, key
    config.write_text(filled)
    assert set(re.findall(r"^([A-Z_0-9]+)=", filled, re.MULTILINE)) == A8_KEYS | {"VENV_PATH"}
    (site.folder / "tasks" / "two" / "environment" / "Dockerfile").unlink()  # it names no image
    shown = bash(dry_run, clone)
    assert shown.returncode == 0, shown.stdout
    assert "trials: 4 planned, 0 done, 4 owed" in shown.stdout
    assert not site.results.exists()


@pytest.mark.parametrize("name", ["base-model", "global_step_120_hf"])
def test_a9_a_base_model_or_a_checkpoint(site: Site, name: str) -> None:
    """A9: one file of weights, or the shards that a checkpoint's index names."""
    site.tasks({"one": PASSES})
    ask_stand_in(site)
    model = make_model(site.folder / name)
    if name.endswith("_hf"):
        (model / "model.safetensors").rename(model / "model-00001-of-00001.safetensors")
        (model / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001-of-00001.safetensors"}}')
    site.keys["MODEL_PATH"] = str(model)
    checked = site.command("check")
    assert checked.returncode == 0, checked.stdout
    assert f"ok    MODEL_PATH: {model} holds config.json, weights and a tokenizer" in checked.stdout


@pytest.mark.parametrize(
    ("line", "ids"),
    [
        ("", ["one", "two", "three"]),
        ("# INSTANCES_FILE=ids  # later", ["one", "two", "three"]),
        ("INSTANCES_FILE=", ["one", "two", "three"]),
        ("INSTANCES_FILE=IDS # this node's", ["one", "three"]),
    ],
)
def test_a10_no_instances_file_is_the_whole_index(site: Site, line: str, ids: list[str]) -> None:
    """A10: unset, commented out, empty; else its ids, in the index's order."""
    site.tasks(dict.fromkeys(["one", "two", "three"], PASSES))
    listed = site.folder / "ids"
    listed.write_text("# this node\nthree\n\n  one  # the first\n")
    config = site.config
    config.write_text(config.read_text() + line.replace("IDS", str(listed)) + "\n")
    draft = load_config(config)
    assert draft.findings == ()
    shard = select(Index.read(draft.settings.index_file), draft.settings.instances_file)
    assert [instance.instance_id for instance in shard.instances] == ids


def test_a18_the_documented_line_on_a_fresh_clone(clone: Path, site: Site) -> None:
    """A18: character by character, with neither terminal nor stdin; A24 ends log and output."""
    site.tasks({"one": PASSES, "two": FAILS})
    line = f"nohup setsid bash scripts/infer/infer.sh {site.config} > logs/infer_$(date +%m%d).out 2>&1 &"
    assert line.replace(str(site.config), "scripts/infer/configs/my_infer.env") in README
    bash(f"exec 0<&-\n{line}\nwait", clone)
    (out,) = (clone / "logs").glob("infer_[0-9][0-9][0-9][0-9].out")
    log = clone / "logs" / f"{site.exp}.log"
    until(lambda: log.exists() and "\n=== inference" in log.read_text(), "the run ends")
    assert {text.read_text().splitlines()[-1] for text in (out, log)} == {last_line_of_success(site)}
    assert [row["pass_rate"] for row in site.summary()] == ["1", "0"]


MIXED = "if [[ -e /app/done ]]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt"
SHARDS = {"node0": ["007", "NA"], "node1": ["1e5", "null"], "node2": ["hard"]}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[str, Runner]]:
    """Three configs that differ in INSTANCES_FILE, RESULTS_DIR and OUTPUT_INDEX only; every second attempt passes."""
    project = Site(tmp_path).exp
    ids = [name for names in SHARDS.values() for name in names]
    tasks = {name: f"tasks/{name}" for name in ids}
    for name in ids:
        make_task(tmp_path / tasks[name], f"sleep 1; {FAILS if name == 'hard' else MIXED}")
    make_index(tmp_path / "index.parquet", tasks)
    common = Site(tmp_path)
    ask_stand_in(common)
    runners = {}
    for node, names in SHARDS.items():
        folder = tmp_path / node
        folder.mkdir()
        (folder / "ids").write_text("\n".join(names))
        site = Site(folder, common.keys | {"PROJECT_NAME": project, "VLLM_ENV": "STAND_IN=alternate"})
        site.keys |= {"N_CONCURRENT": "1", "INDEX_FILE": str(tmp_path / "index.parquet")}
        site.keys |= {"INSTANCES_FILE": str(folder / "ids"), "EXP_NAME": ""}
        site.exp = default_exp(project, site.results)
        runners[node] = Runner(site)
    yield runners
    for runner in runners.values():
        runner.end_all()


def test_a21_a22_a27_three_nodes_at_the_same_time(nodes: dict[str, Runner], tmp_path: Path) -> None:
    """A21: one PROJECT_NAME on one machine, and nothing collides. A22: each covers its shard. A27: shards join."""
    running = [runner.start() for runner in nodes.values()]
    until(lambda: all(runner.records() for runner in nodes.values()), "all three run at once")
    assert [process.wait(timeout=120) for process in running] == [0, 0, 0]
    for node, runner in nodes.items():
        assert runner.last_line == last_line_of_success(runner.site)
        assert [row["instance_id"] for row in runner.site.summary()] == SHARDS[node]
        assert {path.parts[-3] for path in runner.site.outcomes()} == set(SHARDS[node])
    logs = [runner.site.log.with_suffix(".vllm.log") for runner in nodes.values()]
    ports = [re.findall(r"--port (\d+)", log.read_text()) for log in logs]
    assert len({port for (port,) in ports}) == len(nodes)

    shards = [runner.site.selected for runner in nodes.values()]
    pd.concat([pd.read_parquet(p) for p in shards], ignore_index=True).to_parquet(tmp_path / "all.parquet")
    assert len(pd.read_parquet(shards[-1])) == 0
    both = select(Index.read(tmp_path / "all.parquet"), None)
    assert [(one.instance_id, one.task_path.is_dir()) for one in both.instances] == [
        (name, True) for name in ("007", "NA", "1e5", "null")
    ]
    csvs = [runner.site.results / "summary.csv" for runner in nodes.values()]
    rows = pd.concat(
        [pd.read_csv(csv, dtype={"instance_id": str}, keep_default_na=False, na_values=[""]) for csv in csvs]
    )
    index = pd.read_parquet(tmp_path / "index.parquet")
    index["instance_id"] = [pointer["instance_id"] for pointer in index["extra_info"]]
    joined = index.merge(rows, on="instance_id", how="left", validate="one_to_one")
    assert joined["pass_rate"].tolist() == [0.5, 0.5, 0.5, 0.5, 0.0]
