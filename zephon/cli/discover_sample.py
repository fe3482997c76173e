"""The first records of a data file, whatever its format and wherever it lies: which column holds the texts.

Upstream: the files that `discover.py` lists. Downstream: the datasets that it finds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from zephon.cli.output import cut
from zephon.errors import DataError
from zephon.files import open_file
from zephon.paths import DataFile
from zephon.readers.arrays import is_token_list
from zephon.readers.csv_files import delimiter
from zephon.readers.csv_rows import Rows
from zephon.readers.expanded import Expanding

SAMPLE_RECORDS = 200
SAMPLE_BYTES = 4 << 20
"""Expanded bytes of lines that are looked at, at most."""
TEXT_NAMES = ("text", "content", "body", "document")
CHAT_NAMES = ("messages", "conversations", "conversation", "turns", "dialogue")
"""Columns that hold a list of messages where the records are chats."""
TOKEN_NAMES = ("input_ids", "token_ids", "tokens", "ids")
_ARROW_FILE = b"ARROW1"


@dataclass(frozen=True, slots=True)
class Sample:
    """Some records of a file."""

    records: Sequence[Mapping[str, Any]]
    columns: Sequence[str]
    """By first appearance."""
    token_columns: Sequence[str]
    """Columns of lists of whole numbers."""
    column_bytes: Mapping[str, int] = field(default_factory=dict)
    """Of Parquet, by its footer: what each column of the file takes uncompressed."""


def find_column(files: Sequence[DataFile], kind: str) -> tuple[str, str, str, float | None]:
    """Returns (column of texts, else column of token ids, why, expansion), by the first records of one file.

    The expansion is what the texts take uncompressed for each byte of the file, where its footer says it.
    """
    file = next((file for file in files if file.size_bytes), files[0])
    found = sample(file, kind)
    text, why = find_text(found.records, found.columns)
    if text:
        expanded = found.column_bytes.get(text)
        return text, "", why, None if expanded is None else expanded / max(1, file.size_bytes)
    usual = next((name for name in TOKEN_NAMES if name in found.token_columns), "")
    tokens = usual or (found.token_columns[0] if len(found.token_columns) == 1 else "")
    if not tokens:
        raise _no_text(file, found.columns, len(found.records))
    return "", tokens, f"lists of whole numbers in {tokens!r}, and no column of text", None


def find_text(records: Sequence[Mapping[str, object]], columns: Sequence[str]) -> tuple[str, str]:
    """Returns (column, why) of the text: one with a usual name, else the one with the longest strings."""
    lengths: dict[str, list[int]] = {}
    for record in records:
        for name, value in record.items():
            if isinstance(value, str):
                lengths.setdefault(name, []).append(len(value))
    usual = next((name for name in TEXT_NAMES if name in lengths), None)
    if usual is not None:
        return usual, f"a column of strings named {usual!r}"
    chat = next((name for name in CHAT_NAMES if name in columns and name not in lengths), None)
    if chat is not None or not lengths:
        return "", ""
    means = {name: sum(sizes) / len(records) for name, sizes in lengths.items()}
    longest = max(means, key=lambda name: means[name])
    shown = json.dumps(longest)
    why = f"{shown} has the longest strings, {means[longest]:.0f} characters in {len(records)} records"
    return longest, why


def _no_text(file: DataFile, columns: Sequence[str], num_records: int) -> DataError:
    return DataError.explained(
        f"{file.shown} has no column of text",
        got=f"the columns {cut(', '.join(columns), 200) or 'none'} in {num_records} records",
        rule="a document's text is a string in one column; a chat is a list of messages, not a text",
        cure="write the recipe by hand and name the column in `text`, or in `tokens` if it holds token ids",
    )


def sample(file: DataFile, kind: str) -> Sample:
    """Returns the first records of a file; raises `DataError` for one that cannot be read."""
    if kind in ("parquet", "arrow"):
        return _arrow_sample(file, kind)
    records = list(islice(_csv_records(file) if kind == "csv" else _json_records(file), SAMPLE_RECORDS))
    columns = list(dict.fromkeys(name for record in records for name in record))
    tokens = [name for name in columns if all(_is_ids(record[name]) for record in records if name in record)]
    return Sample(records, columns, tokens)


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)


def _json_records(file: DataFile) -> Iterator[dict[str, Any]]:
    data, left = b"", SAMPLE_BYTES
    with closing(_blocks(file)) as blocks:
        for block in blocks:
            *lines, data = (data + block).split(b"\n")
            yield from _parsed(lines)
            left -= len(block)
            if left <= 0:  # the last line may go on
                return
    yield from _parsed([data])


def _parsed(lines: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            record = json.loads(line.removeprefix(b"\xef\xbb\xbf"))
        except (ValueError, RecursionError):  # a fault: check says which
            continue
        if isinstance(record, dict):
            yield record


def _csv_records(file: DataFile) -> Iterator[dict[str, Any]]:
    with closing(_blocks(file)) as blocks:
        rows = iter(Rows(blocks, delimiter(file), is_start=True))
        header = next(rows, None)
        if isinstance(header, list):
            for row in rows:
                if isinstance(row, list) and len(row) == len(header):
                    yield dict(zip(header, row, strict=True))


def _blocks(file: DataFile) -> Any:
    return iter(Expanding("init", file, skip=False))


def _arrow_sample(file: DataFile, kind: str) -> Sample:
    try:
        with open_file("init", file) as source:
            schema, batches, column_bytes = _parquet(source) if kind == "parquet" else _arrow(source)
            names = [f.name for f in schema if _is_string(f.type)]
            found = next(iter(batches(names)), None)
    except (pa.ArrowException, OSError) as error:
        raise DataError.explained(
            f"{file.shown} cannot be read as {kind.capitalize()}",
            got=(str(error).splitlines() or ["?"])[0][:200],
            rule="a file of this format is complete",
            cure="write or download the file again, or leave it out",
        ) from error
    records = [] if found is None else found.slice(0, SAMPLE_RECORDS).select(names).to_pylist()
    tokens = [f.name for f in schema if is_token_list(f.type)]
    return Sample(records, schema.names, tokens, column_bytes)


def _parquet(source: Any) -> tuple[Any, Any, dict[str, int]]:
    opened = pq.ParquetFile(source)
    sizes: Counter[str] = Counter()
    for group in map(opened.metadata.row_group, range(opened.metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            sizes[column.path_in_schema.partition(".")[0]] += column.total_uncompressed_size
    return opened.schema_arrow, lambda names: opened.iter_batches(SAMPLE_RECORDS, columns=names), dict(sizes)


def _arrow(source: Any) -> tuple[Any, Any, dict[str, int]]:
    is_file = source.peek(len(_ARROW_FILE))[: len(_ARROW_FILE)] == _ARROW_FILE
    if is_file:
        opened = pa.ipc.open_file(source)
        return opened.schema, lambda _: (opened.get_batch(i) for i in range(opened.num_record_batches)), {}
    stream = pa.ipc.open_stream(source)
    return stream.schema, lambda _: stream, {}


def _is_string(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return kind in (pa.string(), pa.large_string(), pa.string_view())
