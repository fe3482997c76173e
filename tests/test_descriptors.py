"""Tests of `zephon.descriptors`: however many datasets there are, the process opens what it may."""

from __future__ import annotations

import errno
import gc
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers import digests, make_recipe, open_small
from zephon.dataset import Dataset
from zephon.descriptors import Descriptor, Held, are_exhausted, exhausted, max_open
from zephon.errors import DataError
from zephon.readers import open_reader

NUM_PARQUET, NUM_JSONL, STEPS = 300, 40, 8

PROGRAM = """
import resource, sys
from pathlib import Path
from tests import test_descriptors
if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]),) * 2)
    print(test_descriptors.run(Path(sys.argv[1])))
"""


def run(folder: Path) -> list[str]:
    """Returns the steps of a recipe of all datasets of the folder."""
    datasets = tuple(Dataset.from_path(path.stem, str(path)) for path in sorted(folder.glob("[pj]*.*")))
    small = open_small(make_recipe(datasets=datasets, base=folder, lanes=1, global_batch_size=8))
    try:
        return digests(small, STEPS)
    finally:
        small.close()


@contextmanager
def limited(soft: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.slow
def test_340_datasets_under_a_limit_of_256_descriptors(tmp_path: Path) -> None:
    for i in range(NUM_PARQUET):
        table = pa.table({"text": [f"p{i} {k}" for k in range(8)]})
        pq.write_table(table, tmp_path / f"p{i:03}.parquet", row_group_size=2)
    for i in range(NUM_JSONL):
        lines = [json.dumps({"text": f"j{i} {k}"}) + "\n" for k in range(8)]
        (tmp_path / f"j{i:03}.jsonl").write_text("".join(lines))
    root = Path(__file__).parent.parent
    found = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path), limit],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        for limit in ("256", "8192")
    ]
    assert [(one.returncode, one.stderr) for one in found] == [(0, "")] * 2
    assert found[0].stdout == found[1].stdout


def test_the_first_opened_go_whosever_they_are(tmp_path: Path) -> None:
    """A process under load has others open too: what is counted is what these readers add."""
    table = pa.table({"text": [f"w{i}" for i in range(100)]})
    readers = []
    for name in "abcd":
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=2)
        dataset = Dataset.from_path(name, str(tmp_path / f"{name}.parquet"))
        readers.append(open_reader(dataset, base=tmp_path, cache=tmp_path / "cache", spool_bytes=1 << 30))
    gc.collect()  # what other tests left open
    before = len(os.listdir("/proc/self/fd"))
    with limited(2 * before + 100):
        for reader in readers * 2:
            found = reader.texts(np.repeat(np.arange(50), 2), np.tile([0, 1], 50), 1 << 40)
            assert found.texts == table["text"].to_pylist()
            assert len(os.listdir("/proc/self/fd")) <= before + max_open()
    for reader in readers:
        reader.close()
    assert len(os.listdir("/proc/self/fd")) <= before


def write_flat_and_lines(folder: Path) -> tuple[Dataset, ...]:
    """Writes the numbers 0..399 three times, a file for 10 of them, as ids and as lines."""
    for name in "abc":
        (folder / name).mkdir()
        (folder / f"j{name}").mkdir()
        for i in range(40):
            numbers = np.arange(10 * i, 10 * i + 10, dtype=np.uint16)
            numbers.tofile(folder / name / f"{i:02}.bin")
            np.save(folder / name / f"{i:02}.offsets.npy", np.arange(11))
            lines = [json.dumps({"text": str(n)}) + "\n" for n in numbers]
            (folder / f"j{name}" / f"{i:02}.jsonl").write_text("".join(lines))
    flat = [Dataset.from_path(name, str(folder / name), dtype="uint16") for name in "abc"]
    return (*flat, *(Dataset.from_path(f"j{name}", str(folder / f"j{name}")) for name in "abc"))


def test_threads_that_take_files_from_each_other_read_what_is_there(tmp_path: Path) -> None:
    readers = [
        open_reader(dataset, base=tmp_path, cache=tmp_path / "cache", spool_bytes=1 << 30)
        for dataset in write_flat_and_lines(tmp_path)
    ]
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for number in rng.integers(0, len(readers), 200).tolist():
            picks = rng.integers(0, 400, 12)
            reader, at = cast(Any, readers[number]), (picks // 10, picks % 10, 1 << 40)
            found = reader.tokens(*at).tokens.tolist() if number < 3 else [*map(int, reader.texts(*at).texts)]
            if found != picks.tolist():
                wrong.append((number, found, picks))

    gc.collect()  # what other tests left open
    before = len(os.listdir("/proc/self/fd"))
    with limited(2 * before + 160), ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(work, seed) for seed in range(4)]:
            done.result()
        assert wrong == []
        assert len(os.listdir("/proc/self/fd")) <= before + max_open()
    for reader in readers:
        reader.close()
    assert len(os.listdir("/proc/self/fd")) <= before


class Owner:
    def __init__(self) -> None:
        self.held: list[Held] = []

    def open(self, count: int = 1) -> None:
        held = Descriptor(os.open(os.devnull, os.O_RDONLY), count)
        held.owned_by(self)
        self.held.append(held)

    def release(self, held: Held) -> None:
        self.held.remove(held)


def test_what_has_no_owner_yet_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zephon.descriptors._open", type(vars(sys.modules[Held.__module__])["_open"])())
    owner = Owner()
    with limited(64):
        opening = Held()
        for _ in range(100):
            owner.open()
        assert len(owner.held) == max_open() - 1 == 31
        for _ in range(20):
            owner.open(2)
        assert len(owner.held) == 15
        assert all(os.fstat(held.number) for held in owner.held if isinstance(held, Descriptor))
    del opening


def test_too_many_open_files_says_the_cure(tmp_path: Path) -> None:
    assert are_exhausted(OSError(errno.EMFILE, "x"))
    assert not are_exhausted(OSError(errno.ENOENT, "x"))
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    dataset = Dataset.from_path("web", str(tmp_path / "a.jsonl"))
    reader = open_reader(dataset, base=tmp_path, cache=tmp_path / "cache", spool_bytes=1 << 30)
    last = max(map(int, os.listdir("/proc/self/fd")))
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(last)]
    try:
        with limited(max(taken) + 1), pytest.raises(DataError, match=r"Too many(.|\n)*ulimit -n 65536"):
            reader.texts(np.zeros(1, np.int64), np.zeros(1, np.int64), 1)
    finally:
        for number in taken:
            os.close(number)
    assert str(exhausted("it", OSError(errno.EMFILE, "Too many open files"))).startswith(
        "it cannot be opened"
    )
