"""What is measured, with what: fingerprint, run.json and digests (A1; design: what a resume may not change)."""

import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutgen.config.reading import read_settings
from rolloutgen.errors import StoreError
from rolloutgen.knobs import Value
from rolloutgen.results.fingerprint import compare, fingerprint, model_digest, read_run, task_digest, write_run
from rolloutgen.scaffold import PINS_VERSION
from rolloutgen.settings import KNOBS, Settings

BASE = {
    "PROJECT_NAME": "p",
    "INDEX_FILE": "i.parquet",
    "RESULTS_DIR": "r",
    "OUTPUT_INDEX": "o.parquet",
    "N_TRIALS": "4",
    "N_CONCURRENT": "8",
    "BACKEND": "local",
    "SANDBOX_EGRESS": "open",
    "SANDBOX_START_TIMEOUT_SEC": "60",
    "EXEC_OUTPUT_MAX_MB": "16",
    "LOCAL_IMAGES": "'*=host'",
}
MODEL = {
    "SCAFFOLD": "shell",
    "MODEL_PATH": "model",
    "TEMPERATURE": "1.0",
    "VLLM_MAX_MODEL_LEN": "2048",
    "MAX_RESPONSE_LEN": "256",
    "VLLM_DTYPE": "auto",
    "GPU_MEMORY_UTILIZATION": "0.9",
    "SERVER_START_TIMEOUT_SEC": "600",
    "MAX_TURNS": "4",
    "MODEL_CALL_TIMEOUT_SEC": "60",
    "GATEWAY_HOLD_SEC": "60",
    "GATEWAY_MAX_INFLIGHT": "8",
    "HEARTBEAT_SEC": "60",
}


def read(base: Path, **changes: str) -> Settings:
    draft = read_settings({key: Value(text, "test") for key, text in {**BASE, **MODEL, **changes}.items()}, base)
    assert [finding for finding in draft.findings if finding.level == "FATAL"] == []
    return draft.settings


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors.index.json", "vocab.json"):
        (folder / name).write_text(f"{name} of the model")
    (folder / "model-1.safetensors").write_bytes(bytes(3 << 20))
    (folder / "README.md").write_text("about")
    return folder


def differing(a: Mapping[str, object], b: Mapping[str, object]) -> list[str]:
    return [line.partition(":")[0] for line in compare(a, b)]


def test_the_same_is_the_same_and_survives_json(tmp_path: Path, model: Path) -> None:
    found = fingerprint(read(tmp_path), "0.32.0")
    assert compare(found, fingerprint(read(tmp_path), "0.32.0")) == []
    assert compare(orjson.loads(orjson.dumps(found)), found) == []


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("TEMPERATURE", "0.7"),
        ("TOP_P", "0.9"),
        ("TOP_K", "20"),
        ("MIN_P", "0.1"),
        ("MAX_RESPONSE_LEN", "128"),
        ("VLLM_MAX_MODEL_LEN", "4096"),
        ("VLLM_DTYPE", "float32"),
        ("VLLM_EXTRA_ARGS", "--seed 1"),
        ("TOOL_CALL_PARSER", "hermes"),
        ("REASONING_EFFORT", "high"),
        ("CHAT_TEMPLATE_KWARGS", '{"enable_thinking": false}'),
        ("SAMPLING_PASSTHROUGH", "1"),
        ("MAX_TURNS", "5"),
        ("AGENT_TIMEOUT_SEC", "60"),
        ("VERIFIER_TIMEOUT_SEC", "60"),
        ("PASS_THRESHOLD", "0.5"),
        ("SANDBOX_EGRESS", "none"),
        ("SANDBOX_MEMORY_MB", "512"),
        ("LOCAL_IMAGES", "'*=/images/x'"),
    ],
)
def test_what_changes_the_measurement_is_named(tmp_path: Path, model: Path, key: str, text: str) -> None:
    old, new = fingerprint(read(tmp_path), "0.32.0"), fingerprint(read(tmp_path, **{key: text}), "0.32.0")
    (line,) = compare(old, new)
    assert line.startswith(f"{key}: was ")
    assert ", is " in line


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("GEN_TP", "2"),
        ("GEN_DP", "2"),
        ("N_TRIALS", "8"),
        ("N_CONCURRENT", "80"),
        ("INSTANCES_FILE", "shard.txt"),
        ("VLLM_PORT", "8000"),
        ("EXP_NAME", "other"),
        ("ATTEMPTS_PER_TRIAL", "5"),
        ("GATEWAY_PORT", "8001"),
        ("GATEWAY_MAX_INFLIGHT", "9"),
        ("RECORD_TOKEN_IDS", "0"),
    ],
)
def test_what_may_change_does_not_show(tmp_path: Path, model: Path, key: str, text: str) -> None:
    assert compare(fingerprint(read(tmp_path), "1"), fingerprint(read(tmp_path, **{key: text}), "1")) == []


