"""A streamed order reads every record of every file once an epoch, from any position, without counting."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon import stream_order
from zephon.errors import DataError
from zephon.order import ENDLESS
from zephon.stream_order import Located, StreamOrder, split, split_chunk

Record = tuple[int, int]
"""The file, and the record in it."""


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_order, "WINDOW_RECORDS", 4)
    monkeypatch.setattr(stream_order, "INDEX_BITS", 2)


def make(files: Sequence[int], lanes: int = 1, *, seed: int = 42, name: str = "web") -> StreamOrder:
    """Returns the order of files of so many records, of ten bytes each."""
    return StreamOrder(
        seed=seed,
        name=name,
        num_lanes=lanes,
        files=[f"part-{i}.jsonl" for i in range(len(files))],
        num_bytes=10 * np.array(files, dtype=np.int64),
    )


def counting(files: Sequence[int]) -> Callable[[int, int], int]:
    """Returns what a reader knows: the records of a window."""

    def window_records(file: int, window: int) -> int:
        return max(0, min(4, files[file] - 4 * window))

    return window_records


def records(part: Located) -> list[Record]:
    places = [split_chunk(chunk) for chunk in part.addresses.chunk.tolist()]
    return [(f, 4 * w + r) for (f, w), r in zip(places, part.addresses.record.tolist(), strict=True)]


def blocks(order: StreamOrder, lane: int, files: Sequence[int], sizes: Iterator[int]) -> list[Located]:
    """Returns the blocks of the first three epochs and a little more."""
    found, at = [], 0
    while at < 3 * order.epoch_end(lane):
        found.append(order.locate_from(lane, at, next(sizes), counting(files)))
        assert found[-1].end > at
        at = found[-1].end
    return found


def line(
    order: StreamOrder, lane: int, files: Sequence[int], num_epochs: int = 3
) -> list[tuple[int, Record]]:
    """Returns (position, record) of whole epochs, read a record at a time."""
    end = num_epochs * order.epoch_end(lane)
    found = blocks(order, lane, files, iter(lambda: 1, 0))
    pairs = [(p, r) for part in found for p, r in zip(part.positions.tolist(), records(part), strict=True)]
    return [(position, record) for position, record in pairs if position < end]


FILES = st.lists(st.integers(0, 14), min_size=1, max_size=9)


@given(FILES, st.data())
def test_the_lanes_read_every_record_once_in_every_epoch(files: list[int], data: st.DataObject) -> None:
    lanes = data.draw(st.integers(1, len(files)))
    order = make(files, lanes)
    seen: Counter[Record] = Counter()
    for lane in range(lanes):
        read = line(order, lane, files)
        positions = [position for position, _ in read]
        assert positions == sorted(set(positions))
        epochs = [
            [r for p, r in read if p // order.epoch_end(lane) == epoch] for epoch in range(3)
        ]  # every epoch of a lane is of the same files
        assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
        seen.update(record for _, record in read)
    assert seen == {(file, record): 3 for file, count in enumerate(files) for record in range(count)}


@given(FILES, st.lists(st.integers(1, 20), min_size=1, max_size=5), st.data())
def test_blocks_of_any_size_and_start_give_the_same(
    files: list[int], sizes: list[int], data: st.DataObject
) -> None:
    order = make(files, data.draw(st.integers(1, len(files))))
    lane = data.draw(st.integers(0, order.num_lanes - 1))
    whole = line(order, lane, files)
    turns = iter(lambda: sizes[0], 0) if len(sizes) == 1 else (sizes[i % len(sizes)] for i in range(10**6))
    found = blocks(order, lane, files, turns)
    pairs = [(p, r) for part in found for p, r in zip(part.positions.tolist(), records(part), strict=True)]
    assert pairs[: len(whole)] == whole
    if whole:
        first = data.draw(st.integers(0, len(whole) - 1))
        for start in (whole[first][0], whole[first - 1][0] + 1 if first else 0):  # also from within a gap
            part = order.locate_from(lane, start, 1, counting(files))
            assert (part.positions.tolist(), records(part)) == ([whole[first][0]], [whole[first][1]])
        some = data.draw(st.lists(st.sampled_from(whole), min_size=1, max_size=6, unique=True).map(sorted))
        part = pickle.loads(pickle.dumps(order)).locate_at(
            lane, np.array([p for p, _ in some]), counting(files)
        )
        assert list(zip(part.positions.tolist(), records(part), strict=True)) == some


def test_a_position_says_where_it_stands() -> None:
    order = make([9, 5, 0, 6], 2)
    for lane in range(2):
        for position, (file, record) in line(order, lane, [9, 5, 0, 6]):
            turn, window, index = split(position)
            assert turn << 40 | window << 2 | index == position
            assert (order.file_at(lane, turn), window) == (file, record // 4)
            size = min(4, [9, 5, 0, 6][file] - 4 * window)
            assert int(order.permuted(lane, turn, window, size)[index]) == record % 4


def test_a_position_is_what_states_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Edit only when you mean to break resume."""
    monkeypatch.undo()
    assert split((7 << 40) | (5 << 10) | 1023) == (7, 5, 1023)
    assert split(((7 << 40) | (5 << 10) | 1023) + 1) == (7, 6, 0)
    assert split_chunk((3 << 32) | 9) == (3, 9)
    assert (stream_order.WINDOW_RECORDS, make([2000, 1]).epoch_end(0)) == (1024, 2 << 40)


