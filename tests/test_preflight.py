"""Preflight: every problem at once, with its value, its place and how to mend it; a skip is never an ok."""

import asyncio
import json
import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from driving import FAILS, PASSES, Site, make_index, make_task
from rolloutgen.config import load_config
from rolloutgen.errors import Finding, Level
from rolloutgen.exits import Exit
from rolloutgen.models import Instance, Trial
from rolloutgen.paths import ResultsPaths
from rolloutgen.preflight import Report, gateway, host, model, preflight
from rolloutgen.preflight import config as config_checks
from rolloutgen.preflight.check import Check, Context, run_checks
from rolloutgen.preflight.model import max_length
from rolloutgen.results.fingerprint import fingerprint, task_digest, write_run
from rolloutgen.results.store import Store
from samples import play, verdict


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.clean()


@pytest.fixture
def with_model(site: Site) -> Site:
    """A site whose scaffold asks a model, and a small model folder that is whole."""
    folder = site.folder / "model"
    folder.mkdir()
    write_json(folder / "config.json", {"num_attention_heads": 9, "max_position_embeddings": 4096})
    write_json(
        folder / "model.safetensors.index.json", {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    )
    for name in ("one.safetensors", "two.safetensors", "tokenizer.json"):
        (folder / name).write_text("x")
    site.keys |= {"SCAFFOLD": "shell", "MODEL_PATH": str(folder), "TEMPERATURE": "1.0", "VLLM_MAX_MODEL_LEN": "4096"}
    site.keys |= {"VLLM_BIN": str(site.folder / "no-vllm")}
    return site


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content))


def check(site: Site) -> Report:
    return asyncio.run(preflight(load_config(site.config)))


def quick(site: Site, *checks: Check) -> list[Finding]:
    """These checks alone, those that need no plan."""
    with ThreadPoolExecutor(2) as executor:
        return asyncio.run(run_checks(checks, Context(load_config(site.config), "test"), executor))


def fatal(findings: Iterator[Finding] | list[Finding] | tuple[Finding, ...], subject: str) -> str:
    """The messages of the fatal findings about ``subject``, each with a place and a way to mend it."""
    found = [finding for finding in findings if finding.level is Level.FATAL and finding.subject == subject]
    assert found, f"no fatal finding about {subject} in {findings}"
    assert all(finding.mend for finding in found)
    return "; ".join(finding.message for finding in found)


def named(checks: tuple[Check, ...], name: str) -> Check:
    return next(check for check in checks if check.name == name)


def test_a_healthy_config_has_nothing_to_mend_and_a_real_sandbox_was_started(site: Site) -> None:
    site.tasks({"a": PASSES, "b": FAILS})
    report = check(site)
    assert report.fatal == ()
    assert report.exit_code is Exit.OK
    assert any("a sandbox was started, ran `true` and was removed" in finding.message for finding in report.findings)
    assert not site.results.exists()


def test_every_problem_is_told_at_once(with_model: Site) -> None:
    site = with_model
    site.tasks({"good": PASSES})
    make_task(site.folder / "tasks" / "untested", PASSES)
    shutil.rmtree(site.folder / "tasks" / "untested" / "tests")
    make_task(site.folder / "tasks" / "several", PASSES)
    (site.folder / "tasks" / "several" / "environment" / "docker-compose.yaml").write_text("services: {}\n")
    make_task(site.folder / "tasks" / "stepwise", PASSES)
    with (site.folder / "tasks" / "stepwise" / "task.toml").open("a") as toml:
        toml.write('\n[[steps]]\nname = "first"\n')
    names = ["good", "untested", "several", "stepwise", "gone"]
    make_index(site.folder / "index.parquet", {name: f"tasks/{name}" for name in names})
    (site.folder / "model" / "two.safetensors").unlink()
    site.keys |= {"GEN_TP": "2", "MAX_RESPONSE_LEN": "4096", "TRAIN_TEMPERATURE": "0.7", "N_TRIALS": "many"}
    report = check(site)
    assert report.exit_code is Exit.USAGE
    assert report.plan is None
    assert "whole number" in fatal(report.findings, "N_TRIALS")
    assert "does not divide the model's 9 attention heads" in fatal(report.findings, "GEN_TP")
    assert "no prompt would fit" in fatal(report.findings, "MAX_RESPONSE_LEN")  # C8
    assert "TRAIN_TEMPERATURE is 0.7" in fatal(report.findings, "TEMPERATURE")  # A13
    assert "1 of 2 weight files" in fatal(report.findings, "MODEL_PATH")
    assert "'two.safetensors'" in fatal(report.findings, "MODEL_PATH")
    assert "no-vllm is missing" in fatal(report.findings, "VLLM_BIN")
    skipped = [finding for finding in report.findings if "not checked before N_TRIALS is right" in finding.message]
    assert {finding.subject for finding in skipped} >= {"tasks", "INDEX_FILE", "RESULTS_DIR"}
    assert all(finding.level is Level.WARN for finding in skipped)
    site.keys["N_TRIALS"] = "2"
    broken = fatal(check(site).findings, "INDEX_FILE")
    for part in ("4 of 5 owed tasks", "untested has no tests", "gone is not a folder", "several services", "[[steps]]"):
        assert part in broken


