"""CSV files read in order, plain or compressed, for datasets with `stream`.

Upstream: `csv_rows.py`. Downstream: `streaming.py`, which makes windows of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from zephon.errors import Fault
from zephon.files import sample
from zephon.paths import DataFile
from zephon.readers.base import Column, Origin
from zephon.readers.csv_files import delimiter, text_index
from zephon.readers.csv_rows import Rows, column_of, text_of
from zephon.readers.expanded import Expanding

_ROWS_TOGETHER = 1000


class CsvStream:
    """Rows of CSV files that nobody counts."""

    kind = "csv"

    def __init__(self, origin: Origin) -> None:
        self.name, self._dataset = origin.dataset.name, origin.dataset

    def records(self, file: DataFile) -> Iterator[Sequence[str | Fault]]:
        """Yields the texts of a file in order, some at a time; the damage of a file is its last."""
        expanding = Expanding(self.name, file, skip=self._dataset.on_error == "skip")
        rows = iter(Rows(expanding, delimiter(file), is_start=True))
        header, second = next(rows, None), next(rows, None)
        texts: list[str | Fault] = []
        if header is not None and not (second is None and expanding.fault is not None):  # not a cut header
            index, num_fields = text_index(self.name, file, header, self._dataset.text), len(header)
            for row in chain([] if second is None else [second], rows):
                if len(texts) >= _ROWS_TOGETHER:
                    yield texts
                    texts = []
                texts.append(text_of(row, num_fields, index))
        if expanding.fault is not None:
            texts = [*texts[:-1], expanding.fault]
        yield texts

    def column(self, raws: Sequence[str | Fault]) -> Column:
        """Returns the documents of texts and faults."""
        return column_of(raws)

    def sample(self, file: DataFile) -> str:
        """Returns the hash of the first, middle and last 4 KiB of a file."""
        return sample(self.name, file)
