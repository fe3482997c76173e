"""CSV and TSV datasets: rows of files of which the first row is the header.

Upstream: `csv_rows.py`. Downstream: `ranges.py`, which reads whole chunks for the spool, and `streaming.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from zephon.dataset import Dataset
from zephon.errors import DataError, Fault
from zephon.files import sample
from zephon.paths import DataFile
from zephon.readers.arrays import check_columns
from zephon.readers.base import Column, Origin
from zephon.readers.csv_rows import Inferred, Row, Rows, array_of, fields_at, row_starts, text_of
from zephon.readers.expanded import Expanding, compression, is_compressed
from zephon.readers.kept import Kept
from zephon.readers.lines import Int64
from zephon.readers.ranges import ByFile, ByRange

TABS = (".tsv", ".tab")
"""Names of files whose fields are separated by tabs."""
_NUM_KEPT = 256
_ROWS_TOGETHER = 1000


def open_csv(origin: Origin) -> ByRange | CsvRecords:
    """Returns the reader of CSV files: by range where all are plain, else file by file."""
    records = CsvRecords(origin.dataset)
    if origin.dataset.stream:
        return records
    files = origin.table.files if origin.table is not None else origin.files
    return (ByFile if any(is_compressed(file) for file in files) else ByRange)(origin, records)


class CsvRecords:
    """The rows of CSV files, whose documents are one column of them."""

    kind, is_tokenized = "csv", False

    def __init__(self, dataset: Dataset) -> None:
        self._name, self._dataset = dataset.name, dataset
        self.key: Sequence[object] = (dataset.text, dataset.on_error)
        self._headers, self._kinds, self._gates = Kept(_NUM_KEPT), Kept(_NUM_KEPT), Kept(_NUM_KEPT)

    def starts(self, file: DataFile, expanding: Expanding) -> Int64:
        """Returns where each row behind the header starts, and the end."""
        rows = Rows(expanding, delimiter(file), is_start=True)
        header, starts = row_starts(rows)
        if header is not None and (len(starts) or expanding.fault is None):  # not a cut header
            text_place(self._name, file, header, self._dataset.text)
        return np.append(starts, rows.end)

    def split(self, file: DataFile, data: bytes) -> Rows:
        """Returns the rows of consecutive bytes."""
        return Rows([data], delimiter(file))

    def documents(self, file: DataFile, rows: Iterable[Row]) -> Column:
        """Returns the documents of rows of a file."""
        place = text_place(self._name, file, self._header(file), self._dataset.text)
        return Column.from_values(text_of(row, *place) for row in rows)

    def column(self, texts: Sequence[str | Fault]) -> Column:
        """Returns the documents of texts and faults, as `records` gives them."""
        return Column.from_values(texts)

    def columns(self, file: DataFile, rows: Iterable[Row], names: Sequence[str]) -> pa.Table:
        """Returns other columns of rows of a file, null where a row is faulty.

        A column is of whole numbers or numbers where all fields of it in the file are, else of strings, and
        null where all are empty: the first time that it is asked for costs a pass over the file.
        """
        header = self._header(file)
        check_columns(self._name, file, header, names)
        fields = fields_at(rows, len(header), [header.index(name) for name in names])
        kinds = [self._kind(file, name) for name in names]
        arrays = [array_of(found, kind) for found, kind in zip(fields, kinds, strict=True)]
        return pa.table(dict(zip(names, arrays, strict=True)))

    def records(self, file: DataFile) -> Iterator[Sequence[str | Fault]]:
        """Yields the texts of a file in order, some at a time; the damage of a file is its last."""
        expanding = self._expanding(file)
        rows = iter(Rows(expanding, delimiter(file), is_start=True))
        header, second = next(rows, None), next(rows, None)
        texts: list[str | Fault] = []
        if header is not None and not (second is None and expanding.fault is not None):  # not a cut header
            place = text_place(self._name, file, header, self._dataset.text)
            for row in chain([] if second is None else [second], rows):
                if len(texts) >= _ROWS_TOGETHER:
                    yield texts
                    texts = []
                texts.append(text_of(row, *place))
        if expanding.fault is not None:
            texts = [*texts[:-1], expanding.fault]
        yield texts

    def sample(self, file: DataFile) -> str:
        """Returns the hash of the first, middle and last 4 KiB of a file."""
        return sample(self._name, file)

    def _expanding(self, file: DataFile) -> Expanding:
        return Expanding(self._name, file, skip=self._dataset.on_error == "skip")

    def _header(self, file: DataFile) -> list[str]:
        with self._gates.get(file.path, threading.Lock):  # one thread asks a server, for all
            return self._headers.get(file.path, lambda: self._read_header(file))

    def _read_header(self, file: DataFile) -> list[str]:
        with closing(iter(Expanding(self._name, file, skip=True))) as blocks:
            row = next(iter(Rows(blocks, delimiter(file), is_start=True)), "no row")
        if not isinstance(row, list):
            raise _without_header(self._name, file, str(row))
        return row

    def _kind(self, file: DataFile, column: str) -> Any:
        key = file.path, column
        with self._gates.get(key, threading.Lock):  # one thread passes over the file, for all
            return self._kinds.get(key, lambda: self._infer(file, column))

    def _infer(self, file: DataFile, column: str) -> Any:
        """Returns the type of a column, from all its fields."""
        header = self._header(file)
        index, inferred = header.index(column), Inferred()
        rows = iter(Rows(self._expanding(file), delimiter(file), is_start=True))
        next(rows)
        inferred.add(row[index] for row in rows if isinstance(row, list) and len(row) == len(header))
        return inferred.kind


def text_place(dataset: str, file: DataFile, header: Row, text: str) -> tuple[int, int]:
    """Returns how many fields a file's rows have, and which is the text.

    Raises `DataError` where its header has none.
    """
    if not isinstance(header, list):
        raise _without_header(dataset, file, str(header))
    if header.count(text) == 1:
        return len(header), header.index(text)
    raise DataError.explained(
        f"dataset {dataset!r}: {file.shown} has {'two columns' if text in header else 'no column'} {text!r}",
        got=f"the columns {', '.join(map(repr, header))}",
        rule="the first row of a file names its columns; every file has the one that `text` names, once",
        cure="set `text` to one of these columns, or write a header",
    )


def _without_header(dataset: str, file: DataFile, got: str) -> DataError:
    return DataError.explained(
        f"dataset {dataset!r}: {file.shown} has no header",
        got=got,
        rule="the first row of a file names its columns",
        cure="write a header, or mend the file's first row",
    )


def delimiter(file: DataFile) -> str:
    """Returns what separates the fields of a file, by its name."""
    name = file.name.lower().removesuffix(compression(file))
    return "\t" if name.endswith(TABS) else ","
