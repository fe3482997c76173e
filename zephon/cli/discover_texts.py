"""Files of text by their names and first bytes, source code among them, as `zephon init` finds them.

Upstream: `discover.py`, which lists files. Downstream: the recipe's `kind = "text"`, which reads any file.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Sequence

from zephon.files import read_range
from zephon.paths import DataFile

TEXT = "text"
"""The kind of files that are one document each."""
SOURCES = frozenset((
    ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".cu", ".cuh", ".cs", ".java", ".kt",
    ".scala", ".go", ".rs", ".swift", ".js", ".jsx", ".ts", ".tsx", ".rb", ".php", ".pl", ".lua",
    ".r", ".jl", ".hs", ".ml", ".erl", ".ex", ".clj", ".sh", ".sql", ".f90", ".tex", ".rst",
    ".org", ".adoc",
))  # fmt: skip
"""Ends of names of programs and of texts with marks, which no reader takes without a `kind`."""
LOOKED_AT_BYTES = 4096


def is_source(file: DataFile) -> bool:
    """Returns whether a file's name is that of a program or of a text with marks."""
    return _end(file) in SOURCES


def with_text(files: Sequence[DataFile]) -> list[DataFile]:
    """Returns the files but those sources of which the first with the same end of its name is no text."""
    first: dict[str, DataFile] = {}
    for file in files:
        if is_source(file) and file.size_bytes:
            first.setdefault(_end(file), file)
    wrong = {end for end, file in first.items() if not _holds_text(file)}
    return [file for file in files if _end(file) not in wrong]


def _end(file: DataFile) -> str:
    return os.path.splitext(file.name)[1].lower()


def _holds_text(file: DataFile) -> bool:
    """Returns whether a file begins as UTF-8 does, without a zero byte."""
    head = read_range("init", file, 0, LOOKED_AT_BYTES)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return b"\0" not in head