def test_the_order_is_golden() -> None:
    """Edit only when you mean to break resume."""
    files = [6, 3, 5, 2]
    order = make(files, 2)
    text = [" ".join(f"{f}.{r}" for _, (f, r) in line(order, lane, files, 2)) for lane in range(2)]
    assert text == [
        "2.1 2.3 2.2 2.0 2.4 1.2 1.1 1.0 2.1 2.0 2.3 2.2 2.4 1.2 1.1 1.0",
        "3.1 3.0 0.0 0.2 0.1 0.3 0.4 0.5 0.2 0.1 0.3 0.0 0.4 0.5 3.0 3.1",
    ]
    assert order.permuted(0, 5, 3, 8).tolist() == [4, 5, 3, 6, 0, 1, 7, 2]


def test_files_go_to_the_lane_with_the_fewest_bytes() -> None:
    files = [1, 1, 1, 1, 100, 1, 1, 1]
    order = make(files, 2)
    taken = [{record[0] for _, record in line(order, lane, files)} for lane in range(2)]
    assert taken[0] | taken[1] == set(range(8))
    alone = next(lane for lane in taken if 4 in lane)
    assert len(alone) < 8 - len(alone)


def test_every_lane_has_a_file_though_all_are_empty() -> None:
    order = make([0] * 5, 5)
    assert sorted(order.file_at(lane, 0) for lane in range(5)) == list(range(5))
    assert [order.epoch_end(lane) for lane in range(5)] == [1 << 40] * 5


def test_files_are_read_in_another_order_in_every_epoch() -> None:
    files = [1] * 5
    order = make(files)
    read = [record for _, (record, _) in line(order, 0, files)]
    assert len({tuple(read[i : i + 5]) for i in (0, 5, 10)}) > 1
    windows = make([4])
    orders = {tuple(windows.permuted(0, turn, 0, 4).tolist()) for turn in range(20)}
    assert len(orders) > 5


def test_seed_name_and_the_names_of_the_files_decide() -> None:
    def order(**names: object) -> list[int]:
        given: dict[str, object] = {"seed": 1, "name": "web", "files": ["a"], **names}
        made = StreamOrder(num_lanes=1, num_bytes=np.array([9]), **given)  # type: ignore[arg-type]
        return list(made.permuted(0, 0, 0, 100).tolist())

    assert order() == order()
    assert len({tuple(order(**change)) for change in ({}, {"seed": 2}, {"name": "x"}, {"files": ["b"]})}) == 4


def test_an_epoch_without_records_ends_the_search() -> None:
    order = make([0, 0, 0])
    first = order.locate_from(0, 0, 10, counting([0, 0, 0]))
    assert (records(first), first.end) == ([], order.epoch_end(0))
    assert order.locate_from(0, first.end, 10, counting([0, 0, 0])).end == 2 * order.epoch_end(0)
    rest = order.locate_from(0, 1 << 40, 10, counting([0, 0, 0]))  # from its second file on
    assert (records(rest), rest.end) == ([], 2 * order.epoch_end(0))  # a whole epoch was seen


def test_a_file_is_asked_for_no_window_that_cannot_be() -> None:
    asked: list[tuple[int, int]] = []

    def window_records(file: int, window: int) -> int:
        asked.append((file, window))
        return [4, 4, 1, 0][window]

    make([9]).locate_from(0, 0, 10, window_records)
    assert asked == [(0, 0), (0, 1), (0, 2), (0, 0)]


def test_fewer_files_than_lanes_are_refused() -> None:
    with pytest.raises(DataError, match=r"3 files, 8 lanes(.|\n)*cure: set lanes to 3 or fewer"):
        make([5, 5, 5], 8)


def test_a_lane_is_a_group_without_an_end() -> None:
    order = make([5, 5, 5], 2)
    assert [order.group(lane) for lane in range(2)] == [
        (range(lane, lane + 1), order.epoch_end(lane)) for lane in range(2)
    ]
    assert order.end(1) == order.period == ENDLESS
    assert sum(order.epoch_end(lane) for lane in range(2)) == 3 << 40
