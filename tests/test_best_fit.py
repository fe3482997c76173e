"""Best-fit cuts no document that fits a row, loses no token, and lets nothing wait for long."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import loaders, make_recipe, open_small, read, sized, take_steps, tokens_of
from zephon.batch import Batch
from zephon.best_fit import BestFit
from zephon.errors import DataError
from zephon.opened import Opened
from zephon.packing import Packing
from zephon.prepare import Block
from zephon.stages import Constant, Stages
from zephon.stream import Run
from zephon.testing import check_packer


def opened_with(documents: Sequence[str], *, seq_len: int = 16, **fields: Any) -> Opened:
    return open_small(
        make_recipe({"a": documents}, kind="best_fit", seq_len=seq_len, **{"global_batch_size": 1} | fields)
    )


def run_rows(opened: Opened, rows: int) -> list[Batch]:
    with loaders(opened) as ranks:
        return [batch for (batch,) in take_steps(ranks, rows)]


def pieces_of(batches: Sequence[Batch]) -> list[tuple[int, int, int, list[int]]]:
    """Returns (dataset, position, offset, tokens) of every piece, in the order of the rows."""
    found = []
    for batch in batches:
        pieces = batch.pieces
        for i in range(len(pieces.row)):
            row, length = int(pieces.row[i]), int(pieces.length[i])
            begin = int(pieces.length[:i][pieces.row[:i] == row].sum())
            tokens = batch.inputs[row, begin : begin + length].tolist()
            found.append((int(pieces.dataset[i]), int(pieces.position[i]), int(pieces.offset[i]), tokens))
    return found


# Rows -------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=9), st.integers(1, 24), st.integers(1, 9), st.booleans()
)
def test_documents_that_fit_are_whole_and_none_is_lost(
    lengths: list[int], seq_len: int, pool: int, eos: bool
) -> None:
    options = {"pool_documents": pool}
    opened = opened_with(sized(7, lengths), seq_len=seq_len, eos=eos, options=options)
    found = pieces_of(run_rows(opened, 40))
    at: dict[int, list[tuple[int, list[int]]]] = {}
    for _, position, offset, tokens in found:
        at.setdefault(position, []).append((offset, tokens))
    complete = max(at) - 2 * pool  # the newest may have parts in the pool still
    for position, parts in at.items():
        parts.sort()
        document = tokens_of(opened, 0, 0, position)
        assert all(document[offset : offset + len(tokens)] == tokens for offset, tokens in parts)
        if len(document) <= seq_len:
            assert parts == [(0, document)]
        else:
            assert all(len(tokens) <= seq_len for _, tokens in parts)
        if position < complete:
            assert sum(len(tokens) for _, tokens in parts) == len(document)
    assert all(position in at for position in range(max(0, complete)))


@pytest.mark.parametrize("edge", [-1, 0, 1])
@pytest.mark.parametrize("times", [1, 2])
def test_documents_about_as_long_as_the_row(edge: int, times: int) -> None:
    seq_len = 8
    document = "abcdefghijklmnopqrstuvwxyz"[: times * seq_len + edge]
    rows = run_rows(opened_with([document], seq_len=seq_len, eos=False, options={"pool_documents": 1}), 6)
    texts = [read(batch.inputs[0][batch.segment_ids[0] > 0]) for batch in rows]
    parts = [document[i : i + seq_len] for i in range(0, len(document), seq_len)]
    assert texts == [parts[i % len(parts)] for i in range(6)]


def test_rows_of_one_token() -> None:
    rows = run_rows(opened_with(["ab"], seq_len=1, eos=False), 4)
    assert [read(batch.inputs[0]) for batch in rows] == ["a", "b", "a", "b"]


def test_a_row_begins_with_the_oldest_and_then_takes_the_longest_that_fit() -> None:
    packer = BestFit(10, pool_documents=6, pool_bytes=1000)
    for n, length in enumerate([4, 3, 5, 3, 6, 2]):
        packer.add(piece(n, length))
    assert packer.room() == 0
    assert [positions(packer.row()) for _ in range(3)] == [[0, 4], [1, 2, 5], [3]]
    for n, length in enumerate([1, 9, 9, 1, 1, 10]):
        packer.add(piece(n, length))
    assert [positions(row) for row in packer.flush()] == [[0, 1], [2, 3], [4], [5]]


def piece(position: int, length: int) -> Run:
    """Returns a run of one whole document."""
    block = Block(np.zeros(length, np.uint32), np.array([length]), np.array([position]), position + 1, [])
    return Run(0, block, 0, 1, 0, 0, 0, length)


def positions(runs: Sequence[Run]) -> list[int]:
    return [int(run.block.positions[0]) for run in runs]


@settings(max_examples=60)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=200), st.integers(1, 8), st.integers(1, 400))
def test_rows_are_those_of_a_plain_search(lengths: list[int], pool_documents: int, pool_bytes: int) -> None:
    seq_len = 20
    packer = BestFit(seq_len, pool_documents=pool_documents, pool_bytes=pool_bytes)
    pool: list[tuple[int, int]] = []  # (position, tokens), oldest first
    for n, length in enumerate(lengths):
        full = len(pool) >= pool_documents or sum(t for _, t in pool) >= max(2 * seq_len, pool_bytes // 4)
        assert (packer.room() == 0) == full
        if full:
            row = [pool.pop(0)]
            while fitting := [p for p in pool if p[1] <= seq_len - sum(t for _, t in row)]:
                best = max(fitting, key=lambda p: (p[1], -p[0]))
                pool.remove(best)
                row.append(best)
            assert positions(packer.row()) == [p for p, _ in row]
        assert positions(packer.carry()) == [p for p, _ in pool]
        if not full:
            packer.add(piece(n, length))
            pool.append((n, length))


@settings(max_examples=30)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=9), st.integers(1, 8))
def test_no_document_waits_longer_than_the_pool_is_large(lengths: list[int], pool: int) -> None:
    """C3: after a switch at step 5 every token of `a` is within `pool` rows of it."""
    documents = {"a": sized(7, lengths), "b": sized(5, lengths, "A")}
    stages = Stages({0: {"a": 1, "b": 0}, 5: {"a": 0, "b": 1}})
    options = {"pool_documents": pool}
    recipe = make_recipe(documents, stages, kind="best_fit", options=options, global_batch_size=2)
    batches = run_rows(open_small(recipe), 5 + pool + 3)
    for batch in batches[:5]:
        assert batch.tokens_by_dataset["b"].sum() == 0
    for batch in batches[5 + pool :]:
        assert batch.tokens_by_dataset["a"].sum() == 0


def test_rows_are_nearly_full() -> None:
    lengths = [(7 * i) % 61 + 3 for i in range(200)]
    batches = run_rows(opened_with(sized(200, lengths), seq_len=64), 100)
    filled = sum(int((batch.segment_ids > 0).sum()) for batch in batches)
    assert filled > 0.95 * 100 * 64


def test_the_mix_counts_what_enters_the_pool() -> None:
    recipe = make_recipe(
        {"a": sized(9, [10]), "b": sized(9, [3], "A")},
        Constant({"a": 1, "b": 1}),
        kind="best_fit",
        seq_len=32,
    )
    batches = run_rows(open_small(recipe), 200)
    a, b = (sum(int(batch.tokens_by_dataset[name].sum()) for batch in batches) for name in "ab")
    assert abs(a - b) < 4 * 64 * 11  # no more than the pools hold


# Documents longer than a row --------------------------------------------------------------------------------

LONG = ["a" * 20, "bbb", "c" * 9, "d" * 17, "ee", "f" * 16]


def counted(opened: Opened, rows: int, kind: str) -> tuple[set[str], int]:
    """Returns the texts of all pieces, and how often `kind` was counted."""
    with loaders(opened) as ranks:
        batches = [batch for (batch,) in take_steps(ranks, rows)]
        entry = json.loads(ranks[0].state_dict()["lane_00000"])
    texts = {read(tokens) for *_, tokens in pieces_of(batches)}
    return texts, entry["counts"][0].get(kind, 0)


def test_split_keeps_every_token() -> None:
    texts, _ = counted(opened_with(LONG, eos=False), 30, "")
    assert texts == {"a" * 16, "aaaa", "bbb", "c" * 9, "d" * 16, "d", "ee", "f" * 16}


def test_truncate_keeps_the_begin_and_counts() -> None:
    texts, count = counted(opened_with(LONG, eos=False, options={"overlong": "truncate"}), 30, "truncated")
    assert texts == {"a" * 16, "bbb", "c" * 9, "d" * 16, "ee", "f" * 16}
    assert count > 0


def test_drop_leaves_out_and_counts() -> None:
    options = {"overlong": "drop", "pool_documents": 2}
    texts, count = counted(opened_with(LONG, eos=False, options=options), 30, "dropped")
    assert texts == {"bbb", "c" * 9, "ee", "f" * 16}
    assert count > 0


def test_refuse_names_the_document() -> None:
    opened = opened_with(LONG, eos=False, options={"overlong": "refuse"})
    with loaders(opened) as ranks, pytest.raises(DataError, match="too_long") as caught:
        take_steps(ranks, 30)
    assert "dataset 'a'" in str(caught.value)
    assert "a document has at most seq_len = 16 tokens" in str(caught.value)
    assert "overlong" in str(caught.value).rpartition("cure:")[2]


# Options ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlong", ["split", "truncate", "drop", "refuse"])
@pytest.mark.parametrize("pool", [1, 2, 64])
def test_the_kit_accepts_it(overlong: str, pool: int) -> None:
    options = {"overlong": overlong, "pool_documents": pool}
    check_packer(BestFit.plan(Packing(seq_len=16, kind="best_fit", options=options)), 16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"pool": 3},
            "unknown field 'pool'; known are kind, .*, pad_id, pool_documents, pool_bytes, overlong",
        ),
        ({"overlng": "drop"}, r"unknown field 'overlng'; did you mean 'overlong'\? known are kind, seq_len"),
        ({"pool_documents": 0}, "`pool_documents` must be a whole number >= 1, got 0"),
        ({"pool_bytes": "1 MB"}, "`pool_bytes` must be a whole number >= 1, got '1 MB'"),
        ({"overlong": "cut"}, "`overlong` must be one of split, truncate, drop, refuse, got 'cut'"),
        ({"overlong": None}, "got None"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"packing best_fit: .*{message}"):
        BestFit.plan(Packing(seq_len=8, kind="best_fit", options=options))