def test_every_fatal_finding_of_a_key_says_where_it_was_set(with_model: Site) -> None:
    with_model.tasks({"a": PASSES})
    with_model.keys["GEN_TP"] = "2"
    (finding,) = [finding for finding in check(with_model).fatal if finding.subject == "GEN_TP"]
    line = with_model.config.read_text().splitlines().index("GEN_TP=2") + 1
    assert finding.where.endswith(f"run.env:{line}")


def test_c18_two_rows_with_one_id_are_named(site: Site) -> None:
    site.tasks({"a": PASSES, "b": PASSES})
    rows = make_index(site.folder / "index.parquet", {"a": "tasks/a"})
    import pyarrow as pa
    import pyarrow.parquet as pq

    one = pq.read_table(rows)
    two = pq.read_table(make_index(site.folder / "two.parquet", {"a": "tasks/b"}))
    pq.write_table(pa.concat_tables([one, two]), rows)
    message = fatal(check(site).findings, "INDEX_FILE")
    assert "'a' stands in 2 rows" in message
    assert "tasks/b" in message


def test_a10_unknown_ids_are_fatal_with_the_first_ten(site: Site) -> None:
    site.tasks({"a": PASSES})
    site.keys["INSTANCES_FILE"] = str(site.folder / "ids")
    (site.folder / "ids").write_text("a\n" + "".join(f"no{i:02}\n" for i in range(12)))
    message = fatal(check(site).findings, "INSTANCES_FILE")
    assert "12 ids" in message
    assert "'no09'" in message
    assert "'no10'" not in message


def test_an_unmapped_image_is_named(site: Site) -> None:
    site.tasks({"a": PASSES}, extra='docker_image = "registry.example/a:1"\n')
    site.keys["LOCAL_IMAGES"] = "'other=host'"
    assert "'registry.example/a:1': not mapped" in fatal(check(site).findings, "LOCAL_IMAGES")


def test_a_task_that_needs_the_network_is_named(site: Site) -> None:
    site.tasks({"a": PASSES}, extra='network_mode = "public"\n')
    found = [finding for finding in check(site).findings if finding.subject == "SANDBOX_EGRESS"]
    assert [finding.level for finding in found] == [Level.WARN]
    assert "1 owed tasks state that they need the network: 'a'" in found[0].message


def test_tasks_that_limit_no_memory_are_counted(site: Site) -> None:
    """Files of a local sandbox lie in memory: one agent could take the machine, and the server with it."""
    site.tasks({"a": PASSES})
    (site.folder / "tasks" / "a" / "task.toml").write_text('version = "1.0"\n')
    found = [finding for finding in check(site).findings if finding.subject == "SANDBOX_MEMORY_MB"]
    assert [finding.level for finding in found] == [Level.WARN]
    assert "1 owed tasks limit no memory" in found[0].message
    site.keys["SANDBOX_MEMORY_MB"] = "512"
    assert [finding for finding in check(site).findings if finding.subject == "SANDBOX_MEMORY_MB"] == []


def test_another_measurement_is_refused_by_the_names_of_its_keys(site: Site) -> None:
    site.tasks({"a": PASSES})
    assert site.launch() == 0
    site.keys |= {"PASS_THRESHOLD": "0.5", "N_CONCURRENT": "2", "N_TRIALS": "3"}
    report = check(site)
    assert [finding.subject for finding in report.fatal] == ["PASS_THRESHOLD"]
    assert "was 1.0, is 0.5" in fatal(report.findings, "PASS_THRESHOLD")
    del site.keys["PASS_THRESHOLD"]
    assert check(site).exit_code is Exit.OK


def test_another_temperature_is_refused_also_where_the_model_is_gone(with_model: Site) -> None:
    """A13: a finished run is concluded again without its model, and must not be told to be of another temperature."""
    site = with_model
    site.tasks({"a": PASSES})
    settings, task = load_config(site.config).settings, site.folder / "tasks" / "a"
    site.results.mkdir()
    for number in range(2):
        outcome = replace(verdict(True), task_digest=task_digest(task))
        play(Store(ResultsPaths(site.results)), Trial(Instance("a", task), number), outcome)
    write_run(site.results / "run.json", settings, fingerprint(settings, "0.1"))
    shutil.rmtree(site.folder / "model")
    assert check(site).exit_code is Exit.NOTHING_OWED
    site.keys["TEMPERATURE"] = "0.2"
    assert "was 1.0, is 0.2" in fatal(check(site).findings, "TEMPERATURE")


