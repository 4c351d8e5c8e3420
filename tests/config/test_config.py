"""The one reader of a config (C24, A8): as Bash reads it, and everything that is wrong at once, by line and key."""

from pathlib import Path

import pytest

from rolloutgen.config import load_config, log_paths, repository, resolve_values
from rolloutgen.config.reading import Draft
from rolloutgen.config.shellfile import read_shell_file
from rolloutgen.errors import FindingsError, Level
from rolloutgen.settings import KNOBS

GOOD = """\
PROJECT_NAME=test
SCAFFOLD=nop
BACKEND=local
INDEX_FILE=/data/index.parquet
RESULTS_DIR=/data/results
OUTPUT_INDEX=/data/selected.parquet
N_TRIALS=4
N_CONCURRENT=8
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Configs are named as a person in their folder would name them."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(text: str | bytes) -> Draft:
    path = Path("my.env")
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_config(path)


def fatal(draft: Draft) -> dict[str, list[str]]:
    """Key -> what is wrong with it, with its place."""
    found: dict[str, list[str]] = {}
    for finding in draft.findings:
        if finding.level is Level.FATAL:
            found.setdefault(finding.subject, []).append(f"{finding.where} {finding.message}")
    return found


def value(line: str, key: str = "EXP_NAME") -> str:
    draft = read(GOOD + line)
    return draft.values[key].text


@pytest.mark.usefixtures("folder")
class TestAsBashReadsIt:
    @pytest.mark.parametrize(
        ("line", "text"),
        [
            ("EXP_NAME=a # a comment", "a"),
            ("EXP_NAME='a b' # a comment", "a b"),
            ('EXP_NAME="a # b"', "a # b"),
            ("EXP_NAME=a#b", "a#b"),
            ("export EXP_NAME=a", "a"),
            ("EXP_NAME=$(date +x)", "x"),
            ("EXP_NAME=`echo x`", "x"),
            ("""EXP_NAME='{"a": ["b c", 1]}'""", '{"a": ["b c", 1]}'),
            ("name=a\nEXP_NAME=$name-${name}b", "a-ab"),
            ("EXP_NAME=a\\ b", "a b"),
            ("EXP_NAME=$'a\\tb'", "a\tb"),
            ("EXP_NAME=${PROJECT_NAME}x", "testx"),
            ("if [[ -d / ]]; then\n  EXP_NAME=a\nelse\n  EXP_NAME=b\nfi", "a"),
            ("EXP_NAME='a\nb'", "a\nb"),
            ("EXP_NAME=é", "é"),
            ("EXP_NAME=", ""),
            ("EXP_NAME=   # empty", ""),
            ("read -r EXP_NAME <<<a", "a"),
            ("number() { echo 7; }\nEXP_NAME=n$(number)", "n7"),
            ("EXP_NAME=~/x", str(Path.home() / "x")),
        ],
    )
    def test_c24_ordinary_lines(self, line: str, text: str) -> None:
        assert value(line) == text

    def test_c24_no_final_newline(self) -> None:
        assert value("EXP_NAME=a") == "a"

    def test_c24_helper_names_are_not_reported(self) -> None:
        draft = read("root=/data\n" + GOOD + "results=1\n")
        assert draft.findings == ()
        assert "root" not in draft.values

    def test_a8_inline_comments_and_every_place(self) -> None:
        draft = read(GOOD + "ATTEMPTS_PER_TRIAL=2 # tries\n")
        assert draft.findings == ()
        assert draft.values["ATTEMPTS_PER_TRIAL"].where == "my.env:9"
        assert draft.settings.attempts_per_trial == 2

    def test_a_file_that_it_sources_may_be_overridden(self) -> None:
        Path("base.env").write_text(GOOD)
        draft = read(f". {Path.cwd()}/base.env\nN_TRIALS=9\n")
        assert draft.findings == ()
        assert draft.settings.n_trials == 9
        assert draft.values["N_CONCURRENT"].where == f"{Path.cwd()}/base.env:8"

    def test_commands_run_in_the_repository_with_a_clean_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("N_TRIALS", "7")
        monkeypatch.setenv("SECRET_TOKEN", "x")
        draft = read(GOOD.replace("N_TRIALS=4\n", "") + "EXP_NAME=$(pwd)${SECRET_TOKEN:-}\n")
        assert draft.values["EXP_NAME"].text == str(repository())
        assert "N_TRIALS" in fatal(draft)

    def test_its_own_words_and_exported_names_go_nowhere(self, capfd: pytest.CaptureFixture[str]) -> None:
        assert read(GOOD + "echo hello; echo there >&2\n").findings == ()
        assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("folder")
class TestRefused:
    def test_c24_everything_at_once_by_line_and_key(self) -> None:
        draft = read(
            b"\xef\xbb\xbfPROJECT_NAME=test\r\n"
            b"SCAFFOLD=nop\n"
            b"BACKEND = local\n"
            b"INDEX_FILE=$data/index.parquet\n"
            b"RESULTS_DIR=${base}/results\n"
            b"N_TRIALS=0\n"
            b"N_CONCURRENT='4 '\n"
            b"N_CONCURENT=4\n"
            b"OUTPUT_INDEX= /data/selected\n"
            b"ATTEMPTS_PER_TRIAL=four\n"
            b"EXP_NAME=a\n"
            b"EXP_NAME=b\n"
        )
        found = fatal(draft)
        assert found == {
            "config": [
                "my.env:1 begins with a byte order mark (BOM); remove it: sed -i '1s/^\\xef\\xbb\\xbf//' FILE",
                "my.env:1 1 line(s) end in CR LF, as on Windows; convert the file: sed -i 's/\\r$//' FILE",
            ],
            "BACKEND": ["my.env:3 has spaces around '='"],
            "INDEX_FILE": ["my.env:4 data: unbound variable"],
            "RESULTS_DIR": ["my.env:5 base: unbound variable"],
            "N_TRIALS": ["my.env:6 must be a whole number from 1 to 100000; it is '0'"],
            "N_CONCURRENT": ["my.env:7 must be a whole number from 1 to 10000; it is '4 '"],
            "N_CONCURENT": ["my.env:8 is not a key of this program"],
            "OUTPUT_INDEX": ["my.env:9 has spaces around '='"],
            "ATTEMPTS_PER_TRIAL": ["my.env:10 must be a whole number from 1 to 100; it is 'four'"],
            "EXP_NAME": ["my.env:12 is set more than once: lines 11, 12"],
        }

    def test_a_value_with_spaces_is_mended_by_quotes(self) -> None:
        mends = {finding.subject: finding.mend for finding in read(GOOD + "EXP_NAME=two words\n").findings}
        assert mends == {"EXP_NAME": "quote a value that has spaces: EXP_NAME='TWO WORDS'"}

    def test_c24_nothing_half_read(self) -> None:
        with pytest.raises(FindingsError) as refused:
            resolve_values(read(GOOD + "N_TRIAL=3\n"))
        assert [finding.subject for finding in refused.value.findings] == ["N_TRIAL"]

    @pytest.mark.parametrize(
        ("line", "subject", "message"),
        [
            ("EXP_NAME= true", "EXP_NAME", "spaces around"),
            ("export EXP_NAME = a", "EXP_NAME", "spaces around"),
            ("EXP_NAME=a true", "EXP_NAME", "not set after the line"),
            ("EXP_NAME=$(false)", "EXP_NAME", "status 1"),
            ("export EXP_NAME=$(false)", "EXP_NAME", "status 1"),
            ("EXP_NAME=$(no-such-command)", "EXP_NAME", "command not found"),
            ("no-such-command", "config", "command not found"),
            ("EXP_NAME=(a b)", "EXP_NAME", "is an array"),
            ("PATH=/nowhere", "PATH", "is not a key"),
            ("Exp_Name=a", "Exp_Name", "is not a key"),
            ("exit 0", "config", "ends the shell"),
            ("EXP_NAME=${nothing:?is needed}", "EXP_NAME", "nothing: is needed"),
            ("EXP_NAME='a", "config", "unexpected EOF"),
            ("EXP_NAME=a)", "config", "syntax error"),
            ("EXP_NAME=$1", "EXP_NAME", "$1: unbound variable"),
            ("source /no/such/file", "config", "No such file"),
        ],
    )
    def test_c24_one_line(self, line: str, subject: str, message: str) -> None:
        found = fatal(read(GOOD + line + "\n"))
        assert list(found) == [subject]
        (said,) = found[subject]
        assert said.startswith("my.env")
        assert message in said

    def test_c24_a_file_that_ends_early_does_not_make_the_rest_missing(self) -> None:
        assert list(fatal(read("PROJECT_NAME=test\nSCAFFOLD='nop\n"))) == ["config"]

    def test_an_unknown_scaffold_and_backend_are_said_once(self) -> None:
        draft = read(GOOD.replace("nop", "openhands").replace("local", "docker"))
        assert set(fatal(draft)) == {"SCAFFOLD", "BACKEND", "MODEL_PATH", "TEMPERATURE", "VLLM_MAX_MODEL_LEN"}
        (said,) = fatal(draft)["SCAFFOLD"]
        assert "must be one of: shell, oracle, nop; it is 'openhands'" in said

    def test_a_config_that_hangs_is_given_up(self) -> None:
        (said,) = fatal(read(GOOD + "sleep 60\n"))["config"]
        assert said.startswith("my.env:9 is still being read")

    def test_a_config_has_no_stdin(self) -> None:
        assert "config" in fatal(read(GOOD + "read -r line\n"))

    @pytest.mark.parametrize(("name", "message"), [("none.env", "does not exist"), (".", "is a folder")])
    def test_no_file(self, name: str, message: str) -> None:
        assert fatal(load_config(Path(name))) == {"config": [f"{name} {message}"]}

    def test_many_unset_variables(self) -> None:
        lines = "".join(f"name{i}=$unset{i}\n" for i in range(20))
        assert set(fatal(read(lines + GOOD))) == {f"name{i}" for i in range(20)}


@pytest.mark.usefixtures("folder")
class TestLayers:
    def test_layers_fill_in_and_never_override(self) -> None:
        draft = read(GOOD.replace("nop", "shell") + "MODEL_PATH=m\nTEMPERATURE=1\nVLLM_MAX_MODEL_LEN=64\nMAX_TURNS=2\n")
        assert draft.findings == ()
        assert draft.values["MAX_TURNS"].where == "my.env:12"
        assert draft.values["MAX_RESPONSE_LEN"].where.startswith("scripts/templates/scaffold/shell.env:")
        assert draft.values["VLLM_DTYPE"].where.startswith("scripts/templates/serving.env:")
        assert draft.values["EXEC_OUTPUT_MAX_MB"].where.startswith("scripts/templates/backend/local.env:")
        assert draft.settings.model_path == repository() / "m"

    def test_a_scaffold_without_a_model_has_no_serving_layer(self) -> None:
        assert "VLLM_DTYPE" not in read(GOOD).values

    def test_every_key_of_a_layer_has_a_default_in_each_of_its_templates(self) -> None:
        folder = repository() / "scripts" / "templates"
        files = {"serving": [folder / "serving.env"], "backend": [folder / "backend" / "local.env"]}
        files["scaffold"] = [folder / "scaffold" / "shell.env"]
        for layer, paths in files.items():
            wanted = {key for key, knob in KNOBS.items() if knob.layer == layer}
            for path in paths:
                assert set(read_shell_file(path, path.name).values) == wanted


@pytest.mark.usefixtures("folder")
def test_a23_the_log_is_the_same_for_every_launch() -> None:
    first, second = (log_paths(read(text).settings) for text in (GOOD, GOOD.replace("=4", "=8")))
    assert first == second
    assert first.exp.startswith("test-results-")
    assert log_paths(read(GOOD + "EXP_NAME=mine\n").settings).log == repository() / "logs" / "mine.log"


@pytest.mark.usefixtures("folder")
def test_what_the_launcher_must_know() -> None:
    values = resolve_values(read(GOOD))
    assert values["USES_MODEL"] == "0"
    assert values["MODEL_PATH"] == ""
    assert values["LOCK"] == "/data/results/.lock"
    assert set(values["KEYS"].split()) == set(KNOBS)
