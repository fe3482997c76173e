"""Tests of `zephon.readers.plain`: what a file holds, how files make chunks, which are faulty."""

from __future__ import annotations

import gzip
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from tests.servers import http_server
from tests.waiting import SLACK_S
from zephon import retries
from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.order import Order
from zephon.readers import RandomReader, Texts, open_reader
from zephon.readers.plain import CHUNK_BYTES, CHUNK_FILES, _chunk_starts


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path


def write(folder: Path, name: str, content: bytes) -> None:
    path = folder / "data" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


def opened(folder: Path, path: str = "data", **fields: Any) -> RandomReader:
    dataset = Dataset.from_path("web", path, **fields)
    return open_reader(
        dataset, base=folder, cache=folder / "cache", spool_bytes=0, report=fields.pop("report", None)
    )


def read_all(reader: RandomReader, max_bytes: int = 1 << 60) -> Texts:
    counts = np.asarray(reader.chunks().num_documents)
    chunk = np.repeat(np.arange(len(counts)), counts)
    record = np.concatenate([np.arange(count) for count in counts.tolist()])
    return reader.texts(chunk, record, max_bytes)


def test_a_file_is_a_document(data: Path) -> None:
    contents = {
        "a.txt": b"one\ntwo\n",
        "b.md": b"",
        "c.text": b"\xef\xbb\xbfmarked\r\n",
        "d/e.txt": "\u00e9\U0001f600".encode(),
        "d/f.txt.gz": gzip.compress(b"packed\n") + gzip.compress(b"twice"),
        "d/g.md.bz2": b"",
    }
    del contents["d/g.md.bz2"]
    for name, content in contents.items():
        write(data, name, content)
    reader = opened(data)
    found = read_all(reader)
    assert found.texts == ["one\ntwo\n", "", "marked\r\n", "\u00e9\U0001f600", "packed\ntwice"]
    assert found.faults == []
    assert [reader.where(0, i) for i in range(5)] == [(name, 0) for name in contents]


def test_any_file_is_text_where_the_kind_says_so(data: Path) -> None:
    write(data, "a.py", b"print(1)")
    write(data, "b", b"no suffix")
    with pytest.raises(DataError, match="do not say one kind"):
        opened(data)
    assert read_all(opened(data, kind="text")).texts == ["print(1)", "no suffix"]


def test_a_request_to_stop_ends_reads_of_remote_files(tmp_path: Path) -> None:
    with http_server({f"{i}.txt": b"hello" for i in range(4)}) as server:
        dataset = Dataset.from_path("web", [f"{server.url}/{i}.txt" for i in range(4)])
        reader = open_reader(dataset, base=tmp_path, cache=tmp_path, spool_bytes=0)
        assert read_all(reader).texts == ["hello"] * 4
        server.switches.hang = True
        stop, begin = threading.Event(), time.monotonic()
        threading.Timer(0.2, stop.set).start()
        with retries.stop_on(stop), pytest.raises(DataError, match="was given up"):
            read_all(reader)
        assert time.monotonic() - begin < SLACK_S


def test_what_is_not_utf_8_is_a_fault(data: Path) -> None:
    for name, content in {"a.txt": b"good", "b.txt": b"b\xe9d", "c.txt": b"good too"}.items():
        write(data, name, content)
    found = read_all(opened(data))
    assert found.texts == ["good", "", "good too"]
    [(i, fault)] = found.faults
    assert (i, fault.kind) == (1, "not_utf8")
    assert fault.got.startswith("byte 0xe9 at 1")


def test_a_damaged_file_is_one_bad_document(data: Path) -> None:
    write(data, "a.txt.gz", gzip.compress(b"good"))
    write(data, "b.txt.gz", gzip.compress(b"cut" * 99)[:-3])
    write(data, "c.txt.gz", b"")
    with pytest.raises(DataError, match=r"b.txt.gz is damaged"):
        read_all(opened(data))
    found = read_all(opened(data, on_error="skip"))
    assert found.texts == ["good", "", ""]
    assert [(i, fault.kind) for i, fault in found.faults] == [(1, "damaged"), (2, "damaged")]


def test_reading_stops_at_the_bytes_asked_for(data: Path) -> None:
    for i in range(9):
        write(data, f"{i}.txt", b"x" * 10)
        write(data, f"z{i}.txt.gz", gzip.compress(b"y" * 1000))
    reader = opened(data)
    assert [len(read_all(reader, size).texts) for size in (1, 10, 11, 90)] == [1, 1, 2, 9]
    assert len(read_all(reader, 3000).texts) == 12


def test_a_chunk_is_files_next_to_each_other(data: Path) -> None:
    assert _chunk_starts(np.full(3, CHUNK_BYTES)).tolist() == [0, 1, 2, 3]
    assert _chunk_starts(np.full(8, CHUNK_BYTES // 2)).tolist() == [0, 2, 4, 6, 8]
    assert _chunk_starts(np.ones(2 * CHUNK_FILES + 5, np.int64)).tolist() == [0, 1000, 2000, 2005]
    assert _chunk_starts(np.array([5, 1 << 40, 5])).tolist() == [0, 2, 3]


def test_small_files_are_shuffled_over_many(data: Path) -> None:
    for i in range(300):
        write(data, f"{i:03}.txt", str(i).encode())
    chunks = opened(data).chunks()
    assert chunks.num_documents.tolist() == [300]
    order = Order(
        seed=1, name="web", num_lanes=1, num_documents=chunks.num_documents, num_bytes=chunks.num_bytes
    )
    first = order.locate(0, 0, 30).record
    assert first.max() - first.min() > 150


def test_nothing_stays_open_and_nothing_is_kept(data: Path) -> None:
    for i in range(50):
        write(data, f"{i:02}.txt", b"x")
    before = len(os.listdir("/proc/self/fd"))
    reader = opened(data)
    read_all(reader)
    assert len(os.listdir("/proc/self/fd")) == before
    assert not (data / "cache").exists()


def test_the_identity_tells_what_the_files_hold(data: Path) -> None:
    write(data, "a.txt", b"x" * 20000)
    write(data, "b.txt", b"one")
    identity = opened(data).identity()
    assert (identity["kind"], identity["num_documents"]) == ("text", 2)
    assert [row[:3] for row in identity["files"]] == [["a.txt", 20000, 1], ["b.txt", 3, 1]]
    for content in (b"y" + b"x" * 19999, b"x" * 10000 + b"y" + b"x" * 9999, b"x" * 19999 + b"y"):
        write(data, "a.txt", content)
        assert opened(data).identity() != identity


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def test_remote_files_are_fetched_together(data: Path, memory: Any) -> None:
    for i in range(40):
        memory.pipe(f"/bucket/{i:02}.txt", f"{i}".encode() if i % 7 else b"\xff")
    reader = opened(data, "memory://bucket")
    found = read_all(reader)
    assert found.texts == [str(i) if i % 7 else "" for i in range(40)]
    assert [i for i, _ in found.faults] == list(range(0, 40, 7))
    memory.pipe("/bucket/03.txt", b"other")
    with pytest.raises(DataError, match="changed during the run"):
        read_all(reader)


def test_a_column_of_tokens_is_refused(data: Path) -> None:
    write(data, "a.txt", b"x")
    with pytest.raises(DataError, match="its reader knows no tokens"):
        opened(data, tokens="ids")
