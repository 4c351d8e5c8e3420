"""Digests of what goes into a measurement: the model's files, files named to vLLM, a task's folder. All block.

The digest of MODEL_PATH is the same before and after a run (A1). That of a task leaves out dates, owners and where the
folder lies, so a copy has the digest of its original.
"""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from rolloutgen.errors import StoreError

_WHOLE: Final = (
    "config.json",
    "generation_config.json",
    "*token*.json",
    "special_tokens_map.json",
    "vocab*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "*chat_template*",
    "*preprocessor_config.json",
    "*.index.json",
    "*.py",
)
"""Files of a model that are hashed whole: configuration, tokenizer, chat template, weight index, code of its own."""
_WEIGHTS: Final = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
_MIB: Final = 1 << 20
_WHOLE_MAX: Final = 64 * _MIB
"""Files that an argument names are hashed whole up to this size: templates and tables, not weights."""


def model_digest(folder: Path) -> dict[str, str]:
    """File name -> digest of every file that makes up the model. Raises StoreError.

    Weights by size and the SHA-256 of their first and last MiB (a hash of all would take minutes), others whole.
    """
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file())
        return {path.name: digest for path in files if (digest := _file_digest(path)) is not None}
    except OSError as error:
        raise StoreError(f"MODEL_PATH could not be read: {error}") from error


def _file_digest(path: Path) -> str | None:
    if any(fnmatchcase(path.name, pattern) for pattern in _WEIGHTS):
        return _ends_digest(path)
    if any(fnmatchcase(path.name, pattern) for pattern in _WHOLE):
        return _whole_digest(path)
    return None


def named_digests(words: Iterable[str]) -> dict[str, str]:
    """Path -> digest of every file that one of ``words`` names, as itself or after ``=``. Raises StoreError.

    A word that names no regular file is passed over.
    """
    names = [part for word in words for part in (word, word.partition("=")[2]) if os.path.isfile(part)]  # noqa: PTH113 - any text is safe
    try:
        return {name: _named_digest(Path(name)) for name in names}
    except OSError as error:
        raise StoreError(f"a file that VLLM_EXTRA_ARGS names could not be read: {error}") from error


def _named_digest(path: Path) -> str:
    return _whole_digest(path) if path.stat().st_size <= _WHOLE_MAX else _ends_digest(path)


def _whole_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _ends_digest(path: Path) -> str:
    with path.open("rb") as file:
        size = path.stat().st_size
        head = file.read(_MIB)
        file.seek(max(0, size - _MIB))
        return f"{size} bytes, ends {hashlib.sha256(head + file.read()).hexdigest()}"


def task_digest(folder: Path) -> str:
    """SHA-256 in hex over names, kinds and contents of all below ``folder``, and over which files are programs.

    Raises StoreError where the folder cannot be read whole, or holds a device, pipe or socket."""
    total = hashlib.sha256()
    try:
        for kind, name, content in _entries(os.fsencode(folder), b""):
            for part in (kind, name, content):
                total.update(len(part).to_bytes(8) + part)
    except OSError as error:
        raise StoreError(f"task {folder} could not be read: {error}") from error
    return total.hexdigest()


def _entries(folder: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """(kind, name below the task, what stands for the content), sorted by name; names are bytes, any is safe."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        name = prefix + entry.name
        if entry.is_symlink():
            yield b"link", name, os.readlink(entry.path)  # noqa: PTH115 - names here are bytes
        elif entry.is_dir():
            yield b"folder", name, b""
            yield from _entries(entry.path, name + b"/")
        else:
            yield _file(entry, name)


def _file(entry: "os.DirEntry[bytes]", name: bytes) -> tuple[bytes, bytes, bytes]:
    mode = entry.stat().st_mode
    if not stat.S_ISREG(mode):
        raise StoreError(f"a task holds what is neither file, folder nor link: {os.fsdecode(entry.path)!r}")
    with open(entry.path, "rb") as file:  # noqa: PTH123 - names here are bytes
        content = hashlib.file_digest(file, "sha256").digest()
    return (b"program" if mode & stat.S_IXUSR else b"file"), name, content
