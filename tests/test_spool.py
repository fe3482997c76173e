"""Tests of `zephon.spool`: random access over chunks, and what becomes of its files."""

from __future__ import annotations

import gc
import gzip
import json
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon import cachefiles, views
from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.readers import Chunks, Column, Origin, open_reader
from zephon.spool import Spool, trim

NUM, SIZE = 64, 8
"""Documents, and documents of a chunk."""


class Numbers:
    """A stranger's reader: the texts "0".."63" in chunks of 8, with whatever else is put in their place."""

    def __init__(self, **put: Any) -> None:
        self.put = {int(name[1:]): value for name, value in put.items()}
        self.read_chunks: list[int] = []
        self.tag = ""

    def chunks(self) -> Chunks:
        return Chunks(np.full(NUM // SIZE, SIZE), np.full(NUM // SIZE, 2 * SIZE))

    def read(self, chunk: int) -> Column:
        self.read_chunks.append(chunk)
        return Column.from_values([self.put.get(i, str(i)) for i in range(SIZE * chunk, SIZE * chunk + SIZE)])

    def identity(self) -> dict[str, Any]:
        return {"kind": "numbers", "num_documents": NUM, "files": [], "tag": self.tag}


def spooled(folder: Path, reader: Any, *, limit_bytes: int = 1 << 30) -> Spool:
    dataset = Dataset.from_path("num", "nowhere", kind="numbers")
    origin = Origin(dataset=dataset, files=(), cache=folder)
    return Spool(reader, origin, limit_bytes=limit_bytes)


def texts(reader: Spool, picks: list[int], max_bytes: int = 1 << 40) -> Any:
    index = np.array(picks, np.int64)
    return reader.texts(index // SIZE, index % SIZE, max_bytes)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Spool:
    return spooled(tmp_path_factory.mktemp("cache"), Numbers())


@given(st.lists(st.integers(0, NUM - 1), min_size=1), st.integers(1, 100))
def test_random_access_gives_what_the_chunks_hold(shared: Spool, picks: list[int], max_bytes: int) -> None:
    expected = [str(pick) for pick in picks]
    num = 1
    while num < len(expected) and sum(map(len, expected[:num])) < max_bytes:
        num += 1
    found = texts(shared, picks, max_bytes)
    assert found.texts == expected[:num]
    assert not found.faults


def test_a_chunk_is_read_when_it_is_first_needed_and_never_again(tmp_path: Path) -> None:
    reader = Numbers()
    first = spooled(tmp_path, reader)
    assert reader.read_chunks == []
    assert texts(first, [17, 3, 16, 17]).texts == ["17", "3", "16", "17"]
    assert reader.read_chunks == [2, 0]
    assert texts(first, [60, 18], max_bytes=1).texts == ["60"]
    second = spooled(tmp_path, reader)
    assert texts(second, [17, 3, 60]).texts == ["17", "3", "60"]
    assert reader.read_chunks == [2, 0, 7]


def test_another_source_reads_no_stale_chunk(tmp_path: Path) -> None:
    texts(spooled(tmp_path, Numbers()), [1])
    other = Numbers(_1="other")
    other.tag = "other"
    assert texts(spooled(tmp_path, other), [1]).texts == ["other"]


def test_faults_and_replacements_are_kept(tmp_path: Path) -> None:
    reader = Numbers(_3=None, _5="\ud800", _9=7, _20="")
    for _ in range(2):
        found = texts(spooled(tmp_path, reader), [30, 9, 5, 4, 3, 9, 20])
        assert found.texts == ["30", "", "\ufffd", "4", "", "", ""]
        assert [(i, fault.kind) for i, fault in found.faults] == [
            (1, "not_text"),
            (4, "null"),
            (5, "not_text"),
        ]
        assert found.num_replaced == [2]
    assert len(reader.read_chunks) == 4


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "cut":
        content = content[:-1]
    elif how == "empty":
        content = content[:0]
    elif how == "short":
        content = content[:20]
    elif how == "magic":
        content[0] ^= 1
    elif how == "count":
        content[16] ^= 1
    elif how == "offset":
        content[80] ^= 1
    elif how == "text":
        at = content.index(b"01234567")
        content[at] ^= 1
    elif how == "hole":
        content[64:] = bytes(len(content) - 64)
    elif how == "faults":
        content[-1] = ord(" ")
    path.write_bytes(content)


@pytest.mark.parametrize(
    "how", ["cut", "empty", "short", "magic", "count", "offset", "text", "hole", "faults"]
)
def test_a_damaged_spool_file_is_made_again(tmp_path: Path, how: str) -> None:
    reader = Numbers()
    first = spooled(tmp_path, reader)
    texts(first, [0])
    good = first.path(0).read_bytes()
    damage(first.path(0), how)
    second = spooled(tmp_path, reader)
    assert texts(second, [0, 7]).texts == ["0", "7"]
    assert reader.read_chunks == [0, 0]
    assert second.path(0).read_bytes() == good


def test_texts_that_are_damaged_while_open_are_an_error_that_mends_itself(tmp_path: Path) -> None:
    opened = spooled(tmp_path, Numbers())
    texts(opened, [0])
    content = opened.path(0).read_bytes()
    opened.path(0).write_bytes(content.replace(b"01234567", b"0123\xff567"))
    assert texts(opened, [0, 3]).texts == ["0", "3"]
    with pytest.raises(DataError, match=r"dataset 'num': spool file .* is damaged"):
        texts(opened, [0, 4])
    assert texts(opened, [4]).texts == ["4"]


def test_a_chunk_of_another_length_than_was_said_is_an_error(tmp_path: Path) -> None:
    reader = Numbers()
    opened = spooled(tmp_path, reader)
    reader.read = lambda chunk: Column.from_values(["a"] * 7)  # type: ignore[method-assign]
    with pytest.raises(DataError, match=r"num changed during the run\n  got:  7 records in a chunk of 8"):
        texts(opened, [9])


def spool_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("spool/*/*.spool"), key=lambda path: int(path.stem))


def test_the_least_recently_opened_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MAX_OPEN_CHUNKS", 1)
    reader = Numbers(**{f"_{i}": "x" * 1000 for i in range(NUM)})
    opened = spooled(tmp_path, reader, limit_bytes=36_000)  # four chunks of 8 kB
    for chunk in range(4):
        texts(opened, [SIZE * chunk])
        os.utime(opened.path(chunk), ns=(0, chunk * 1000))
    texts(opened, [0])
    texts(opened, [SIZE * 4])
    assert [int(path.stem) for path in spool_files(tmp_path)] == [0, 2, 3, 4]
    assert texts(opened, [SIZE]).texts == ["x" * 1000]
    assert sum(path.stat().st_size for path in spool_files(tmp_path)) <= 36_000


def test_files_that_are_mapped_stay(tmp_path: Path) -> None:
    opened = spooled(tmp_path, Numbers(), limit_bytes=0)
    for chunk in range(4):
        texts(opened, [SIZE * chunk])
    assert len(spool_files(tmp_path)) == 4
    opened.close()
    texts(opened, [SIZE * 5])
    assert [int(path.stem) for path in spool_files(tmp_path)] == [5]


def test_a_file_removed_under_a_map_does_no_harm(tmp_path: Path) -> None:
    opened = spooled(tmp_path, Numbers())
    texts(opened, [0])
    opened.path(0).unlink()
    assert texts(opened, [5]).texts == ["5"]
    opened.close()
    assert texts(opened, [5]).texts == ["5"]


def test_abandoned_temporary_files_are_removed_when_old(tmp_path: Path) -> None:
    opened = spooled(tmp_path, Numbers(), limit_bytes=0)
    texts(opened, [0])
    old, fresh = (opened.path(0).with_name(name) for name in (".old.tmp", ".fresh.tmp"))
    for path in (old, fresh):
        path.write_bytes(b"cut")
    os.utime(old, (time.time() - 4000, time.time() - 4000))
    trim(tmp_path / "spool", 1 << 30, set())
    assert not old.exists()
    assert fresh.exists()


def num_maps(folder: Path) -> int:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(str(folder) in line and ".spool" in line for line in lines)


def test_open_chunks_and_maps_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Numbers()
    unmapped = spooled(tmp_path, reader)
    monkeypatch.setattr(views, "MAX_OPEN_CHUNKS", 3)
    mapped = spooled(tmp_path, reader)
    gc.collect()  # what other tests left open
    before = len(os.listdir("/proc/self/fd"))
    for opened, num_open, maps in ((unmapped, NUM // SIZE, 0), (mapped, 3, 3)):
        monkeypatch.setattr(views, "MAPPED_BYTES", 1 << 20 if maps else 1)
        for _ in range(2):
            assert texts(opened, list(range(NUM))).texts == [str(i) for i in range(NUM)]
        assert num_maps(tmp_path) == maps
        assert len(os.listdir("/proc/self/fd")) == before + num_open
        opened.close()
        assert len(os.listdir("/proc/self/fd")) == before
        assert num_maps(tmp_path) == 0
    assert len(reader.read_chunks) == NUM // SIZE


def test_threads_expand_a_chunk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MAPPED_BYTES", 200)
    reader = Numbers()
    opened = spooled(tmp_path, reader)
    read, started = reader.read, threading.Barrier(4)
    wrong: list[str] = []

    def slow(chunk: int) -> Column:
        time.sleep(0.02)
        return read(chunk)

    reader.read = slow  # type: ignore[method-assign]

    def work() -> None:
        started.wait()
        for _ in range(20):
            found = texts(opened, list(range(NUM))).texts
            wrong.extend(text for i, text in enumerate(found) if text != str(i))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert sorted(reader.read_chunks) == list(range(NUM // SIZE))


PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from zephon.dataset import Dataset
from zephon.readers import open_reader
folder = Path(sys.argv[1])
reader = open_reader(Dataset.from_path("w", "data"), base=folder, cache=folder / "cache", spool_bytes=20_000)
chunk = np.arange(300) * 7 % 30
record = np.arange(300) % 10
for _ in range(5):
    found = reader.texts(chunk, record, 1 << 40).texts
    assert found == [f"{c * 10 + r} " * 100 for c, r in zip(chunk, record)]
    reader.close()
"""


def test_processes_share_a_folder_that_is_too_small(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    table = pa.table({"text": [f"{i} " * 100 for i in range(300)]})
    pq.write_table(table, tmp_path / "data" / "a.parquet", row_group_size=10)
    runs = [subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)]) for _ in range(3)]
    assert [run.wait() for run in runs] == [0, 0, 0]


def test_a_reader_travels_to_workers(tmp_path: Path) -> None:
    opened = spooled(tmp_path, Numbers())
    texts(opened, [0])
    copy = pickle.loads(pickle.dumps(opened))
    assert texts(copy, [0, 63]).texts == ["0", "63"]
    assert copy.identity() == opened.identity()


def test_a_replaced_file_reads_no_stale_chunk_and_others_keep_theirs(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()

    def write(name: str, *words: str) -> None:
        path = tmp_path / "data" / name
        pq.write_table(pa.table({"text": words, "other": ["o"] * len(words)}), path, write_statistics=False)

    def opened(text: str = "text") -> Any:
        dataset = Dataset.from_path("w", "data", text=text)
        return open_reader(dataset, base=tmp_path, cache=tmp_path / "cache", spool_bytes=1 << 30)

    def first(reader: Any) -> list[str]:
        return list(reader.texts(np.arange(2), np.zeros(2, np.int64), 1 << 40).texts)

    write("a.parquet", "one", "two")
    write("b.parquet", "three")
    assert first(opened()) == ["one", "three"]
    write("a.parquet", "uno", "two")
    assert first(opened()) == ["uno", "three"]
    assert first(opened("other")) == ["o", "o"]
    assert len(spool_files(tmp_path / "cache")) == 5
    reader = opened()
    assert [reader.where(0, 1), reader.where(1, 0)] == [("a.parquet", 1), ("b.parquet", 0)]


def test_records_are_counted_from_the_start_of_their_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name, num in (("a", 5), ("b", 0), ("c", 3)):
        table = pa.table({"text": pa.array([f"{name}{i}" for i in range(num)], pa.string())})
        pq.write_table(table, tmp_path / "data" / f"{name}.parquet", row_group_size=2)
    dataset = Dataset.from_path("w", "data")
    reader = open_reader(dataset, base=tmp_path, cache=tmp_path / "cache", spool_bytes=1 << 30)
    counts = reader.chunks().num_documents.tolist()
    assert counts == [2, 2, 1, 2, 1]
    where = [reader.where(c, r) for c, count in enumerate(counts) for r in range(count)]
    assert where == [("a.parquet", i) for i in range(5)] + [("c.parquet", i) for i in range(3)]
    found = [reader.texts(np.array([c]), np.array([0]), 1).texts[0] for c in range(5)]
    assert found == ["a0", "a2", "a4", "c0", "c2"]


def test_a_full_disk_says_the_cure_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = spooled(tmp_path, Numbers())

    def full(_source: str, _target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cachefiles.os, "replace", full)
    with pytest.raises(DataError, match=r"No space left(.|\n)*free space there.*ZEPHON_CACHE"):
        texts(opened, [0])
    assert list(opened.path(0).parent.iterdir()) == []
    monkeypatch.undo()
    assert texts(opened, [0]).texts == ["0"]


@pytest.mark.parametrize(("spool_bytes", "num_warnings"), [(5_000, 1), (1 << 30, 0)])
def test_a_spool_smaller_than_one_expanded_file_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spool_bytes: int, num_warnings: int
) -> None:
    lines = "".join(json.dumps({"text": "x" * 1000}) + "\n" for _ in range(20))
    for name in "ab":
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    dataset = Dataset.from_path("web", str(tmp_path / "*.gz"))
    reader = open_reader(dataset, base=tmp_path, cache=tmp_path / "cache", spool_bytes=spool_bytes)
    with caplog.at_level(logging.WARNING, "zephon"):
        for chunk in (0, 1, 0):
            reader.texts(np.array([chunk]), np.array([0]), 1)
            reader.close()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == num_warnings
    for line in said:
        assert line.startswith("dataset 'web': a.jsonl.gz takes 20,")
        assert "the spool may hold 5,000: it is expanded again and again; set `spool_bytes`" in line
