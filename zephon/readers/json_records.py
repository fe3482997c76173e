"""Records of JSON: text, token ids or columns of each, and what is wrong with those that have none.

Upstream: `lines.py`, `expanded.py`. Downstream: the readers of JSONL, `ranges.py` for whole chunks and
`streaming.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, cast

import numpy as np
import pyarrow as pa

from zephon.dataset import Dataset
from zephon.errors import DataError, Fault, shorten
from zephon.files import sample
from zephon.paths import DataFile
from zephon.readers.base import Column, Texts, first_line, not_a_text, not_utf8, replace_surrogates
from zephon.readers.expanded import Expanding
from zephon.readers.lines import BYTE_ORDER_MARK, Int64, record_starts
from zephon.where import ABSENT_IS_NULL

MAX_DEPTH = 200
"""Objects and lists in each other: a fixed number, as Python's own depends on the caller's stack."""
_STEPS = np.array([(byte in b"[{") - (byte in b"]}") for byte in range(256)], np.int8)


def parse(raws: Iterable[bytes], field: str) -> Texts:
    """Returns the text at `field` of each raw record; a dotted `field` that is no key leads into objects."""
    texts: list[str] = []
    out = Texts(texts)
    decode = json.JSONDecoder().raw_decode
    pick: Callable[[Any], Any] = itemgetter(field) if "." not in field else lambda value: _pick(value, field)
    text: Any
    line = ""
    for i, raw in enumerate(raws):
        try:
            line = raw.strip().decode()
            value, end = decode(line)
            text = pick(value) if end == len(line) else None
            # What is not the text has to hold the brackets: this is asked of few records.
            if type(text) is str and len(line) - len(text) > 2 * MAX_DEPTH and _is_deep(raw):
                text = None
        except (ValueError, KeyError, TypeError, RecursionError):
            text = None
        if type(text) is not str:
            out.faults.append((i, diagnose(raw, field)))
            text = ""
        elif not text.isascii() and "\\u" in line:
            # Only an escape can bring a surrogate in: raw ones are not UTF-8.
            try:
                text.encode()
            except UnicodeEncodeError:
                out.num_replaced.append(i)
                text = replace_surrogates(text)
        texts.append(text)
    return out


def _pick(value: Any, field: str) -> Any:
    """Returns what stands at `field`, or the error of a subscript: KeyError or TypeError."""
    if field in value:
        return value[field]
    for key in field.split("."):
        value = value[key]
    return value


def _is_deep(raw: bytes) -> bool:
    """Returns whether a record is nested deeper than `MAX_DEPTH`; brackets in texts do not count."""
    if len(raw) <= MAX_DEPTH:
        return False
    either = (np.frombuffer(raw, np.uint8) | 0x20) == ord("{")  # "[" is one bit less
    if np.count_nonzero(either) <= MAX_DEPTH:
        return False
    unescaped = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = b"".join(unescaped.split(b'"')[::2])
    return int(np.cumsum(_STEPS[np.frombuffer(outside, np.uint8)]).max(initial=0)) > MAX_DEPTH


def diagnose(raw: bytes, field: str) -> Fault:
    """Returns what is wrong with a record that has no text at `field`."""
    try:
        line = raw.strip().decode()
    except UnicodeDecodeError as error:
        return not_utf8(raw.strip(), error.start, "a record")
    if _is_deep(raw):
        got = f"{shorten(line)}, nested deeper than {MAX_DEPTH}"
        return Fault("not_json", got, f"a line is one JSON object of at most {MAX_DEPTH} levels")
    try:
        value = json.loads(line)
    except ValueError as error:
        return Fault("not_json", f"{shorten(line)} ({error})", "a line is one JSON object")
    if not isinstance(value, dict):
        return Fault("not_object", shorten(value), "a line is one JSON object")
    try:
        return not_a_text(_pick(value, field))
    except (KeyError, TypeError):
        return Fault("missing", f"the keys {shorten(list(value))}", f"a record has the field {field!r}")


def parse_column(raws: Iterable[bytes], text: str, tokens: str) -> Column:
    """Returns the column of the texts of raw records, or of their token ids if `tokens` names a field."""
    if not tokens:
        return Column.from_texts(parse(raws, text))
    values: list[object] = []
    faults: list[tuple[int, Fault]] = []
    for i, raw in enumerate(raws):
        try:
            values.append(_pick(_loads(raw), tokens))
        except (ValueError, KeyError, TypeError, RecursionError):
            values.append([])
            faults.append((i, diagnose(raw, tokens)))
    column = Column.from_token_lists(values)
    return column if not faults else column.with_faults(faults)


def _loads(raw: bytes) -> Any:
    if _is_deep(raw):
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    return json.loads(raw)


def parse_values(raws: Iterable[bytes], columns: Sequence[str], dataset: str, file: str) -> pa.Table:
    """Returns the columns of raw records as a table; null where a record lacks one or is none.

    `file` is how messages call it. A lone surrogate is replaced as in texts.
    """
    values: dict[str, list[Any]] = {name: [] for name in columns}
    for raw in raws:
        try:
            value = _loads(raw)
        except (ValueError, RecursionError):
            value = None
        for name, found in values.items():
            found.append(value.get(name) if isinstance(value, dict) else None)
    arrays = {}
    for name, found in values.items():
        try:
            arrays[name] = _array(found)
        except (pa.ArrowException, OverflowError) as error:
            raise DataError.explained(
                f"dataset {dataset!r}: column {name!r} of {file} holds values of several types, or too large",
                got=first_line(error),
                rule="a column that is compared, sorted by or shown is of one type, whole numbers of 64 bits",
                cure="mend the records, or leave the column out",
            ) from None
    return pa.table(arrays, metadata=ABSENT_IS_NULL)


def _array(values: list[Any]) -> Any:
    try:
        return pa.array(values)
    except UnicodeEncodeError:
        return _array(json.loads(replace_surrogates(json.dumps(values, ensure_ascii=False))))
    except OverflowError:
        return pa.array(values, pa.uint64())


class JsonlRecords:
    """The lines of JSONL files that are read in whole chunks, or as a stream."""

    kind = "jsonl"

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.is_tokenized = bool(dataset.tokens)
        self.key: Sequence[object] = ("starts", dataset.on_error)

    def starts(self, _file: DataFile, expanding: Expanding) -> Int64:
        """Returns where each record starts, and the end."""
        parts = list(record_starts(expanding))
        return np.concatenate([*parts, [expanding.num_bytes]]).astype(np.int64)

    def split(self, _file: DataFile, data: bytes) -> list[bytes | Fault]:
        """Returns the records of consecutive whole lines: those with more than white space."""
        return [line for line in data.split(b"\n") if line.strip()]

    def documents(self, _file: DataFile, raws: Iterable[bytes | Fault]) -> Column:
        """Returns the documents of raw records."""
        return self.column(list(raws))

    def column(self, raws: Sequence[bytes | Fault]) -> Column:
        """Returns the documents of raw records."""
        faults = [(i, raw) for i, raw in enumerate(raws) if isinstance(raw, Fault)]
        lines = _lines(raws) if faults else cast(Sequence[bytes], raws)
        column = parse_column(lines, self._dataset.text, self._dataset.tokens)
        return column.with_faults(faults) if faults else column

    def columns(self, file: DataFile, raws: Iterable[bytes | Fault], names: Sequence[str]) -> pa.Table:
        """Returns columns of raw records."""
        return parse_values(_lines(raws), names, self._dataset.name, file.shown)

    def records(self, file: DataFile) -> Iterator[Sequence[bytes | Fault]]:
        """Yields the raw records of a file, some at a time; the damage of a file is its last."""
        expanding = Expanding(self._dataset.name, file, skip=self._dataset.on_error == "skip")
        data, is_start = b"", True
        for block in expanding:
            data += block
            if is_start and len(data) > len(BYTE_ORDER_MARK):
                data, is_start = data.removeprefix(BYTE_ORDER_MARK), False
            whole = data.rfind(b"\n") + 1
            yield self.split(file, data[:whole])
            data = data[whole:]
        last = self.split(file, data.removeprefix(BYTE_ORDER_MARK) if is_start else data)
        if expanding.fault is not None:
            last[-1] = expanding.fault  # for what ends in `DAMAGE`
        yield last

    def sample(self, file: DataFile) -> str:
        """Returns the hash of the first, middle and last 4 KiB of a file."""
        return sample(self._dataset.name, file)


def _lines(raws: Iterable[bytes | Fault]) -> Iterator[bytes]:
    return (b"null" if isinstance(raw, Fault) else raw for raw in raws)
