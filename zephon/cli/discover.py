"""What lies in folders and files of data: datasets, their kind, their text column, a tokenizer near them.

Upstream: the paths that a user gives to `zephon init`. Downstream: `init.py`, which writes them down.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from zephon.cli.common import cut
from zephon.cli.discover_tokens import as_left_out, find_token_column, find_token_files
from zephon.errors import DataError
from zephon.paths import DataFile, list_files
from zephon.readers import SUFFIXES
from zephon.readers.beside import FLAT, INDEX, MEGATRON, OFFSETS, path_beside, without_boundaries
from zephon.tokenizer.file import FILE_NAME

TEXT_NAMES = ("text", "content", "body", "document")
CHAT_NAMES = ("messages", "conversations", "conversation", "turns", "dialogue")
"""Columns that hold a list of messages where the records are chats."""
SAMPLE_RECORDS = 200
SAMPLE_LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDataset:
    """A dataset for the recipe."""

    name: str
    kind: str
    paths: tuple[str, ...]
    """Absolute entries: a folder, a file or patterns."""
    num_files: int
    num_bytes: int
    text: str
    """The column of texts; empty where documents are token ids."""
    tokens: str = ""
    """The column of token ids, where they lie in one."""
    dtype: str = ""
    """Of flat .bin files of token ids."""
    why: str
    """Why this is the column, or what the files hold, in a few words."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A folder or file that gives no dataset."""

    path: str
    """Absolute."""
    why: str
    """What lies there instead, in one line."""


class NoTextError(DataError):
    """The records have no column with a document's text."""


def find_datasets(paths: Sequence[Path]) -> tuple[list[FoundDataset], list[LeftOut]]:
    """Returns (datasets of the paths, what is left out), in order: one for each path and kind of file.

    A folder without data files of its own gives one dataset for each of its folders instead. Files without
    a text column are left out; where nothing else is found, their error is raised.
    """
    found: list[FoundDataset] = []
    left_out: list[LeftOut] = []
    fault: NoTextError | None = None
    for given in paths:
        parts, others = _parts(Path(os.path.abspath(given)))
        left_out += others
        for path in parts:
            files = without_boundaries(list_files([str(path)], path.parent))
            kinds = sorted({kind for file in files if (kind := _kind(file))})
            if not kinds:
                raise _no_data(path, files)
            for kind in kinds:
                named = path if len(kinds) == 1 else path.with_name(f"{path.name}_{kind}")
                try:
                    found.append(_describe(_unique(_identifier(named), found), kind, path, files))
                except NoTextError as error:
                    fault = fault or error
                    left_out.append(LeftOut(str(path), _first_lines(error)))
    if fault is not None and not found:
        raise fault
    return found, left_out


def _first_lines(error: NoTextError) -> str:
    """Returns what is at fault and what was got, as one line."""
    what, got = str(error).splitlines()[:2]
    return f"{what}: {got.partition(':')[2].strip()}"


def _parts(path: Path) -> tuple[list[Path], list[LeftOut]]:
    """Returns the folders that give datasets, and those inside `path` that hold other files only."""
    if not path.is_dir():
        return [path], []
    entries = sorted(p for p in path.iterdir() if not p.name.startswith((".", "_")))
    files = {p: _files(p) for p in entries if p.is_dir()}
    folders = [p for p in files if any(map(_kind, files[p]))]
    left_out = [LeftOut(str(p), _other_files(f)) for p, f in files.items() if f and p not in folders]
    if any(p.is_file() and _is_data(p) for p in entries):
        return [path], left_out
    return folders if len(folders) > 1 else [path], left_out


def _is_data(path: Path) -> bool:
    """Returns whether a file is data by its name, or by the file beside it where the name says little."""
    kind = SUFFIXES.get(path.suffix.lower(), "")
    return bool(kind) and (kind != FLAT or any(path.with_suffix(e).exists() for e in (OFFSETS, INDEX)))


def _files(folder: Path) -> Sequence[DataFile]:
    try:
        return list_files([str(folder)], folder)
    except DataError:  # a folder without files
        return []


def _other_files(files: Sequence[DataFile]) -> str:
    return f"{_counted(files)}; data is in files that end in {', '.join(SUFFIXES)}"


def _counted(files: Sequence[DataFile]) -> str:
    suffixes = sorted({"".join(Path(file.name).suffixes[-2:]) or "no suffix" for file in files})
    return f"{len(files):,} file{'s' * (len(files) != 1)}: {', '.join(suffixes[:8])}"


def _kind(file: DataFile) -> str:
    suffix = os.path.splitext(file.name)[1].lower()
    has_index = suffix == ".bin" and os.path.exists(path_beside(file.path, INDEX))
    return MEGATRON if has_index else SUFFIXES.get(suffix, "")


def _describe(name: str, kind: str, path: Path, files: Sequence[DataFile]) -> FoundDataset:
    mine = [file for file in files if _kind(file) == kind]
    text = tokens = dtype = ""
    if kind in (FLAT, MEGATRON):
        try:
            dtype, why = find_token_files(name, mine, kind)
        except DataError as error:
            raise NoTextError(as_left_out(error)) from None
    else:
        text, tokens, why = find_column(mine, kind)
    return FoundDataset(
        name=name,
        kind=kind,
        paths=_entries(path, files, mine),
        num_files=len(mine),
        num_bytes=sum(file.size_bytes for file in mine),
        text=text,
        tokens=tokens,
        dtype=dtype,
        why=why,
    )