def test_a_changed_task_is_refused_and_a_finished_one_may_be_gone(site: Site) -> None:
    site.tasks({"a": PASSES, "b": PASSES})
    assert site.launch() == 0
    (site.folder / "tasks" / "a" / "tests" / "test.sh").write_text(FAILS)
    message = fatal(check(site).findings, "RESULTS_DIR")
    assert "1 tasks have changed" in message
    assert "'a'" in message
    shutil.rmtree(site.folder / "tasks" / "a")
    assert check(site).exit_code is Exit.NOTHING_OWED


def test_verdicts_without_run_json_are_not_taken_over(site: Site) -> None:
    site.tasks({"a": PASSES})
    assert site.launch() == 0
    (site.results / "run.json").unlink()
    assert "no run.json" in fatal(check(site).findings, "RESULTS_DIR")


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("index.parquet", "is INDEX_FILE too"),
        ("ids", "is INSTANCES_FILE too"),
        ("results", "is RESULTS_DIR or lies above it"),
        ("results/run.json", "lies where the results of instances stand"),
        ("results/a/b.parquet", "lies where the results of instances stand"),
        ("folder", "is a folder"),
        ("ids/x.parquet", "is not a folder"),
    ],
)
def test_output_index_must_not_destroy_anything(site: Site, output: str, problem: str) -> None:
    (site.folder / "folder").mkdir()
    (site.folder / "ids").write_text("a\n")
    site.keys |= {"OUTPUT_INDEX": str(site.folder / output), "INSTANCES_FILE": str(site.folder / "ids")}
    assert problem in fatal(quick(site, named(config_checks.CHECKS, "OUTPUT_INDEX")), "OUTPUT_INDEX")


@pytest.mark.parametrize("results", ["src/results", ".", "..", "/"])
def test_results_dir_is_no_folder_of_the_program(site: Site, results: str) -> None:
    site.keys["RESULTS_DIR"] = results
    assert "a folder of this program" in fatal(quick(site, named(config_checks.CHECKS, "RESULTS_DIR")), "RESULTS_DIR")


def test_c22_a_port_that_somebody_has_is_refused(with_model: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        with_model.keys["VLLM_PORT"] = str(other.getsockname()[1])
        message = fatal(quick(with_model, named(host.CHECKS, "VLLM_PORT")), "VLLM_PORT")
    assert "is in use" in message


def at_gateway(site: Site, **keys: str) -> list[Finding]:
    site.keys |= keys
    return quick(site, *gateway.CHECKS)


def test_c22_the_gateways_port_is_free_and_its_own(with_model: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert "is in use" in fatal(at_gateway(with_model, GATEWAY_PORT=port), "GATEWAY_PORT")
    assert [finding.level for finding in at_gateway(with_model)] == [Level.OK]
    assert "is VLLM_PORT too" in fatal(at_gateway(with_model, VLLM_PORT=port), "GATEWAY_PORT")


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        ("192.0.2.1", "is no address of this machine"),
        ("no-such-host.invalid", "is no address of this machine"),
        ("0.0.0.0", "stands for every address"),
        ("::", "stands for every address"),
    ],
)
def test_the_gateway_listens_at_one_address_of_this_machine(with_model: Site, host: str, problem: str) -> None:
    """Sandboxes are given the same address: TEST-NET is nobody's."""
    assert problem in fatal(at_gateway(with_model, GATEWAY_HOST=host), "GATEWAY_HOST")


def test_a13_a_policy_that_nothing_pins_is_told_with_what_it_means(with_model: Site) -> None:
    found = at_gateway(with_model, SAMPLING_PASSTHROUGH="1", TRAIN_TEMPERATURE="1.0")
    (told,) = [finding for finding in found if finding.subject == "SAMPLING_PASSTHROUGH"]
    assert told.level is Level.WARN
    assert "not the policy that will train" in told.message
    assert quick(with_model, named(config_checks.CHECKS, "TEMPERATURE")) == []  # nor is it said to be training's


def test_a_key_that_cannot_act_is_told(with_model: Site) -> None:
    found = at_gateway(with_model, TOOL_CANARY="warn")
    assert [(f.level, f.subject) for f in found if "does nothing" in f.message] == [(Level.WARN, "TOOL_CANARY")]
    found = at_gateway(with_model, TOOL_CALL_PARSER="hermes")
    assert not [f for f in found if "does nothing" in f.message]


