"""The conformance kit for readers: `zephon.testing.check_reader`.

Upstream: the tests of a plugin. Downstream: nothing; no run imports this. Files are copied first, and only
copies are changed. A reader that gives whole chunks is driven as such and behind a spool, as a run does.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.paths import DataFile, list_files
from zephon.readers import as_random, find_factory, find_files
from zephon.readers.base import (
    Chunks,
    Origin,
    RandomReader,
    Reader,
    is_tokenized,
)
from zephon.readers.parts import by_file, random_access, record_source
from zephon.testing_documents import (
    ALL_BYTES,
    Document,
    Int64,
    addresses_of,
    check_copies,
    check_order,
    check_prefixes,
    documents_of,
    read_at,
)

_SPOOL_BYTES = 1 << 30
_SECOND_NS = 1_000_000_000


class _Place(NamedTuple):
    """A dataset as it lies in one place, with a cache of its own."""

    factory: Callable[[Origin], object]
    origin: Origin

    def open(self) -> object:
        """Returns what the factory makes, once more."""
        return self.factory(self.origin)

    def random(self) -> RandomReader:
        """Returns the reader that the loader would have."""
        return as_random(self.open(), self.origin, _SPOOL_BYTES)


def check_reader(reader: Callable[[Origin], object] | str, dataset: Dataset) -> None:
    """Raises `AssertionError` where a reader of `dataset` is not what a run relies on.

    `reader` is a factory as plugins register it, or the name of an installed kind. The dataset should have
    several files and chunks, and what is difficult in the format: empty documents, bad records with
    `on_error = "skip"`, and with `stream` more than a few records. Cost: it is read some twenty times.
    """
    with tempfile.TemporaryDirectory(prefix="zephon-kit-") as temporary:
        places = _places(reader, dataset, Path(temporary))
        here = next(places)
        opened = here.open()
        if dataset.stream:
            _check_stream(opened, here, places)
            return
        chunks = _check_chunks(cast(Reader, opened), here)
        addresses = addresses_of(chunks)
        expected = read_at(here.random(), addresses, ALL_BYTES)
        if random_access(opened) is None:
            _check_columns(opened, chunks, expected)
        check_prefixes(here.random(), addresses, expected)
        check_order(here.random(), addresses, expected)
        check_copies(here.random(), addresses, expected)
        _check_where(here.random(), addresses)
        _check_identity(cast(Reader, opened), chunks)
        if here.origin.files:
            there = next(places)
            _check_elsewhere(here, there, addresses, expected)
            _check_other_content(there)
            _check_changes(places, lambda place: read_at(place.random(), addresses, ALL_BYTES))


# Places -----------------------------------------------------------------------------------------------------


def _places(reader: Callable[[Origin], object] | str, dataset: Dataset, folder: Path) -> Iterator[_Place]:
    """Yields the dataset in one new folder after another, of which every file is a new copy."""
    named = replace(dataset, kind=reader if isinstance(reader, str) else dataset.kind or "plugin")
    factory = find_factory(named, reader) if isinstance(reader, str) else reader
    listed = list_files(dataset.paths, Path.cwd()) if dataset.documents is None else []
    for number in range(100):
        root = folder / str(number)
        for file in listed:
            target = root / str(file.entry) / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file.path, target)
        paths = tuple(str(root / str(entry)) for entry in range(len(dataset.paths)))
        moved = replace(named, paths=paths)
        files: Sequence[DataFile] = find_files(moved, root)[1] if listed else []
        yield _Place(factory, Origin(dataset=moved, files=files, cache=folder / f"cache {number}"))


# Chunks and columns -----------------------------------------------------------------------------------------


def _check_chunks(reader: Reader, place: _Place) -> Chunks:
    chunks = reader.chunks()
    shapes = np.shape(chunks.num_documents), np.shape(chunks.num_bytes)
    assert len(shapes[0]) == 1, f"reader: chunks() must give two columns, got the shapes {shapes}"
    assert shapes[0] == shapes[1], (
        f"reader: chunks() must give columns of one length, got the shapes {shapes}"
    )
    assert shapes[0] != (0,), "reader: chunks() gave none; the kit needs some documents"
    for name, column in (("num_documents", chunks.num_documents), ("num_bytes", chunks.num_bytes)):
        assert column.dtype.kind in "iu", f"reader: chunks().{name} must be whole numbers, got {column.dtype}"
    assert chunks.num_documents.min() >= 1, "reader: a chunk without documents is left out of chunks()"
    assert chunks.num_bytes.min() >= 0, "reader: chunks().num_bytes must be >= 0"
    for again in (reader, cast(Reader, place.open())):
        found = again.chunks()
        same = all(map(np.array_equal, (found.num_documents, found.num_bytes),
                       (chunks.num_documents, chunks.num_bytes)))  # fmt: skip
        assert same, "reader: chunks() differ when asked, or opened, again"
    return chunks


def _check_columns(reader: object, chunks: Chunks, expected: Sequence[Document]) -> None:
    """Compares the columns of whole chunks with what was read through the spool, in any order and twice."""
    ends = np.cumsum(chunks.num_documents).tolist()
    parts = [list(expected[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]
    files = by_file(reader)
    if files is not None:
        numbers, tokenized = range(len(files.table.files)), is_tokenized(reader)
        found = [documents_of(column, tokenized) for number in numbers for column in files.read_file(number)]
        assert found == parts, "reader: read_file() differs when a file is read again"
        return
    for order in (range(len(parts)), range(len(parts) - 1, -1, -1)):
        for chunk in order:
            found_documents = documents_of(cast(Reader, reader).read(chunk), is_tokenized(reader))
            count = int(chunks.num_documents[chunk])
            assert len(found_documents) == count, (
                f"reader: read({chunk}) gave {len(found_documents)} documents, chunks() says {count}"
            )
            assert found_documents == parts[chunk], f"reader: read({chunk}) differs when read again"


# What it says of itself -------------------------------------------------------------------------------------


def _check_where(reader: RandomReader, addresses: Int64) -> None:
    places = [reader.where(chunk, record) for chunk, record in addresses.tolist()]
    for place in places:
        fit = len(place) == 2 and isinstance(place[0], str) and type(place[1]) is int and place[1] >= 0
        assert fit, f"reader: where() must give a name and a number >= 0, got {place!r}"
    assert len(set(places)) == len(places), "reader: where() gives one place for two documents"


def _check_identity(reader: Reader, chunks: Chunks) -> None:
    identity = reader.identity()
    try:
        same = json.loads(json.dumps(identity)) == identity
    except (TypeError, ValueError):
        same = False
    assert same, f"reader: identity() must be JSON data, without tuples and keys of numbers, got {identity}"
    assert reader.identity() == identity, "reader: identity() differs when asked again"
    total = int(chunks.num_documents.sum(dtype=np.int64))
    said = identity.get("num_documents")
    assert said == total, f"reader: identity() must have `num_documents` = {total}, got {said!r}"
    assert isinstance(identity.get("kind"), str), "reader: identity() must have `kind`, a name"
    assert isinstance(identity.get("files"), list), "reader: identity() must have `files`, a list"


def _check_elsewhere(here: _Place, there: _Place, addresses: Int64, expected: Sequence[Document]) -> None:
    identities = [cast(Reader, place.open()).identity() for place in (here, there)]
    assert identities[0] == identities[1], (
        f"reader: identity() of the same files in another folder differs: {identities}"
    )
    found = read_at(there.random(), addresses, ALL_BYTES)
    assert found == list(expected), "reader: documents of the same files in another folder differ"


def _check_other_content(place: _Place) -> None:
    """Changes a byte in the middle of the largest file and lists it again, as a later run would."""
    before = cast(Reader, place.open()).identity()
    path = Path(max(place.origin.files, key=lambda file: file.size_bytes).path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    files = find_files(place.origin.dataset, path.parent)[1]
    later = replace(place.origin, files=files, cache=place.origin.cache / "later")
    try:
        after = cast(Reader, place.factory(later)).identity()
    except DataError:
        return  # it was the format that was hit
    assert after != before, (
        "reader: identity() of other content of the same size is the same; lock and spool know data by it"
    )


# Files that change ------------------------------------------------------------------------------------------


def _check_changes(places: Iterator[_Place], read: Callable[[_Place], object]) -> None:
    """Opens the dataset, changes its largest file, and reads: which must be refused."""
    for what, change in (("was rewritten", _rewrite), ("has grown", _grow), ("is gone", os.unlink)):
        place = next(places)
        made = place.open()
        still = _Place(lambda _, made=made: made, place.origin)  # type: ignore[misc]
        change(max(place.origin.files, key=lambda file: file.size_bytes).path)
        try:
            read(still)
        except DataError:
            continue
        except OSError as error:
            raise AssertionError(f"reader: a file that {what} must be a DataError, got {error!r}") from error
        raise AssertionError(
            f"reader: a file that {what} after it was opened was read; read it by `read_range` or `open_file`"
        )


def _rewrite(path: str) -> None:
    data, stamp_ns = Path(path).read_bytes(), os.stat(path).st_mtime_ns + _SECOND_NS
    Path(path).write_bytes(data[::-1])
    os.utime(path, ns=(stamp_ns, stamp_ns))


def _grow(path: str) -> None:
    with open(path, "ab") as target:
        target.write(b"\n")


# Streams ----------------------------------------------------------------------------------------------------


def _check_stream(opened: object, here: _Place, places: Iterator[_Place]) -> None:
    """Reads the files of a `RecordSource` twice and elsewhere, by pickled copies of it, and changes one."""
    source = record_source(opened)
    assert source is not None, "reader: with `stream` it must have `records`, `column` and `sample`"
    assert isinstance(source.kind, str), "reader: a `RecordSource` has a `kind`, a name"
    expected = _streamed(here)
    assert any(expected), "reader: records() gave none; the kit needs some"
    assert _streamed(here) == expected, "reader: records differ when they are read again"
    there = next(places)
    assert _streamed(there) == expected, "reader: records of the same files in another folder differ"
    samples = [
        [cast(Any, place.open()).sample(file) for file in place.origin.files] for place in (here, there)
    ]
    assert all(isinstance(text, str) and text for text in samples[0]), "reader: sample() gives a text"
    assert samples[0] == samples[1], "reader: sample() of the same files in another folder differs"
    _check_changes(places, _streamed)


def _streamed(place: _Place) -> list[list[Document]]:
    """Returns the documents of each file."""
    source = record_source(pickle.loads(pickle.dumps(place.open())))
    assert source is not None
    found = []
    for file in place.origin.files:
        raws = [raw for some in source.records(file) for raw in some]
        documents = documents_of(source.column(raws), is_tokenized(source))
        assert len(documents) == len(raws), (
            f"reader: column() gave {len(documents)} documents of {len(raws)} records"
        )
        found.append(documents)
    return found
