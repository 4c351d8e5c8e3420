"""The commands of ``rolloutgen``. Only here are errors printed and exit codes chosen.

stdout is the result, stderr the story.

Each command brings in what it needs when it runs: ``--help`` and ``resolve`` are quick.
"""

import argparse
import asyncio
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rolloutgen import __version__
from rolloutgen.errors import Finding, FindingsError, Level, RolloutgenError
from rolloutgen.exits import Exit

if TYPE_CHECKING:
    from rolloutgen.config.reading import Draft
    from rolloutgen.ending import Ending
    from rolloutgen.preflight import Report

type Arguments = argparse.Namespace

_DESCRIPTION: Final = "Measure how hard agent tasks are for one frozen model."
_EPILOG: Final = """exit codes:
  0  every trial has a verdict (check: a run would start)
  1  failed; resumable
  2  usage, config or preflight: nothing was started
  3  finished, some trials without a verdict (export: some transcripts could not be read)
  10  check, prepare: every trial has its verdict already
  130, 143  interrupted; resumable

People start runs with: bash scripts/infer/infer.sh [--dry-run] CONFIG"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = _parser().parse_args(argv)
    command: Callable[[Arguments], int] = arguments.run
    if command is not _resolve:  # whose values are read by a program
        _escape_what_cannot_be_shown()
    try:
        return command(arguments)
    except FindingsError as error:
        _tell_findings(error)
        return Exit.USAGE
    except RolloutgenError as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.FAILED
    except KeyboardInterrupt:
        return Exit.INTERRUPTED


def _escape_what_cannot_be_shown() -> None:
    """Letters that the encoding of a terminal or file lacks must not end a run."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rolloutgen",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    check = _add(commands, "check", _check, "check everything and show the effective settings; write nothing")
    check.add_argument("--dry-run", action="store_true", help="show also the exact command lines and a forecast")
    _add(commands, "status", _status, "show the progress of a run from outside, also after its end")
    _add(commands, "cleanup", _cleanup, "remove what dead launches left; results are kept", config="?")
    _add_export(commands)
    commands.add_parser("parameters", help="print the README's table of keys").set_defaults(run=_parameters)
    _add(commands, "resolve", _resolve, "for the launcher: what it must know, as NUL-terminated KEY=VALUE")
    prepare = _add(commands, "prepare", _prepare, "for the launcher, with the lock held: record, sweep, preflight")
    serve = _add(commands, "serve", _serve, "for the launcher: start the model server and watch it")
    gateway = _add(commands, "gateway", _gateway, "for the launcher: the server between scaffolds and the model server")
    run = _add(commands, "run", _run, "for the launcher: the driver")
    for inner in (prepare, serve, gateway, run):
        inner.add_argument("--launch", type=Path, required=True, metavar="DIR", help="the launch's own folder")
        about = "the process that answers for the launch; serve, gateway and run end when it is gone"
        inner.add_argument("--launcher", type=int, required=True, metavar="PID", help=about)
    return parser


