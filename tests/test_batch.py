"""Batches against a slow, obvious reimplementation, and digests against their definition."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon import batch as batch_module
from zephon.batch import IGNORE, Batch, BatchPlan, assemble, digest, step_digest
from zephon.lane import Row
from zephon.lanestate import LaneState
from zephon.prepare import Block
from zephon.stream import Run

DATASETS = ("web", "code")


def block_of(lengths: Sequence[int], first: int = 0) -> Block:
    """Returns a block whose tokens are first, first + 1, ...; document i stands at position 10 * i."""
    total = sum(lengths)
    return Block(
        np.arange(first, first + total, dtype=np.uint32),
        np.array(lengths, dtype=np.int64),
        10 * np.arange(len(lengths), dtype=np.int64),
        10 * len(lengths),
        [],
    )


def run_of(block: Block, first: int, last: int, skip: int = 0, cut: int = 0, dataset: int = 0) -> Run:
    lengths = block.lengths.tolist()
    num_tokens = sum(lengths[first:last]) - skip - cut
    return Run(dataset, block, first, last, skip, cut, sum(lengths[:first]) + skip, num_tokens)


def row_of(runs: Sequence[Run], lane: int = 0, index: int = 0) -> Row:
    return Row(lane, index, runs, LaneState())


def plan(seq_len: int, *, mask: bool = True, pad_id: int = 0) -> BatchPlan:
    return BatchPlan(seq_len=seq_len, datasets=DATASETS, mask_document_ends=mask, pad_id=pad_id)


def slow(rows: Sequence[Row], seq_len: int, *, mask: bool, pad_id: int) -> dict[str, Any]:
    """Returns what a batch should hold, written down token by token."""
    columns: dict[str, Any] = {
        name: [] for name in ("inputs", "labels", "positions", "segment_ids", "pieces")
    }
    columns["tokens"] = [[0] * len(rows) for _ in DATASETS]
    for r, row in enumerate(rows):
        inputs: list[int] = []
        positions: list[int] = []
        segments: list[int] = []
        for run in row.runs:
            ends = np.cumsum(run.block.lengths).tolist()
            for document in range(run.first, run.last):
                begin = ends[document] - int(run.block.lengths[document])
                offset = run.skip if document == run.first else 0
                end = ends[document] - (run.cut if document == run.last - 1 else 0)
                tokens = run.block.tokens[begin + offset : end].tolist()
                inputs += tokens
                positions += range(len(tokens))
                segments += [max(segments, default=0) + 1] * len(tokens)
                place = int(run.block.positions[document])
                columns["pieces"].append((r, run.dataset, place, offset, len(tokens)))
                columns["tokens"][run.dataset][r] += len(tokens)
        num_padding = seq_len - len(inputs)
        inputs += [pad_id] * num_padding
        positions += [0] * num_padding
        segments += [0] * num_padding
        labels = []
        for i in range(seq_len):
            last = i == seq_len - 1 or segments[i] == 0 or segments[i + 1] == 0
            document_end = not last and segments[i] != segments[i + 1]
            labels.append(IGNORE if last or (mask and document_end) else inputs[i + 1])
        for name, column in zip(
            ("inputs", "labels", "positions", "segment_ids"),
            (inputs, labels, positions, segments),
            strict=True,
        ):
            columns[name].append(column)
    return columns


@st.composite
def rows_of(draw: st.DrawFn, seq_len: int) -> list[Row]:
    rows = []
    for r in range(draw(st.integers(1, 4))):
        runs: list[Run] = []
        room = seq_len
        while room and (not runs or draw(st.integers(0, 3))):
            lengths = draw(st.lists(st.integers(1, seq_len + 2), min_size=1, max_size=4))
            first = draw(st.integers(0, len(lengths) - 1))
            last = draw(st.integers(first + 1, len(lengths)))
            total = sum(lengths[first:last])
            skip = draw(st.integers(0, lengths[first] - 1))
            cut = draw(st.integers(0, lengths[last - 1] - 1 - (skip if last == first + 1 else 0)))
            if total - skip - cut > room:
                over = total - skip - room  # cut to fit, or take a piece of the first document alone
                last, cut = (
                    (last, over)
                    if over < lengths[last - 1]
                    else (first + 1, max(0, lengths[first] - skip - room))
                )
                if last == first + 1 and lengths[first] - skip - cut > room:
                    continue
            dataset = draw(st.integers(0, 1))
            runs.append(run_of(block_of(lengths, draw(st.integers(0, 999))), first, last, skip, cut, dataset))
            room -= runs[-1].num_tokens
        rows.append(row_of(runs, lane=r, index=7))
    return rows


@settings(max_examples=200)
@given(
    st.integers(1, 16).flatmap(lambda n: st.tuples(st.just(n), rows_of(n))),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from([1, 20, 1 << 14]),
)
def test_a_batch_is_what_writing_it_down_gives(
    made: tuple[int, list[Row]], mask: bool, pad_id: int, together: int
) -> None:
    seq_len, rows = made
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_module, "GROUP_TOKENS", together)
        batch = assemble(rows, 5, plan(seq_len, mask=mask, pad_id=pad_id))
    expected = slow(rows, seq_len, mask=mask, pad_id=pad_id)
    for name in ("inputs", "labels", "positions", "segment_ids"):
        array = getattr(batch, name)
        assert array.dtype == np.int64
        assert array.shape == (len(rows), seq_len)
        assert array.tolist() == expected[name], name
    pieces = batch.pieces
    columns = (pieces.row, pieces.dataset, pieces.position, pieces.offset, pieces.length)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected["pieces"]
    assert batch.tokens.tolist() == expected["tokens"]
    assert (batch.step, batch.lanes.tolist()) == (5, [row.lane for row in rows])
    assert batch.rows.tolist() == [7] * len(rows)
    assert repr(batch).startswith(f"Batch of step 5: {len(rows)} rows of {seq_len} tokens; ")


# By hand ----------------------------------------------------------------------------------------------------


def test_two_documents_and_padding() -> None:
    batch = assemble([row_of([run_of(block_of([3, 2], 1), 0, 2)])], 0, plan(8, pad_id=9))
    assert batch.inputs.tolist() == [[1, 2, 3, 4, 5, 9, 9, 9]]
    assert batch.labels.tolist() == [[2, 3, -100, 5, -100, -100, -100, -100]]
    assert batch.positions.tolist() == [[0, 1, 2, 0, 1, 0, 0, 0]]
    assert batch.segment_ids.tolist() == [[1, 1, 1, 2, 2, 0, 0, 0]]


def test_labels_may_cross_document_ends_but_never_reach_padding() -> None:
    batch = assemble([row_of([run_of(block_of([3, 2], 1), 0, 2)])], 0, plan(8, mask=False, pad_id=9))
    assert batch.labels.tolist() == [[2, 3, 4, 5, -100, -100, -100, -100]]


def test_the_last_label_of_a_row_is_ignored_with_any_mask() -> None:
    for mask in (True, False):
        batch = assemble([row_of([run_of(block_of([9], 1), 0, 1, skip=2, cut=3)])], 0, plan(4, mask=mask))
        assert batch.inputs.tolist() == [[3, 4, 5, 6]]
        assert batch.labels.tolist() == [[4, 5, 6, -100]]
        assert batch.positions.tolist() == [[0, 1, 2, 3]]
        assert batch.pieces.offset.tolist() == [2]


def test_a_token_that_is_the_end_token_is_no_boundary() -> None:
    """Boundaries come from metadata: the same ids with other lengths have other boundaries."""
    one = assemble([row_of([run_of(block_of([4]), 0, 1)])], 0, plan(4))
    two = assemble([row_of([run_of(block_of([2, 2]), 0, 2)])], 0, plan(4))
    assert one.inputs.tolist() == two.inputs.tolist()
    assert one.segment_ids.tolist() == [[1, 1, 1, 1]]
    assert two.segment_ids.tolist() == [[1, 1, 2, 2]]


def test_one_document_does_not_change_the_other() -> None:
    def second_of(first: int) -> list[Any]:
        runs = [run_of(block_of([3], first), 0, 1), run_of(block_of([5], 50), 0, 1)]
        batch = assemble([row_of(runs)], 0, plan(8))
        return [getattr(batch, n)[0, 3:].tolist() for n in ("inputs", "labels", "positions", "segment_ids")]

    assert second_of(1) == second_of(400)


def test_a_row_that_is_too_full_is_refused() -> None:
    with pytest.raises(ValueError, match="a packer gave a row of 5 tokens, over 4"):
        assemble([row_of([run_of(block_of([5]), 0, 1)])], 0, plan(4))


def test_a_row_without_pieces_is_all_padding() -> None:
    batch = assemble([row_of([])], 0, plan(3, pad_id=9))
    assert (batch.inputs.tolist(), batch.labels.tolist()) == ([[9] * 3], [[IGNORE] * 3])
    assert (batch.segment_ids.tolist(), batch.tokens.tolist()) == ([[0] * 3], [[0], [0]])


def test_tokens_by_dataset() -> None:
    runs = [run_of(block_of([3]), 0, 1), run_of(block_of([2]), 0, 1, dataset=1)]
    batch = assemble([row_of(runs), row_of(runs[:1])], 0, plan(5))
    assert {name: column.tolist() for name, column in batch.tokens_by_dataset.items()} == {
        "web": [3, 3],
        "code": [2, 0],
    }


def test_arrays_are_made_where_the_plan_says() -> None:
    made: list[tuple[int, ...]] = []

    def note(shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.int64]]:
        made.append(shape)
        return np.empty(shape, dtype=np.int64)

    noting = BatchPlan(seq_len=3, datasets=DATASETS, mask_document_ends=True, pad_id=0, new_array=note)
    batch = assemble([row_of([run_of(block_of([3]), 0, 1)])], 0, noting)
    assert made == [(4, 1, 3)]
    assert batch.inputs.base is batch.labels.base is not None


def test_tensors_share_the_memory_of_the_arrays() -> None:
    torch = pytest.importorskip("torch")
    batch = assemble([row_of([run_of(block_of([3]), 0, 1)])], 0, plan(3))
    tensors = batch.torch()
    assert list(tensors) == ["inputs", "labels", "positions", "segment_ids"]
    assert {tensor.dtype for tensor in tensors.values()} == {torch.int64}
    batch.inputs[0, 0] = 77
    assert int(tensors["inputs"][0, 0]) == 77


# Digests ----------------------------------------------------------------------------------------------------


def example(**fields: Any) -> Batch:
    rows = [row_of([run_of(block_of([3, 2], 1), 0, 2)], 0, 4), row_of([run_of(block_of([5], 8), 0, 1)], 3, 4)]
    batch = assemble(rows, 2, plan(6))
    return Batch(**{name: getattr(batch, name) for name in Batch.__slots__} | fields)


def test_a_row_s_digest_is_over_its_four_arrays() -> None:
    batch = example()
    expected = []
    for i in range(2):
        sha = hashlib.sha256()
        for name in ("inputs", "labels", "positions", "segment_ids"):
            sha.update(b"".join(int(v).to_bytes(4, "little", signed=True) for v in getattr(batch, name)[i]))
        expected.append((int(batch.lanes[i]), 4, sha.hexdigest()))
    assert digest(batch) == expected


@pytest.mark.parametrize("name", ["inputs", "labels", "positions", "segment_ids"])
def test_every_element_is_in_the_digest(name: str) -> None:
    for place in [(0, 0), (0, 5), (1, 3)]:
        array = getattr(example(), name).copy()
        array[place] += 1
        differs = [a != b for a, b in zip(digest(example()), digest(example(**{name: array})), strict=True)]
        assert differs == [place[0] == 0, place[0] == 1]


def test_extras_are_in_the_digest_by_name_type_and_shape() -> None:
    ones = np.ones((2, 2), np.int32)
    cases = [
        {},
        {"a": ones},
        {"b": ones},
        {"a": ones.astype(np.int16)},
        {"a": ones.reshape(2, 1, 2)},
        {"a": ones * 2},
        {"a": ones, "b": ones},
    ]
    assert len({tuple(digest(example(extras=extras))) for extras in cases}) == len(cases)
    big_endian = {"a": ones.astype(">i4")}
    assert digest(example(extras=big_endian)) == digest(example(extras={"a": ones}))
    turned = {"b": ones, "a": ones}
    assert digest(example(extras=turned)) == digest(example(extras={"a": ones, "b": ones}))
    fortran = {"a": np.asfortranarray(np.arange(8).reshape(2, 2, 2))}
    assert digest(example(extras=fortran)) == digest(example(extras={"a": np.arange(8).reshape(2, 2, 2)}))


def test_a_step_s_digest_is_over_its_rows_in_order() -> None:
    rows = [(1, 0, "bb" * 32), (0, 1, "aa" * 32), (0, 0, "cc" * 32)]
    raw = bytes.fromhex("cc" * 32 + "aa" * 32 + "bb" * 32)
    assert step_digest(rows) == step_digest(reversed(rows)) == hashlib.sha256(raw).hexdigest()


def test_a_row_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="must hold every \\(lane, row\\) once, got one twice"):
        step_digest([(0, 0, "aa" * 32), (0, 0, "bb" * 32)])
