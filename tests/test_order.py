"""The order covers every epoch once, is dealt evenly to the lanes, and any part of it can be had at once."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon import deal as deal_module
from zephon import order as order_module
from zephon.bits import key
from zephon.deal import deal
from zephon.order import Order, num_groups

Address = tuple[int, int]


def set_small_rules(patch: pytest.MonkeyPatch) -> None:
    """Allows groups of 2 chunks and 3 documents a lane, and windows of 2 chunks."""
    patch.setattr(order_module, "GROUP_CHUNKS", 2)
    patch.setattr(order_module, "GROUP_DOCUMENTS", 3)
    patch.setattr(order_module, "WINDOW_CHUNKS", 2)


@pytest.fixture
def small_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    set_small_rules(monkeypatch)


def make(
    documents: Sequence[int], lanes: int = 1, *, seed: int = 42, name: str = "web", size: int = 100
) -> Order:
    """Returns the order of chunks with these numbers of documents, each of `size` bytes a document."""
    counts = np.array(documents, dtype=np.int64)
    return Order(seed=seed, name=name, num_lanes=lanes, num_documents=counts, num_bytes=counts * size)


def located(order: Order, lane: int, start: int, count: int) -> list[Address]:
    found = order.locate(lane, start, count)
    assert found.chunk.dtype == found.record.dtype == np.int64
    return list(zip(found.chunk.tolist(), found.record.tolist(), strict=True))


def everything(documents: Sequence[int]) -> list[Address]:
    return [(chunk, record) for chunk, count in enumerate(documents) for record in range(count)]


def dealt_out(order: Order, group: int, epochs: int) -> Iterator[list[Address]]:
    """Yields each epoch of a group, put together from its lanes in turn."""
    g = order.group_lanes
    members, total = order.group(group * g)
    need = -(-epochs * total // g)
    lanes = [located(order, lane, 0, need) for lane in members]
    line = [lanes[i % g][i // g] for i in range(epochs * total)]
    for epoch in range(epochs):
        yield line[epoch * total : (epoch + 1) * total]


CHUNKS = st.lists(st.integers(1, 9), min_size=1, max_size=24)
LANES = st.sampled_from([1, 2, 3, 4, 6, 8, 12])


@settings(max_examples=60)
@given(CHUNKS, LANES)
def test_every_epoch_of_the_groups_covers_every_document_once(documents: list[int], lanes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        set_small_rules(patch)
        patch.setattr(order_module, "PAGE_POSITIONS", 1)
        order = make(documents, lanes)
        groups = [list(dealt_out(order, group, 3)) for group in range(order.num_groups)]
    for epoch in range(3):
        covered = [address for group in groups for address in group[epoch]]
        assert sorted(covered) == everything(documents)
    for group in groups:
        sets = [set(epoch) for epoch in group]
        assert sets[0] == sets[1] == sets[2]  # a group reads its own chunks only


@settings(max_examples=60)
@given(CHUNKS, LANES, st.data())
def test_any_position_is_what_reading_from_the_start_gives(
    documents: list[int], lanes: int, data: st.DataObject
) -> None:
    lane = data.draw(st.integers(0, lanes - 1))
    order = make(documents, lanes)
    line = located(order, lane, 0, 60)
    start = data.draw(st.integers(0, 59))
    count = data.draw(st.integers(1, 60 - start))
    assert located(order, lane, start, count) == line[start : start + count]
    some = data.draw(st.lists(st.integers(0, 59), min_size=1, unique=True).map(sorted))
    found = make(documents, lanes).locate_at(lane, np.array(some, dtype=np.int64))
    assert list(zip(found.chunk.tolist(), found.record.tolist(), strict=True)) == [line[i] for i in some]


def test_a_far_position_costs_nothing_that_came_before() -> None:
    order = make([1000] * 40, 4)
    far = 10**12
    assert located(order, 3, far, 5) == located(order, 3, far - 3, 8)[3:]


def test_epochs_differ_and_come_again() -> None:
    order = make([5, 5, 5, 5])
    epochs = [tuple(epoch) for epoch in dealt_out(order, 0, 20)]
    assert len(set(epochs)) == 20
    assert [tuple(epoch) for epoch in dealt_out(make([5, 5, 5, 5]), 0, 20)] == epochs


def test_seed_and_name_decide_and_nothing_else() -> None:
    base = located(make([50]), 0, 0, 50)
    assert located(make([50], seed=43), 0, 0, 50) != base
    assert located(make([50], name="code"), 0, 0, 50) != base
    assert located(make([50], size=7), 0, 0, 50) == base  # one group: bytes do not matter


def test_lanes_stride_one_order_where_the_dataset_is_small() -> None:
    whole = located(make([7, 6]), 0, 0, 40)
    for lanes in (2, 4, 8):
        order = make([7, 6], lanes)
        assert (order.num_groups, order.group_lanes) == (1, lanes)
        for lane in range(lanes):
            assert located(order, lane, 0, 5) == whole[lane : 5 * lanes : lanes]


@pytest.mark.parametrize("lanes", [1, 3])
def test_one_document_is_read_again_and_again(lanes: int) -> None:
    order = make([1], lanes)
    assert located(order, lanes - 1, 0, 9) == [(0, 0)] * 9


# Groups -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lanes", "chunks", "documents", "expected"),
    [
        (8, 128, 1000, 8),  # 16 chunks and 16,000 documents for each lane
        (8, 127, 1000, 4),  # one chunk too few for 8 groups
        (8, 16, 1000, 1),
        (8, 32, 1000, 2),
        (8, 128, 62, 1),  # 7,936 documents: fewer than 1,000 for each of 8 lanes
        (8, 128, 63, 8),
        (6, 96, 1000, 6),
        (6, 80, 1000, 3),  # 5 does not divide 6
        (1, 500, 1000, 1),
        (7, 111, 1000, 1),
        (7, 112, 1000, 7),
    ],
)
def test_there_are_as_many_groups_as_leave_each_enough(
    lanes: int, chunks: int, documents: int, expected: int
) -> None:
    order = make([documents] * chunks, lanes)
    assert order.num_groups == expected
    assert order.group_lanes * expected == lanes
    assert num_groups(lanes, np.full(chunks, documents)) == expected


@settings(max_examples=150)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.sampled_from([1, 2, 4, 6, 12]), st.data())
def test_the_groups_are_the_most_that_the_rule_allows(
    documents: list[int], lanes: int, data: st.DataObject
) -> None:
    counts = np.array(documents, dtype=np.int64)
    sizes = np.array([data.draw(st.integers(1, 1000)) for _ in documents], dtype=np.int64)
    with pytest.MonkeyPatch.context() as patch:
        set_small_rules(patch)
        order = Order(seed=1, name="x", num_lanes=lanes, num_documents=counts, num_bytes=sizes)

    def enough(count: int) -> bool:
        dealt = deal(count, key("deal", 1, "x"), sizes)
        return bool(dealt.num_chunks().min() >= 2 and dealt.sums(counts).min() >= 3 * (lanes // count))

    allowed = [c for c in range(1, lanes + 1) if lanes % c == 0 and (c == 1 or enough(c))]
    assert order.num_groups == max(allowed)


@pytest.mark.usefixtures("small_rules")
def test_a_lane_knows_the_lanes_of_its_group_and_what_they_share() -> None:
    order = make([4, 5, 6, 7] * 2, 6)
    shared = {order.group(lane) for lane in range(6)}
    assert order.num_groups == len(shared) == 3
    assert sorted(lane for lanes, _ in shared for lane in lanes) == list(range(6))
    assert sum(num_documents for _, num_documents in shared) == 44
    for lane in range(6):
        lanes, num_documents = order.group(lane)
        assert lane in lanes
        read = {address for member in lanes for address in located(order, member, 0, num_documents)}
        assert len(read) == num_documents


def test_an_order_of_runs_keeps_the_rules_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deal_module, "DEAL_RUNS", 200)
    order = make([300] * 1000, 8)
    assert order.num_groups == 8
    groups = [set(order.locate(lane, 0, order.group(lane)[1]).chunk.tolist()) for lane in range(8)]
    assert all(len(chunks) >= 16 for chunks in groups)
    assert sorted(chunk for chunks in groups for chunk in chunks) == list(range(1000))
    assert located(pickle.loads(pickle.dumps(order)), 3, 5, 90) == located(order, 3, 5, 90)


def test_columns_of_any_width_and_from_any_memory_give_one_order(tmp_path: Path) -> None:
    counts = np.full(64, 1000) + np.arange(64)
    expected = [located(make(counts.tolist(), 4, size=3), lane, 7, 40) for lane in range(4)]
    (counts * 3).astype(np.int32).tofile(tmp_path / "bytes")
    sizes = np.memmap(tmp_path / "bytes", dtype=np.int32, mode="r")
    order = Order(
        seed=42, name="web", num_lanes=4, num_documents=counts.astype(np.uint16), num_bytes=sizes
    )  # fmt: skip
    assert [located(order, lane, 7, 40) for lane in range(4)] == expected
    assert [located(pickle.loads(pickle.dumps(order)), lane, 7, 40) for lane in range(4)] == expected


@pytest.mark.usefixtures("small_rules")
def test_a_lane_reads_the_chunks_of_its_group_only() -> None:
    order = make([4] * 12, 4)
    assert order.num_groups == 4
    read = [{chunk for chunk, _ in located(order, lane, 0, 100)} for lane in range(4)]
    assert sorted(chunk for chunks in read for chunk in chunks) == list(range(12))


# Windows ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_rules")
def test_a_window_reads_two_chunks_at_a_time() -> None:
    order = make([5] * 8)
    for epoch in dealt_out(order, 0, 6):
        windows = [{chunk for chunk, _ in epoch[i : i + 10]} for i in range(0, 40, 10)]
        assert [len(chunks) for chunks in windows] == [2, 2, 2, 2]
        assert set().union(*windows) == set(range(8))


@pytest.mark.usefixtures("small_rules")
def test_the_chunks_of_a_window_change_from_epoch_to_epoch() -> None:
    order = make([5] * 8)
    firsts = {frozenset(chunk for chunk, _ in epoch[:10]) for epoch in dealt_out(order, 0, 12)}
    assert len(firsts) > 6


@pytest.mark.parametrize("name", ["PAGE_POSITIONS", "CACHED_DOCUMENTS", "SMALL_GROUP"])
@pytest.mark.parametrize("value", [1, 1 << 30])
@pytest.mark.usefixtures("small_rules")
def test_caches_and_pages_do_not_change_the_order(
    name: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = ([5] * 8, [7], [1, 9, 2, 4, 4], [30] * 30)
    before = [[located(make(shape, 4), lane, 3, 90) for lane in range(4)] for shape in shapes]
    monkeypatch.setattr(order_module, name, value)
    after = [[located(make(shape, 4), lane, 3, 90) for lane in range(4)] for shape in shapes]
    assert after == before


def test_an_order_travels_to_worker_processes() -> None:
    order = make([300] * 40, 4)
    before = located(order, 2, 100, 500)
    assert located(pickle.loads(pickle.dumps(order)), 2, 100, 500) == before


# Ends and file order ----------------------------------------------------------------------------------------


@given(
    documents=st.lists(st.integers(1, 9), min_size=1, max_size=9),
    lanes=st.sampled_from([1, 2, 3, 8]),
    epochs=st.integers(1, 3),
    identity=st.booleans(),
)
def test_the_lanes_end_when_every_document_has_come_so_often(
    documents: list[int], lanes: int, epochs: int, identity: bool
) -> None:
    counts = np.array(documents)
    order = Order(
        seed=1, name="x", num_lanes=lanes, num_documents=counts, num_bytes=counts,
        order="identity" if identity else "shuffled", max_epochs=epochs,
    )  # fmt: skip
    came: list[tuple[int, int]] = []
    for lane in range(lanes):
        if count := order.end(lane):
            found = order.locate(lane, 0, count)
            came += zip(found.chunk.tolist(), found.record.tolist(), strict=True)
    every = [(chunk, record) for chunk, count in enumerate(documents) for record in range(count)]
    assert sorted(came) == sorted(every * epochs)
    assert max(order.end(0) - order.end(lane) for lane in range(lanes)) <= 1


def test_an_end_counts_the_documents_of_the_lanes_group() -> None:
    counts = np.full(64, 1000)
    order = Order(seed=1, name="x", num_lanes=4, num_documents=counts, num_bytes=counts, max_epochs=2)
    assert order.num_groups == 4
    assert [order.end(lane) for lane in range(4)] == [2 * order.group(lane)[1] for lane in range(4)]
    endless = Order(seed=1, name="x", num_lanes=4, num_documents=counts, num_bytes=counts)
    assert endless.end(3) == order_module.ENDLESS


def test_the_order_of_the_files_is_dealt_to_the_lanes_in_turn() -> None:
    counts = np.array([2, 5, 1])
    every = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (2, 0)]
    order = Order(seed=9, name="x", num_lanes=3, num_documents=counts, num_bytes=counts, order="identity")
    for lane in range(3):
        found = order.locate_at(lane, np.array([0, 1, 2, 7, 1000]))
        pairs = list(zip(found.chunk.tolist(), found.record.tolist(), strict=True))
        assert pairs == [every[(i * 3 + lane) % 8] for i in (0, 1, 2, 7, 1000)]
    assert pickle.loads(pickle.dumps(order)).locate(1, 0, 3).record.tolist() == [1, 2, 0]
    assert order.group(2) == (range(3), 8)


# Sorted orders ----------------------------------------------------------------------------------------------


def make_ranked(documents: Sequence[int], ranked: Sequence[int], lanes: int, **options: int) -> Order:
    counts = np.array(documents)
    return Order(
        seed=9, name="x", num_lanes=lanes, num_documents=counts, num_bytes=counts,
        order="sorted:score", ranked=np.array(ranked, dtype=np.int64), **options,
    )  # fmt: skip


def test_ranked_documents_are_dealt_to_the_lanes_in_turn_and_come_again() -> None:
    every = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (2, 0)]
    ranked = [7, 0, 6, 1, 5, 2, 4, 3]
    order = make_ranked([2, 5, 1], ranked, 3)
    for lane in range(3):
        assert located(order, lane, 0, 20) == [every[ranked[(i * 3 + lane) % 8]] for i in range(20)]
    assert located(pickle.loads(pickle.dumps(order)), 1, 0, 3) == [(0, 0), (1, 3), (1, 1)]
    assert (order.num_groups, order.group(2), order.period) == (1, (range(3), 8), 8)
    assert order.end(0) == order_module.ENDLESS


@given(st.permutations(range(12)), st.sampled_from([1, 2, 5]), st.integers(1, 3))
def test_ranked_documents_end_as_often_as_asked(ranked: list[int], lanes: int, epochs: int) -> None:
    order = make_ranked([3, 4, 5], ranked, lanes, max_epochs=epochs)
    lines = [located(order, lane, 0, order.end(lane)) for lane in range(lanes)]
    every = everything([3, 4, 5])
    line = [lines[i % lanes][i // lanes] for i in range(12 * epochs)]
    assert line == [every[number] for number in ranked] * epochs
    assert order.period == order_module.ENDLESS


def test_a_rank_in_file_order_is_the_order_of_the_files() -> None:
    counts = np.array([2, 5, 1])
    files = Order(seed=9, name="x", num_lanes=3, num_documents=counts, num_bytes=counts, order="identity")
    ranked = make_ranked([2, 5, 1], range(8), 3)
    assert [located(ranked, lane, 0, 20) for lane in range(3)] == [
        located(files, lane, 0, 20) for lane in range(3)
    ]
    assert ranked.period == files.period == 8


def test_a_rank_must_fit() -> None:
    with pytest.raises(ValueError, match=r"`ranked` must have 8 documents, got \(7,\)"):
        make_ranked([2, 5, 1], range(7), 3)
    counts = np.array([2, 5, 1])
    with pytest.raises(ValueError, match="`ranked` must be given for the order 'sorted:COLUMN' only"):
        Order(seed=9, name="x", num_lanes=1, num_documents=counts, num_bytes=counts, order="sorted:score")
    with pytest.raises(ValueError, match="got 'shuffled'"):
        Order(seed=9, name="x", num_lanes=1, num_documents=counts, num_bytes=counts, ranked=np.arange(8))