def _add(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    run: Callable[[Arguments], int],
    summary: str,
    config: str | None = None,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    parser.add_argument("config", type=Path, nargs=config, metavar="CONFIG", help="a Bash file of assignments")
    parser.set_defaults(run=run)
    return parser


def _add_export(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    export = _add(commands, "export", _export, "write the transcripts of the shard's verdicts as training data")
    export.add_argument("--only", choices=("pass", "all"), default="pass", help="whose transcripts (default: pass)")
    about = "chat messages with a mask a message, or recorded token ids with a mask a token (default: messages)"
    export.add_argument("--format", choices=("messages", "tokens"), default="messages", help=about)
    about = "FILE.jsonl or FILE.parquet, written whole or not at all (default: JSON lines on stdout)"
    export.add_argument("--output", type=Path, metavar="FILE", help=about)


def _load(arguments: Arguments) -> "Draft":
    """The config, whatever is wrong with it."""
    from rolloutgen.config import load_config

    return load_config(arguments.config)


def _load_valid(arguments: Arguments) -> "Draft":
    """The config. Raises FindingsError if anything in it is fatal."""
    draft = _load(arguments)
    if draft.is_fatal:
        raise FindingsError(draft.findings)
    return draft


def _resolve(arguments: Arguments) -> int:
    from rolloutgen.config import resolve_values

    values = resolve_values(_load(arguments))
    sys.stdout.write("".join(f"{key}={value}\0" for key, value in values.items()))
    return Exit.OK


def _check(arguments: Arguments) -> int:
    from rolloutgen.dryrun import command_lines, forecast_lines
    from rolloutgen.preflight import preflight
    from rolloutgen.report import settings_lines

    draft = _load(arguments)
    report = asyncio.run(preflight(draft))
    _section("settings", settings_lines(draft))
    _tell_report(report)
    if arguments.dry_run and report.plan is not None and not report.fatal:
        _section("command lines", command_lines(draft.settings, arguments.config))
        _section("forecast", forecast_lines(report.plan))
    return report.exit_code


def _prepare(arguments: Arguments) -> int:
    from rolloutgen.prepare import begin_launch, prepare
    from rolloutgen.report import settings_lines

    draft = _load_valid(arguments)
    for line in begin_launch(draft, arguments.config, arguments.launch, arguments.launcher):
        print(f"swept: {line}")
    _section("settings", settings_lines(draft))
    ending = prepare(draft, arguments.launch.name, _tell_report)
    return Exit.OK if ending is None else _tell_ending(ending, arguments.launch)


def _serve(arguments: Arguments) -> int:
    from rolloutgen.serving import MODEL_KEY
    from rolloutgen.serving.serve import serve

    settings = _load_valid(arguments).settings
    return asyncio.run(serve(settings, arguments.launch, arguments.launcher, os.environ.get(MODEL_KEY, "")))


def _gateway(arguments: Arguments) -> int:
    import uvloop

    from rolloutgen.gateway.process import gateway
    from rolloutgen.serving import MODEL_KEY

    settings = _load_valid(arguments).settings
    return uvloop.run(gateway(settings, arguments.launch, arguments.launcher, os.environ.get(MODEL_KEY, "")))


def _run(arguments: Arguments) -> int:
    from rolloutgen.run import REASON, run

    try:
        return run(_load_valid(arguments).settings, arguments.launch, arguments.launcher)
    except RolloutgenError as error:
        (arguments.launch / REASON).write_text(str(error), encoding="utf-8")
        raise
    finally:
        _let_go_of_stdout()


def _let_go_of_stdout() -> None:
    """A lost reader or a full disk must not cost a run its exit code: Python would flush, fail and exit 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _status(arguments: Arguments) -> int:
    from rolloutgen.progress.status import status_lines

    print("\n".join(status_lines(_load_valid(arguments).settings)))
    return Exit.OK


def _export(arguments: Arguments) -> int:
    """Exit 3: some transcripts are missing or cannot be read."""
    from rolloutgen.export import Corpus, write, write_lines

    output: Path | None = arguments.output
    if output is not None and output.suffix not in (".jsonl", ".parquet"):
        raise FindingsError([Finding(Level.FATAL, "--output", f"{str(output)!r} must end with .jsonl or .parquet")])
    corpus = Corpus(_load_valid(arguments).settings, arguments.only, arguments.format)
    try:
        if output is None:
            n_rows = write_lines(corpus.rows(), corpus.schema, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        else:
            n_rows = write(corpus.rows(), corpus.schema, output)
    except BrokenPipeError:
        _let_go_of_stdout()
        return Exit.FAILED
    except OSError as error:
        _let_go_of_stdout()
        raise RolloutgenError(f"stdout could not be written: {error}") from error
    for line in [*corpus.notes(), f"{n_rows} rows of {corpus.n_trials} trials"]:
        print(line, file=sys.stderr)
    return Exit.INCOMPLETE if corpus.is_damaged else Exit.OK


def _cleanup(arguments: Arguments) -> int:
    from rolloutgen.launches import cleanup

    lines = cleanup(arguments.config)
    print("\n".join(lines) if lines else "nothing of dead launches is left here")
    return Exit.OK


def _parameters(_arguments: Arguments) -> int:
    from rolloutgen.config import repository
    from rolloutgen.config.parameters import table

    sys.stdout.write(table(repository() / "scripts" / "templates"))
    return Exit.OK


def _section(title: str, lines: Sequence[str]) -> None:
    print(f"--- {title}")
    for line in lines:
        print(line)


def _tell_report(report: "Report") -> None:
    from rolloutgen.report import count_line, findings_lines

    _section("preflight", [*findings_lines(report.findings), count_line(report.findings)])


def _tell_findings(error: FindingsError) -> None:
    from rolloutgen.report import findings_lines

    print("\n".join(findings_lines(error.findings)), file=sys.stderr)


def _tell_ending(ending: "Ending", launch: Path) -> int:
    from rolloutgen.run import REASON

    for line in ending.lines:
        print(line)
    (launch / REASON).write_text(ending.reason, encoding="utf-8")
    return ending.exit_code