def test_another_vllm_and_another_scaffold_show(tmp_path: Path, model: Path) -> None:
    found = fingerprint(read(tmp_path), "0.32.0")
    assert differing(found, fingerprint(read(tmp_path), "0.33.0")) == ["vllm version"]
    assert "SCAFFOLD" in differing(found, fingerprint(read(tmp_path, SCAFFOLD="nop"), None))


def test_another_gateway_shows(tmp_path: Path, model: Path) -> None:
    """What it sends with a call is part of the policy."""
    found = fingerprint(read(tmp_path), "1")
    assert found["gateway version"] == PINS_VERSION
    assert "gateway version" not in fingerprint(read(tmp_path, SCAFFOLD="oracle"), None)


@pytest.mark.parametrize("words", ["--chat-template {}", "--chat-template={}"])
def test_a_changed_file_that_vllm_is_to_read_is_named(tmp_path: Path, model: Path, words: str) -> None:
    """Its name stays, and what the model sees does not."""
    template = tmp_path / "a b.jinja"
    template.write_text("{{ messages }}")
    args = f"'{words.format(template)}'" if "=" in words else f"--chat-template '{template}'"
    found = fingerprint(read(tmp_path, VLLM_EXTRA_ARGS=args), "1")
    template.write_text("{{ other }}")
    assert differing(found, fingerprint(read(tmp_path, VLLM_EXTRA_ARGS=args), "1")) == [f"VLLM_EXTRA_ARGS {template}"]