def _entries(path: Path, files: Sequence[DataFile], mine: Sequence[DataFile]) -> tuple[str, ...]:
    """Returns the path itself where all its files are of one kind, else patterns for those that are."""
    if len(mine) == len(files):
        return (str(path),)
    suffixes = sorted({os.path.splitext(file.name)[1] for file in mine})
    return tuple(f"{glob.escape(str(path))}/**/*{suffix}" for suffix in suffixes)


def _identifier(path: Path) -> str:
    """Returns the folder's name or the file's stem as letters, digits and underscores."""
    stem = path.name if path.is_dir() or path.suffix.lower() not in SUFFIXES else path.stem
    name = re.sub(r"[^A-Za-z0-9]+", "_", stem).strip("_") or "data"
    return f"d_{name}" if name[0].isdigit() else name


def _unique(name: str, found: Sequence[FoundDataset]) -> str:
    taken = {dataset.name for dataset in found}
    numbered = (f"{name}_{number}" for number in range(2, len(taken) + 3))
    return name if name not in taken else next(other for other in numbered if other not in taken)


def find_column(files: Sequence[DataFile], kind: str) -> tuple[str, str, str]:
    """Returns (column of texts, else column of token ids, why)."""
    try:
        text, why = find_text(files, kind)
        return text, "", why
    except NoTextError:
        file = next((file for file in files if file.size_bytes), files[0])
        tokens = find_token_column(file, kind, () if kind == "parquet" else _sample_jsonl(file))
        if not tokens:
            raise
        return "", tokens, f"lists of whole numbers in {tokens!r}, and no column of text"


def find_text(files: Sequence[DataFile], kind: str) -> tuple[str, str]:
    """Returns (column, why) of the text: one with a usual name, else the one with the longest strings."""
    file = next((file for file in files if file.size_bytes), files[0])
    sample = _sample_parquet(file) if kind == "parquet" else _sample_jsonl(file)
    lengths: dict[str, list[int]] = {}
    columns: dict[str, None] = {}
    num_records = 0
    for record in sample:
        num_records += 1
        columns |= dict.fromkeys(record)
        for name, value in record.items():
            if isinstance(value, str):
                lengths.setdefault(name, []).append(len(value))
    usual = next((name for name in TEXT_NAMES if name in lengths), None)
    if usual is not None:
        return usual, f"a column of strings named {usual!r}"
    chat = next((name for name in CHAT_NAMES if name in columns and name not in lengths), None)
    if chat is not None or not lengths:
        raise _no_text(file, list(columns), num_records)
    means = {name: sum(sizes) / num_records for name, sizes in lengths.items()}
    longest = max(means, key=lambda name: means[name])
    shown = json.dumps(longest)
    return (
        longest,
        f"{shown} has the longest strings, {means[longest]:.0f} characters in {num_records} records",
    )


def _sample_jsonl(file: DataFile) -> Iterator[dict[str, Any]]:
    with open(file.path, "rb") as stream:
        for _ in range(SAMPLE_RECORDS):
            line = stream.readline(SAMPLE_LINE_BYTES)
            if not line:
                return
            try:
                record = json.loads(line)
            except ValueError:  # a fault, or a line that is longer than the sample takes: check says which
                continue
            if isinstance(record, dict):
                yield record


def _sample_parquet(file: DataFile) -> Iterator[dict[str, Any]]:
    try:
        with pq.ParquetFile(file.path) as source:
            names = [field.name for field in source.schema_arrow if _is_string(field.type)]
            batches = source.iter_batches(batch_size=SAMPLE_RECORDS, columns=names)
            columns = dict.fromkeys(source.schema_arrow.names)
            for batch in islice(batches, 1):
                yield from (columns | record for record in batch.to_pylist())
            if not names:
                yield columns
    except (pa.ArrowException, OSError) as error:
        raise DataError.explained(
            f"{file.path} cannot be read as Parquet",
            got=(str(error).splitlines() or ["?"])[0][:200],
            rule="a Parquet file is complete: its footer lies at its end",
            cure="write or download the file again, or leave it out",
        ) from error


def _is_string(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def _no_text(file: DataFile, columns: Sequence[str], num_records: int) -> NoTextError:
    return NoTextError.explained(
        f"{file.path} has no column of text",
        got=f"the columns {cut(', '.join(columns), 200) or 'none'} in {num_records} records",
        rule="a document's text is a string in one column; a chat is a list of messages, not a text",
        cure="write the recipe by hand and name the column in `text`, or in `tokens` if it holds token ids",
    )


def _no_data(path: Path, files: Sequence[DataFile]) -> DataError:
    return DataError.explained(
        f"{path} holds no data that can be read",
        got=_counted(files),
        rule=f"data is in files that end in {', '.join(SUFFIXES)}",
        cure="give another path, or convert the files",
    )


def find_tokenizer(paths: Sequence[Path], out: Path) -> Path | None:
    """Returns the first tokenizer.json in or beside the paths, or beside the recipe."""
    folders = [folder for path in paths for folder in (path, path.absolute().parent)] + [
        out.absolute().parent
    ]
    return next((Path(os.path.abspath(f / FILE_NAME)) for f in folders if (f / FILE_NAME).is_file()), None)
