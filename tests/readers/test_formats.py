"""Tests of all formats alike: the same documents give the same batches, wherever they are kept and how."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers import digests, make_recipe, open_small
from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.options import LoaderOptions
from zephon.readers import RandomReader, open_reader

DOCUMENTS = [
    [
        "plain words",
        "\u00e9t\u00e9 \u4e2d\u6587 \U0001f600",
        "",
        'quotes " and, commas\nand lines',
        "x" * 3000,
    ][i % 5]
    + (str(i) if i % 5 != 2 else "")
    for i in range(30)
]
STEPS = 6
NUM_FILES = 3
PER_FILE = len(DOCUMENTS) // NUM_FILES

Compress = Callable[[bytes], bytes]
Files = dict[str, bytes]


def packed(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def zstd(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data, asbytes=True))


def lines(documents: Sequence[str]) -> bytes:
    return b"".join(json.dumps({"id": i, "text": text}).encode() + b"\n" for i, text in enumerate(documents))


def members(compress: Compress, data: bytes) -> bytes:
    """Returns `data` as two members, the second of which begins in the middle of a record."""
    return compress(data[: len(data) // 2]) + compress(data[len(data) // 2 :])


def table(documents: Sequence[str], kind: Any = None) -> Any:
    texts = pa.array(documents, pa.string())
    if kind == "dictionary":
        texts = texts.dictionary_encode()
    elif kind is not None:
        texts = pa.array(documents, kind)
    return pa.table({"id": list(range(len(documents))), "text": texts})


def arrow(documents: Sequence[str], new: Any, kind: Any = None, compression: str | None = None) -> bytes:
    sink, content = pa.BufferOutputStream(), table(documents, kind)
    options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=new is pa.ipc.new_stream)
    with new(sink, content.schema, options=options) as writer:
        writer.write_table(content, max_chunksize=4)
    return bytes(sink.getvalue().to_pybytes())


def parquet(documents: Sequence[str]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table(documents), sink, row_group_size=4)
    return bytes(sink.getvalue().to_pybytes())


def rows(documents: Sequence[str], folder: Path, **options: Any) -> bytes:
    path = folder / "rows"
    with path.open("w", newline="", encoding="utf-8") as target:
        writer = csv.writer(target, **options)
        writer.writerow(["id", "text", "after"])
        writer.writerows([i, text, "z"] for i, text in enumerate(documents))
    return path.read_bytes()


def in_files(suffix: str, write: Callable[[Sequence[str]], bytes]) -> Files:
    parts = [DOCUMENTS[i * PER_FILE : (i + 1) * PER_FILE] for i in range(NUM_FILES)]
    return {f"{i}{suffix}": write(part) for i, part in enumerate(parts)}


def mixed(_: Path) -> Files:
    plain = in_files(".jsonl", lines)
    return {
        "0.jsonl": plain["0.jsonl"],
        "1.jsonl.gz": packed(plain["1.jsonl"]),
        "2.jsonl.zst": zstd(plain["2.jsonl"]),
    }


FORMATS: dict[str, Callable[[Path], Files]] = {
    "jsonl": lambda _: in_files(".jsonl", lines),
    "jsonl_bom": lambda _: in_files(".jsonl", lambda d: b"\xef\xbb\xbf" + lines(d)),
    "jsonl_gz": lambda _: in_files(".jsonl.gz", lambda d: members(packed, lines(d))),
    "jsonl_zst": lambda _: in_files(".jsonl.zst", lambda d: members(zstd, lines(d))),
    "json_bz2": lambda _: in_files(".json.bz2", lambda d: members(bz2.compress, lines(d))),
    "jsonl_mixed": mixed,
    "parquet": lambda _: in_files(".parquet", parquet),
    "arrow_stream": lambda _: in_files(".arrow", lambda d: arrow(d, pa.ipc.new_stream)),
    "arrow_file": lambda _: in_files(".arrow", lambda d: arrow(d, pa.ipc.new_file, pa.large_string())),
    "arrow_lz4": lambda _: in_files(".arrow", lambda d: arrow(d, pa.ipc.new_file, None, "lz4")),
    "arrow_view": lambda _: in_files(".arrow", lambda d: arrow(d, pa.ipc.new_stream, pa.string_view())),
    "arrow_words": lambda _: in_files(".arrow", lambda d: arrow(d, pa.ipc.new_stream, "dictionary")),
    "feather": lambda _: in_files(".feather", lambda d: arrow(d, pa.ipc.new_file, None, "zstd")),
    "csv": lambda f: in_files(".csv", lambda d: rows(d, f)),
    "csv_crlf_bom": lambda f: in_files(
        ".csv", lambda d: b"\xef\xbb\xbf" + rows(d, f, lineterminator="\r\n", quoting=csv.QUOTE_ALL)
    ),
    "tsv_gz": lambda f: in_files(".tsv.gz", lambda d: packed(rows(d, f, delimiter="\t"))),
    "text": lambda _: {f"{i:02}.txt": text.encode() for i, text in enumerate(DOCUMENTS)},
    "text_zst": lambda _: {f"{i:02}.md.zst": zstd(text.encode()) for i, text in enumerate(DOCUMENTS)},
}  # fmt: skip


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """Returns the digests of the documents in memory, in their order."""
    return digests(open_small(recipe_of(Dataset.from_documents("web", DOCUMENTS, order="identity"))), STEPS)


@pytest.fixture
def memory() -> Iterator[Any]:
    """Gives the file system `memory://`, emptied afterwards."""
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def recipe_of(dataset: Dataset) -> Any:
    return make_recipe(datasets=(dataset,), seq_len=64)


def write(folder: Path, name: str) -> Path:
    """Writes the documents in a format, and returns the folder of the files."""
    data = folder / "data"
    data.mkdir()
    for file, content in FORMATS[name](folder).items():
        (data / file).write_bytes(content)
    return data


def opened(path: str | Path, cache: Path, **fields: Any) -> RandomReader:
    dataset = Dataset.from_path("web", path, **fields)
    return open_reader(dataset, base=cache, cache=cache, spool_bytes=1 << 30)


def read_all(reader: RandomReader) -> list[str]:
    counts = np.asarray(reader.chunks().num_documents)
    chunk = np.repeat(np.arange(len(counts)), counts)
    record = np.concatenate([np.arange(count) for count in counts.tolist()])
    found = reader.texts(chunk, record, 1 << 40)
    assert not found.faults
    return found.texts


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_documents_give_the_same_batches(tmp_path: Path, expected: list[str], name: str) -> None:
    dataset = Dataset.from_path("web", write(tmp_path, name), order="identity")
    small = open_small(recipe_of(dataset), cache=tmp_path / "cache")
    for world in (1, 2):
        assert digests(small, STEPS, world=world) == expected
    small.close()


@pytest.mark.parametrize("name", FORMATS)
def test_remote_files_give_the_same_batches(
    tmp_path: Path, memory: Any, expected: list[str], name: str
) -> None:
    for file, content in FORMATS[name](tmp_path).items():
        memory.pipe(f"/bucket/data/{file}", content)
    dataset = Dataset.from_path("web", "memory://bucket/data", order="identity")
    small = open_small(recipe_of(dataset), cache=tmp_path / "cache")
    assert digests(small, STEPS, world=2) == expected
    local = open_small(recipe_of(Dataset.from_path("web", write(tmp_path, name))), cache=tmp_path / "cache")
    assert small.readers[0].identity() == local.readers[0].identity()
    assert (small.readers[0].chunks().num_bytes == local.readers[0].chunks().num_bytes).all()


@pytest.mark.parametrize("name", ["jsonl_bom", "jsonl_gz", "jsonl_zst", "json_bz2", "jsonl_mixed"])
def test_compressed_lines_are_shuffled_as_plain_ones_are(tmp_path: Path, name: str) -> None:
    (tmp_path / "plain").mkdir()
    made = []
    for folder, form in ((tmp_path / "plain", "jsonl"), (tmp_path, name)):
        dataset = Dataset.from_path("web", write(folder, form))
        made.append(digests(open_small(recipe_of(dataset), cache=folder / "cache"), STEPS))
    assert made[0] == made[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jsonl_gz", "arrow_stream", "text"])
def test_worker_processes_read_the_same(tmp_path: Path, expected: list[str], name: str) -> None:
    dataset = Dataset.from_path("web", write(tmp_path, name), order="identity")
    small = open_small(recipe_of(dataset), cache=tmp_path / "cache")
    options = LoaderOptions(executor="processes", workers=1)
    assert digests(small, STEPS, options=options) == expected


@pytest.mark.parametrize("name", FORMATS)
def test_a_record_is_found_again(tmp_path: Path, name: str) -> None:
    reader = opened(write(tmp_path, name), tmp_path / "cache")
    assert read_all(reader) == DOCUMENTS
    counts = np.asarray(reader.chunks().num_documents).tolist()
    places = [reader.where(chunk, record) for chunk, count in enumerate(counts) for record in range(count)]
    names = sorted(os.listdir(tmp_path / "data"))
    per_file = len(DOCUMENTS) // len(names)
    assert places == [(name, record) for name in names for record in range(per_file)]


@pytest.mark.parametrize("name", FORMATS)
def test_the_identity_is_that_of_a_copy_elsewhere(tmp_path: Path, name: str) -> None:
    identity = opened(write(tmp_path, name), tmp_path / "cache").identity()
    (tmp_path / "copy").mkdir()
    copy = opened(write(tmp_path / "copy", name), tmp_path / "copy")
    assert copy.identity() == identity == json.loads(json.dumps(identity))
    assert identity["num_documents"] == len(DOCUMENTS)


@pytest.mark.parametrize("name", FORMATS)
def test_a_reader_travels_and_opens_again(tmp_path: Path, name: str) -> None:
    reader = opened(write(tmp_path, name), tmp_path / "cache")
    read_all(reader)
    copy = pickle.loads(pickle.dumps(reader))
    assert read_all(copy) == DOCUMENTS
    copy.close()
    assert read_all(copy) == DOCUMENTS


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_changed_before_it_is_read_is_an_error(tmp_path: Path, name: str) -> None:
    data = write(tmp_path, name)
    reader = opened(data, tmp_path / "cache", on_error="skip")  # a changed file is no damaged one
    for path in data.iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"?more")
    with pytest.raises(DataError, match="changed during the run"):
        read_all(reader)


@pytest.mark.parametrize("name", ["jsonl", "arrow_stream", "arrow_file", "text"])
@pytest.mark.parametrize("change", ["longer", "shorter", "touched"])
def test_a_file_read_in_place_is_compared_again(tmp_path: Path, name: str, change: str) -> None:
    data = write(tmp_path, name)
    reader = opened(data, tmp_path / "cache")
    assert read_all(reader) == DOCUMENTS
    path = max(data.iterdir())
    content = path.read_bytes()
    path.write_bytes({"longer": content + b" ", "shorter": content[:-9], "touched": content}[change])
    os.utime(path, ns=(0, 12345))
    with pytest.raises(DataError, match="changed during the run"):
        read_all(reader)


@pytest.mark.parametrize("name", FORMATS)
def test_few_files_stay_open(tmp_path: Path, name: str) -> None:
    reader = opened(write(tmp_path, name), tmp_path / "cache")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        read_all(reader)
    assert len(os.listdir("/proc/self/fd")) - before <= 2 * len(reader.chunks().num_documents)
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("name", FORMATS)
def test_a_catalogue_s_files_are_compared_when_they_are_read(tmp_path: Path, name: str) -> None:
    data = write(tmp_path, name)
    reader: Any = opened(data, tmp_path / "cache")
    table = reader.table if hasattr(reader, "table") else reader._table
    bare = [replace(file, mtime_ns=0, ctime_ns=0) for file in table.files]  # as a catalogue names them

    def from_catalogue() -> RandomReader:
        dataset = Dataset.from_path("web", data)
        given = replace(table, files=bare, _current={})
        return open_reader(dataset, base=tmp_path, cache=tmp_path / "new", spool_bytes=1 << 30, table=given)

    found = from_catalogue()
    assert read_all(found) == DOCUMENTS
    assert found.identity() == reader.identity()
    path = next(path for path in sorted(data.iterdir()) if path.stat().st_size)
    content = path.read_bytes()
    path.write_bytes(content[:5] + bytes([content[5] ^ 1]) + content[6:])
    with pytest.raises(DataError, match="changed since it was listed"):
        read_all(from_catalogue())
