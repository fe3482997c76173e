"""JSONL files read in order, plain or compressed, for datasets with `stream`.

Upstream: `expanded.py`. Downstream: `streaming.py`, which makes windows of the records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zephon.errors import Fault
from zephon.files import sample
from zephon.paths import DataFile
from zephon.readers.base import Column, Origin
from zephon.readers.expanded import DAMAGE, Expanding
from zephon.readers.json_records import parse_column, split_lines
from zephon.readers.lines import BYTE_ORDER_MARK


class JsonlStream:
    """Records of JSONL files that nobody counts."""

    kind = "jsonl"

    def __init__(self, origin: Origin) -> None:
        self.name, self._dataset = origin.dataset.name, origin.dataset
        self.is_tokenized = bool(origin.dataset.tokens)

    def records(self, file: DataFile) -> Iterator[Sequence[bytes | Fault]]:
        """Yields the raw records of a file, some at a time; the damage of a file is its last."""
        expanding = Expanding(self.name, file, skip=self._dataset.on_error == "skip")
        data, is_start = b"", True
        for block in expanding:
            data += block
            if is_start and len(data) > len(BYTE_ORDER_MARK):
                data, is_start = data.removeprefix(BYTE_ORDER_MARK), False
            whole = data.rfind(b"\n") + 1
            yield split_lines(data[:whole])
            data = data[whole:]
        last: list[bytes | Fault] = [*split_lines(data.removeprefix(BYTE_ORDER_MARK) if is_start else data)]
        if expanding.fault is not None:
            assert data.endswith(DAMAGE)
            last[-1] = expanding.fault
        yield last

    def column(self, raws: Sequence[bytes | Fault]) -> Column:
        """Returns the documents of raw records."""
        lines = [b"null" if isinstance(raw, Fault) else raw for raw in raws]
        column = parse_column(lines, self._dataset.text, self._dataset.tokens)
        faults = [(i, raw) for i, raw in enumerate(raws) if isinstance(raw, Fault)]
        return column.with_faults(faults) if faults else column

    def sample(self, file: DataFile) -> str:
        """Returns the hash of the first, middle and last 4 KiB of a file."""
        return sample(self.name, file)
