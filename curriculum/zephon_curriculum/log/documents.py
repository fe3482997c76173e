"""Documents that a proposal skips: as lists of them are read, and whether a run has them.

Upstream: files of people, or what `zephon show --json` prints, and the lock in a run folder. Downstream:
`propose.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zephon_curriculum.log.amend import Document
from zephon_curriculum.log.steps import AmendError

MAX_NAMED = 10
"""Documents that a refusal names."""


def read_documents(path: str | os.PathLike[str]) -> tuple[Document, ...]:
    """Returns the documents of a list: lines `dataset file record`, JSON lines, or `zephon show --json`."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: a list of documents is UTF-8: {error}") from None
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    if isinstance(data, dict) and "rows" in data:
        pieces = [piece for row in data["rows"] for piece in row["pieces"]]
        return tuple(sorted({document_of(piece, str(path)) for piece in pieces}))
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    return tuple(sorted({document_of(_line(line), f"{path}, line {number}") for number, line in lines}))


def _line(line: str) -> object:
    try:
        return json.loads(line)
    except ValueError:
        name, _, rest = line.strip().partition(" ")
        file, _, record = rest.rpartition(" ")
        return [name, file.strip(), record]


def document_of(given: object, where: str) -> Document:
    fields = [given.get(n) for n in ("dataset", "file", "record")] if isinstance(given, Mapping) else given
    if isinstance(fields, list) and len(fields) == 3:
        name, file, record = fields
        is_record = type(record) in (int, str) and str(record).isdecimal()
        if isinstance(name, str) and isinstance(file, str) and name and file and is_record:
            return name, file, int(record)
    raise ValueError(f"{where}: a document is `dataset file record`, got {given!r:.80}")


def check_documents(documents: Sequence[Document], lock: Mapping[str, Any]) -> None:
    """Raises AmendError, which names them, for documents that are not in the files of a run's lock.

    What the lock does not tell, the run will: of a dataset in memory, or of one that is added.
    """
    found = list(_missing(documents, lock["data"]))
    if found:
        more = [f"and {len(found) - MAX_NAMED:,} more"] if found[MAX_NAMED:] else []
        raise AmendError(
            f"`skip_documents` names what the run does not have: {'; '.join(found[:MAX_NAMED] + more)}; a "
            "document is named by dataset, file and record, as `zephon show` does"
        )


def _missing(documents: Sequence[Document], data: Mapping[str, Any]) -> Iterator[str]:
    """Yields in a few words what is not there of each document."""
    counts = {name: _counts(data[name]) for name in sorted({name for name, _, _ in documents} & {*data})}
    for name, file, record in documents:
        files = counts.get(name)
        if not files:
            continue
        if file not in files:
            yield f"no file {file!r} of {name}"
        elif (number := files[file]) is not None and record >= number:
            yield f"no record {record} of {name}, file {file!r}, which has {number:,}"


def _counts(entry: Mapping[str, Any]) -> dict[str, int | None]:
    """Returns the documents of each file of a dataset's entry in the lock; None of a stream, uncounted.

    Empty where files are not told apart by name, or a plugin's reader lists them in a way of its own.
    """
    rows = [row for row in entry.get("files", ()) if isinstance(row, list) and len(row) > 1]
    found = {str(row[0]): row[2] if len(row) > 2 and type(row[2]) is int else None for row in rows}
    return found if len(found) == len(entry.get("files", ())) else {}
