"""Tests of `stream = true`: files read from their start, windows of records, nothing counted beforehand."""

from __future__ import annotations

import gzip
import json
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import (
    INLINE,
    digest_of,
    digests,
    loaders,
    make_recipe,
    open_small,
    read,
    take_steps,
    union,
)
from zephon import files, streaming
from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.opened import Opened
from zephon.readers import expanded, open_reader
from zephon.readers.json_records import JsonlRecords
from zephon.stream_order import WINDOW_RECORDS, split
from zephon.streaming import StreamReader

FILES = 6


def write(folder: Path, counts: list[int], *, suffix: str = ".jsonl.gz") -> None:
    """Writes one file for each count, of so many documents `fFdD`."""
    for number, count in enumerate(counts):
        lines = "".join(json.dumps({"text": f"f{number}d{i} "}) + "\n" for i in range(count))
        data = lines.encode()
        path = folder / f"{number}{suffix}"
        path.write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)


def opened(folder: Path, *, lanes: int = 4, batch: int = 4, **fields: Any) -> Opened:
    """Returns the opened recipe of one streamed dataset."""
    dataset = Dataset.from_path("web", str(folder / "[0-9]*"), stream=True, **fields)
    return open_small(make_recipe(datasets=(dataset,), base=folder, lanes=lanes, global_batch_size=batch))


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl"])
def test_a_lane_reads_its_files_once_an_epoch(tmp_path: Path, suffix: str) -> None:
    counts = [3, 0, 2500, 1024, 1, 2048]
    write(tmp_path, counts, suffix=suffix)
    small = opened(tmp_path, lanes=2, batch=2)
    documents = sum(counts)
    seen: list[str] = []
    for lane in range(2):
        order, reader = small.orders[0], small.readers[0]
        position, end = 0, order.epoch_end(lane)  # type: ignore[union-attr]
        while position < end:
            found = order.locate_from(lane, position, 100, reader.window_records)  # type: ignore
            inside = found.positions < end
            chunk, record = found.addresses.chunk[inside], found.addresses.record[inside]
            seen += reader.texts(chunk, record, 1 << 40).texts if len(chunk) else []
            position = found.end
    assert len(seen) == documents
    assert sorted(seen) == sorted(f"f{n}d{i} " for n, count in enumerate(counts) for i in range(count))
    small.close()


def test_nothing_is_read_before_the_first_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, [10] * FILES)
    monkeypatch.setattr(JsonlRecords, "records", lambda: None)
    small = opened(tmp_path)
    with loaders(small), pytest.raises(TypeError):
        digests(small, 1)
    small.close()


def test_samples_for_the_lock_are_taken_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, [1] * 8)
    together, sample = threading.Barrier(4), JsonlRecords.sample

    def waiting(self: Any, file: Any) -> str:
        together.wait(20)  # for three others
        return sample(self, file)

    dataset = Dataset.from_path("logs", str(tmp_path / "*.jsonl.gz"), stream=True)
    reader = open_reader(dataset, base=tmp_path, cache=tmp_path, spool_bytes=1 << 20)
    expected = [sample(reader._source, file) for file in reader.files]
    monkeypatch.setattr(JsonlRecords, "sample", waiting)
    assert reader.identity()["samples"] == expected
    assert len(set(expected)) == 8


def test_batches_are_the_same_on_any_number_of_ranks_and_after_any_resume(tmp_path: Path) -> None:
    write(tmp_path, [40, 7, 1100, 60, 5, 300])
    small = opened(tmp_path)
    whole = digests(small, 30)
    assert digests(small, 30, 2, executor="threads", workers=2) == whole
    assert digests(small, 30, 4) == whole
    state: dict[str, Any] = {}
    done: list[str] = []
    for world in (1, 4, 2, 1, 2, 4):
        with loaders(small, world) as ranks:
            for loader in ranks if state else ():
                loader.load_state_dict(state)
            done += [digest_of(step) for step in take_steps(ranks, 5)]
            state = union(ranks)
    assert done == whole
    small.close()


def test_another_reader_goes_on_in_the_middle_of_a_file(tmp_path: Path) -> None:
    write(tmp_path, [3000] * 4)
    small = opened(tmp_path, batch=4)
    with loaders(small, 1) as ranks:
        take_steps(ranks, 3)
        state = union(ranks)
        rest = [digest_of(step) for step in take_steps(ranks, 3)]
    small.close()
    for path in (tmp_path / ".cache" / "spool").glob("*/*"):
        path.unlink()
    fresh = opened(tmp_path, batch=4)
    with loaders(fresh, 2) as ranks:
        for loader in ranks:
            loader.load_state_dict(state)
        assert [digest_of(step) for step in take_steps(ranks, 3)] == rest
    fresh.close()


def test_windows_can_be_asked_for_in_any_order(tmp_path: Path) -> None:
    write(tmp_path, [2500] * 4)
    small = opened(tmp_path)
    reader = small.readers[0]
    assert isinstance(reader, StreamReader)
    assert [reader.window_records(2, window) for window in (2, 3, 0, 1, 4)] == [2500 - 2048, 0, 1024, 1024, 0]
    chunk = np.array([2 << 32 | 1, 2 << 32 | 2], np.int64)
    assert reader.texts(chunk, np.array([5, 6]), 1 << 20).texts == ["f2d1029 ", "f2d2054 "]
    assert reader.where(2 << 32 | 1, 5) == ("2.jsonl.gz", WINDOW_RECORDS + 5)
    copy = pickle.loads(pickle.dumps(reader))
    assert copy.texts(chunk, np.array([5, 6]), 1 << 20).texts == ["f2d1029 ", "f2d2054 "]
    small.close()