def test_words_that_name_no_file_to_read_have_no_digest(tmp_path: Path, model: Path) -> None:
    """Folders, pipes, texts of any length; nor do secrets."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "key.pem").write_text("s3cret")
    args = f"{tmp_path} {tmp_path}/pipe --hf-overrides '{'x' * 5000}' --ssl-keyfile {tmp_path}/key.pem --seed 1"
    found = fingerprint(read(tmp_path, VLLM_EXTRA_ARGS=args), "1")
    assert [key for key in found if key.startswith("VLLM_EXTRA_ARGS")] == ["VLLM_EXTRA_ARGS"]


def test_a_named_file_of_any_size_is_read_in_bounds(tmp_path: Path, model: Path) -> None:
    big = tmp_path / "weights"
    with big.open("wb") as file:
        file.truncate(1 << 40)
    args = f"--speculative {big}"
    found = fingerprint(read(tmp_path, VLLM_EXTRA_ARGS=args), "1")
    assert found[f"VLLM_EXTRA_ARGS {big}"].startswith(f"{1 << 40} bytes, ends ")


def test_without_a_model_nothing_of_it_is_asked(tmp_path: Path) -> None:
    found = fingerprint(read(tmp_path, SCAFFOLD="oracle"), None)
    assert not [key for key in found if key in KNOBS and KNOBS[key].scope == "model"]
    assert found["scaffold version"] == found["harbor version"] == "0.26.0"
    assert compare(found, fingerprint(read(tmp_path, SCAFFOLD="oracle", TEMPERATURE="0.1"), None)) == []


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors.index.json", "vocab.json"]
)
def test_a_changed_file_of_the_model_is_named(tmp_path: Path, model: Path, name: str) -> None:
    found = fingerprint(read(tmp_path), "1")
    (model / name).write_text("changed")
    assert differing(found, fingerprint(read(tmp_path), "1")) == [f"MODEL_PATH/{name}"]


@pytest.mark.parametrize("place", [0, (1 << 20) - 1, 2 << 20, (3 << 20) - 1], ids=["first", "head", "tail", "last"])
def test_changed_weights_are_named(tmp_path: Path, model: Path, place: int) -> None:
    found = model_digest(model)
    with (model / "model-1.safetensors").open("r+b") as file:
        file.seek(place)
        file.write(b"x")
    assert differing(found, model_digest(model)) == ["model-1.safetensors"]


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1, (2 << 20) - 1])
def test_weights_of_every_size_are_read(model: Path, size: int) -> None:
    (model / "model-1.safetensors").write_bytes(bytes(size))
    before = model_digest(model)
    (model / "model-1.safetensors").write_bytes(bytes(size + 1))
    assert differing(before, model_digest(model)) == ["model-1.safetensors"]


def test_a_missing_or_new_file_of_the_model_is_named(model: Path) -> None:
    before = model_digest(model)
    (model / "vocab.json").rename(model / "merges.txt")
    assert compare(before, model_digest(model))[1].startswith("vocab.json: was ")
    assert differing(before, model_digest(model)) == ["merges.txt", "vocab.json"]


def test_what_is_not_the_model_may_change(model: Path) -> None:
    before = model_digest(model)
    (model / "README.md").write_text("more")
    (model / "trainer_state.json").touch()
    (model / ".cache").mkdir()
    assert model_digest(model) == before


def test_a_copy_of_the_model_is_the_same(model: Path, tmp_path: Path) -> None:
    """A1: the digest is of contents alone."""
    assert model_digest(shutil.copytree(model, tmp_path / "copy")) == model_digest(model)


def test_a_model_that_is_not_there_is_loud(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="MODEL_PATH"):
        model_digest(tmp_path / "none")


def test_run_json_is_written_once_and_read_back(tmp_path: Path, model: Path) -> None:
    settings = read(tmp_path)
    found = fingerprint(settings, "0.32.0")
    assert read_run(tmp_path / "run.json") is None
    run = write_run(tmp_path / "run.json", settings, found)
    again = read_run(tmp_path / "run.json")
    assert again == run
    assert compare(again.fingerprint, found) == []
    assert len(run.run_id) == 12
    assert write_run(tmp_path / "run.json", settings, found).run_id != run.run_id
    content = orjson.loads((tmp_path / "run.json").read_bytes())
    assert content["schema_version"] == 1
    assert content["settings"].keys() == KNOBS.keys()
    assert content["settings"]["N_TRIALS"] == 4


def test_no_secret_is_written(tmp_path: Path, model: Path) -> None:
    changes = {
        "VLLM_ENV": "HF_TOKEN=s3cret OMP_NUM_THREADS=2",
        "VLLM_EXTRA_ARGS": "--api-key s3cret --hf-token=s3cret --seed 1",
    }
    settings = read(tmp_path, **changes)
    write_run(tmp_path / "run.json", settings, fingerprint(settings, "1"))
    text = (tmp_path / "run.json").read_text()
    assert "s3cret" not in text
    assert orjson.loads(text)["settings"]["VLLM_ENV"] == {"HF_TOKEN": "***", "OMP_NUM_THREADS": "2"}
    assert orjson.loads(text)["fingerprint"]["VLLM_EXTRA_ARGS"] == ["--api-key", "***", "--hf-token=***", "--seed", "1"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"run_id": "", "fingerprint": {}}', b'{"run_id": "a", "fingerprint": 1}']
)
def test_a_broken_run_json_is_loud(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(StoreError, match="not a run file"):
        read_run(tmp_path / "run.json")


def test_unknown_fields_of_run_json_are_fine(tmp_path: Path) -> None:
    """C13."""
    (tmp_path / "run.json").write_bytes(b'{"run_id": "a", "fingerprint": {"K": 1}, "new": {}}')
    run = read_run(tmp_path / "run.json")
    assert run is not None
    assert (run.run_id, run.fingerprint) == ("a", {"K": 1})


# The digest of a task


def make_task(folder: Path) -> Path:
    (folder / "tests").mkdir(parents=True)
    (folder / "task.toml").write_text("version = 1")
    (folder / "tests" / "test.sh").write_text("exit 0")
    (folder / "tests" / "test.sh").chmod(0o755)
    (folder / "link").symlink_to("task.toml")
    (folder / "empty").mkdir()
    return folder


def test_a_copy_has_its_originals_digest(tmp_path: Path) -> None:
    task = make_task(tmp_path / "a")
    copy = shutil.copytree(task, tmp_path / "b", symlinks=True)
    os.utime(copy / "task.toml", (1, 1))
    (copy / "task.toml").chmod(0o600)
    assert task_digest(copy) == task_digest(task)


def test_every_change_of_a_task_shows(tmp_path: Path) -> None:
    changes = {
        "content": lambda t: (t / "task.toml").write_text("version = 2"),
        "name": lambda t: (t / "task.toml").rename(t / "task.tomm"),
        "mode": lambda t: (t / "tests/test.sh").chmod(0o644),
        "link": lambda t: ((t / "link").unlink(), (t / "link").symlink_to("tests")),
        "link to file": lambda t: ((t / "link").unlink(), (t / "link").write_text("task.toml")),
        "new file": lambda t: (t / "tests/new").touch(),
        "empty folder": lambda t: (t / "empty").rmdir(),
        "moved": lambda t: (t / "tests/test.sh").rename(t / "test.sh"),
        "folder to file": lambda t: ((t / "empty").rmdir(), (t / "empty").touch()),
    }
    digests = {"none": task_digest(make_task(tmp_path / "none"))}
    for name, change in changes.items():
        task = make_task(tmp_path / name)
        change(task)
        digests[name] = task_digest(task)
    assert len(set(digests.values())) == len(changes) + 1


def test_names_of_any_bytes_are_safe(tmp_path: Path) -> None:
    for name in (b"new\nline", b"\xff\xfe", b" ", b"-n"):
        (tmp_path / os.fsdecode(name)).touch()
    first = task_digest(tmp_path)
    (tmp_path / os.fsdecode(b"\xff\xfe")).rename(tmp_path / os.fsdecode(b"\xff\xfd"))
    assert task_digest(tmp_path) != first


@settings(deadline=None, max_examples=30)
@given(st.binary(max_size=8), st.binary(max_size=8))
def test_contents_cannot_be_shifted_between_files(tmp_path_factory: pytest.TempPathFactory, a: bytes, b: bytes) -> None:
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    (one / "a").write_bytes(a)
    (one / "b").write_bytes(b)
    (two / "a").write_bytes(a + b)
    (two / "b").write_bytes(b"")
    assert (task_digest(one) == task_digest(two)) == (b == b"")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    with pytest.raises(StoreError, match="pipe"):
        task_digest(tmp_path)
    with pytest.raises(StoreError, match="could not be read"):
        task_digest(tmp_path / "none")


def test_real_tasks_differ(quixbugs: Path) -> None:
    digests = [task_digest(task) for task in sorted((quixbugs / "tasks").iterdir())]
    assert len(set(digests)) == len(digests) > 1