def test_more_attempts_than_file_descriptors_are_refused(site: Site) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert host.fds_wanted(10) < 2000 < host.fds_wanted(10_000)
    site.keys["N_CONCURRENT"] = "10000"
    found = quick(site, named(host.CHECKS, "N_CONCURRENT"))
    wanted = host.fds_wanted(10_000)
    assert (found[0].level is Level.FATAL) == (hard != resource.RLIM_INFINITY and hard < wanted)
    assert soft <= hard


@pytest.mark.parametrize(
    ("gpus", "keys", "level", "subject"),
    [
        (0, {}, Level.OK, "GPUS_PER_NODE"),
        (0, {"GPUS_PER_NODE": "8"}, Level.FATAL, "GPUS_PER_NODE"),
        (8, {"GEN_TP": "2"}, Level.OK, "GEN_DP"),
        (8, {"GEN_TP": "3"}, Level.WARN, "GEN_DP"),
        (8, {"GEN_TP": "2", "GEN_DP": "2"}, Level.WARN, "GEN_DP"),
        (8, {"GEN_TP": "4", "GEN_DP": "4"}, Level.FATAL, "GEN_DP"),
        (2, {"GEN_TP": "4"}, Level.FATAL, "GEN_TP"),
        (8, {"GEN_TP": "8", "GPUS_PER_NODE": "4"}, Level.FATAL, "GEN_TP"),
        (4, {"GPUS_PER_NODE": "8"}, Level.FATAL, "GPUS_PER_NODE"),
        (4, {"GPUS_PER_NODE": "0"}, Level.OK, "GPUS_PER_NODE"),
    ],
)
def test_a14_one_server_fills_the_node(
    with_model: Site, gpus: int, keys: dict[str, str], level: Level, subject: str
) -> None:
    with_model.keys |= keys
    finding = host.gpu_finding(load_config(with_model.config).settings, gpus)
    assert (finding.level, finding.subject) == (level, subject)


@pytest.mark.parametrize(
    ("keys", "mend"),
    [({"GEN_TP": "2", "GEN_DP": "1"}, "raise GEN_DP"), ({"GEN_TP": "3"}, "take a GEN_TP that divides 8")],
)
def test_idle_gpus_are_told_with_what_would_use_them(with_model: Site, keys: dict[str, str], mend: str) -> None:
    """A14"""
    with_model.keys |= keys
    assert host.gpu_finding(load_config(with_model.config).settings, 8).mend == mend


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ("config.json", "config.json cannot be read"),
        ("tokenizer.json", "no tokenizer"),
        ("two.safetensors", "1 of 2 weight files"),
    ],
)
def test_a_model_that_is_not_whole_is_refused(with_model: Site, spoil: str, message: str) -> None:
    whole = quick(with_model, named(model.CHECKS, "MODEL_PATH"))
    assert [finding.level for finding in whole] == [Level.OK]
    (with_model.folder / "model" / spoil).unlink()
    assert message in fatal(quick(with_model, named(model.CHECKS, "MODEL_PATH")), "MODEL_PATH")


def test_a_model_without_weights_or_with_empty_ones_is_refused(with_model: Site) -> None:
    folder = with_model.folder / "model"
    (folder / "model.safetensors.index.json").unlink()
    for name in ("one.safetensors", "two.safetensors"):
        (folder / name).write_text("")
    assert "no weights" in fatal(quick(with_model, named(model.CHECKS, "MODEL_PATH")), "MODEL_PATH")


def test_a_missing_model_is_made_where_the_config_says_how(with_model: Site) -> None:
    with_model.keys["MODEL_PATH"] = str(with_model.folder / "later")
    assert "is not a folder" in fatal(quick(with_model, named(model.CHECKS, "MODEL_PATH")), "MODEL_PATH")
    with_model.keys["MODEL_SETUP"] = str(with_model.config)
    (found,) = quick(with_model, named(model.CHECKS, "MODEL_PATH"))
    assert found.level is Level.OK
    assert "will be made" in found.message


def test_a_context_longer_than_the_models_is_refused(with_model: Site) -> None:
    with_model.keys["VLLM_MAX_MODEL_LEN"] = "4097"
    length = named(model.CHECKS, "VLLM_MAX_MODEL_LEN")
    assert "maximum of 4096" in fatal(quick(with_model, length), "VLLM_MAX_MODEL_LEN")
    with_model.keys["VLLM_ENV"] = "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"
    assert [finding.level for finding in quick(with_model, length)] == [Level.WARN]


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({}, None),
        ({"max_position_embeddings": 4096}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": None}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}}, 8192),
        (
            {
                "max_position_embeddings": 40960,
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
            },
            131072,
        ),
        ({"max_position_embeddings": 8192, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 8192),
    ],
)
def test_the_longest_context_that_a_model_promises(config: dict[str, object], wanted: int | None) -> None:
    assert max_length(config) == wanted