def test_a_window_that_was_removed_is_made_again(tmp_path: Path) -> None:
    write(tmp_path, [3000] * 4)
    small = opened(tmp_path)
    reader = small.readers[0]
    assert isinstance(reader, StreamReader)
    assert reader.window_records(0, 2) == 3000 - 2048
    for path in (tmp_path / ".cache" / "spool").glob("*/*"):
        path.unlink()
    small.close()
    chunk = np.array([0, 2], np.int64)
    assert reader.texts(chunk, np.array([7, 8]), 1 << 20).texts == ["f0d7 ", "f0d2056 "]
    small.close()


def test_fewer_files_than_lanes_are_refused(tmp_path: Path) -> None:
    write(tmp_path, [5] * 3)
    with pytest.raises(DataError, match=r"'web': fewer files than lanes\n  got:  3 files, 4 lanes"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [("limit", 3), ("order", "identity"), ("order", "sorted:score"), ("where", "x > 1"), ("max_epochs", 1)],
)
def test_what_needs_counts_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"'web': `stream` does not go with `{field}`"):
        Dataset.from_path("web", "data", stream=True, **{field: value})


def test_a_holdout_of_a_stream_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`stream` does not go with `holdout`"):
        Dataset.from_path("web", "data", stream=True).holdout(documents=1)


def test_files_without_documents_are_passed_over_and_alone_refused(tmp_path: Path) -> None:
    write(tmp_path, [0, 0, 0, 0, 0, 30])
    small = opened(tmp_path, lanes=1, batch=1)
    with loaders(small) as ranks:
        text = "".join(read(batch.inputs[0]) for step in take_steps(ranks, 12) for batch in step)
    assert "f5d29" in text
    small.close()
    write(tmp_path, [0] * FILES)
    empty = opened(tmp_path, lanes=2, batch=2)
    with pytest.raises(DataError, match=r"dataset 'web': no document has text\n  got:  an epoch"):
        digests(empty, 1)
    empty.close()


def test_records_without_text_are_refused_and_skipped_alike_everywhere(tmp_path: Path) -> None:
    write(tmp_path, [50] * 4, suffix=".jsonl")
    path = tmp_path / "2.jsonl"
    path.write_text(path.read_text().replace('{"text": "f2d7 "}', "{"))
    small = opened(tmp_path)
    with pytest.raises(DataError, match=r"'web', file '2.jsonl', record 7: cannot be used \(not_json\)"):
        digests(small, 40)
    small.close()
    skipping = opened(tmp_path, on_error="skip")
    whole = digests(skipping, 40)
    assert digests(skipping, 40, 4) == whole
    with loaders(skipping, 1) as ranks:
        take_steps(ranks, 40)
        counts = [json.loads(entry)["counts"][0] for name, entry in union(ranks).items() if "lane_" in name]
    assert sum(count.get("bad", 0) for count in counts) >= 1
    skipping.close()


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_cut_file_is_an_error_or_one_bad_record(tmp_path: Path, on_error: str) -> None:
    write(tmp_path, [2000] * 4)
    path = tmp_path / "1.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-2000])
    small = opened(tmp_path, on_error=on_error)
    reader = small.readers[0]
    assert isinstance(reader, StreamReader)
    if on_error == "raise":
        with pytest.raises(DataError, match=r"dataset 'web': .*1.jsonl.gz is damaged\n"):
            reader.window_records(1, 1)
    else:
        count = reader.window_records(1, 1)
        found = reader.texts(np.full(count, 1 << 32 | 1), np.arange(count), 1 << 40)
        assert [index for index, fault in found.faults if fault.kind == "damaged"] == [count - 1]
        assert found.texts[: count - 1] == [f"f1d{1024 + i} " for i in range(count - 1)]
    small.close()


def test_a_state_says_where_a_lane_is(tmp_path: Path) -> None:
    write(tmp_path, [2000] * 4)
    small = opened(tmp_path, lanes=1, batch=1)
    with loaders(small, 1, INLINE) as ranks:
        take_steps(ranks, 900)
        [cursor] = json.loads(union(ranks)["lane_00000"])["cursors"]
    turn, window, index = split(cursor[0])
    assert (turn, window) == (0, 1)
    assert 0 <= index < 1024
    assert small.orders[0].file_at(0, turn) in range(4)  # type: ignore[union-attr]
    small.close()


@pytest.mark.parametrize("num_open", [64, streaming.MAX_OPEN_FILES])
@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl"])
def test_files_of_96_lanes_are_read_about_once(
    tmp_path: Path, suffix: str, num_open: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes as they lie in the files: the lanes ask for a window of their file each, in turn."""
    monkeypatch.setattr(streaming, "MAX_OPEN_FILES", num_open)
    monkeypatch.setattr(streaming, "WINDOW_RECORDS", 64)
    monkeypatch.setattr(expanded, "BLOCK_BYTES", 256)
    write(tmp_path, [1000] * 96, suffix=suffix)
    small = opened(tmp_path)
    reader = small.readers[0]
    assert isinstance(reader, StreamReader)
    num_read = 0
    whole = files._LocalFile.readinto

    def counted(self: Any, buffer: Any) -> int:
        nonlocal num_read
        size = whole(self, buffer)
        num_read += size
        return size

    monkeypatch.setattr(files._LocalFile, "readinto", counted)
    counts = np.array([[reader.window_records(file, window) for file in range(96)] for window in range(17)])
    assert counts.sum() == 96 * 1000
    num_bytes = sum(path.stat().st_size for path in tmp_path.glob("*.jsonl*"))
    assert num_bytes <= num_read <= 1.5 * num_bytes
    small.close()
