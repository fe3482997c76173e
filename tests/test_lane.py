"""A lane makes rows that can be gone on from at any of them; its streams open when they are drawn."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import make_recipe, open_small, sized, words
from zephon.errors import StateError
from zephon.executors import inline
from zephon.feed import Feed
from zephon.lane import OPEN_AHEAD, Lane, LanePlan, Row
from zephon.lanestate import CarriedPiece
from zephon.mixture import Ledger, MixtureWorkSource
from zephon.opened import Opened
from zephon.shares import PARTS
from zephon.stages import Constant, Stages
from zephon.stream import Cursor, Stream

DOCUMENTS = {"web": words("web", 9, (1, 4)), "code": sized(5, (3, 40)), "prose": sized(3, (17,))}
STAGES = Stages({0: {"web": 2, "code": 1, "prose": 0}, 3: {"web": 0, "code": 1, "prose": 1}})


def opened_with(kind: str = "wrap", **fields: Any) -> Opened:
    options = {"pool_documents": 3} if kind == "best_fit" else {}
    return open_small(make_recipe(DOCUMENTS, STAGES, kind=kind, options=options, **fields))


def lane_of(opened: Opened, lane: int = 1, work_source: object = None) -> Lane:
    recipe = opened.recipe
    feed = Feed(inline(opened.prepare(), 1), budget_bytes=1 << 20, timeout_s=10.0)

    def make_stream(dataset: int, lane: int) -> Stream:
        group = opened.orders[dataset].group(lane)
        return Stream(feed, dataset, lane, recipe.names[dataset], group=group, max_bad=1000)

    plan = LanePlan(
        num_lanes=recipe.lanes,
        rows_per_step=recipe.rows_per_step,
        seq_len=recipe.packing.seq_len,
        flush_every=opened.flush_every,
        work_source=work_source or recipe.build_work_source(),  # type: ignore[arg-type]
        make_packer=opened.packer.make,
        make_stream=make_stream,
        feed=feed,
    )
    return Lane(plan, lane, len(recipe.datasets), opened.table)


Piece = tuple[int, int, int, int]


def pieces(row: Row) -> list[Piece]:
    """Returns (dataset, position, offset, tokens) of the pieces of a row."""
    found: list[Piece] = []
    for run in row.runs:
        lengths = run.block.lengths[run.first : run.last].tolist()
        lengths[0] -= run.skip
        lengths[-1] -= run.cut
        offsets = [run.skip] + [0] * (len(lengths) - 1)
        positions = run.block.positions[run.first : run.last].tolist()
        found += zip([run.dataset] * len(lengths), positions, offsets, lengths, strict=True)
    return found


@given(st.sampled_from(["wrap", "best_fit"]), st.integers(0, 14), st.sampled_from([None, 1, 4]))
@settings(max_examples=40)
def test_a_lane_goes_on_from_any_row(kind: str, row: int, flush_every: int | None) -> None:
    opened = opened_with(kind, flush_every=flush_every, global_batch_size=8)
    whole = lane_of(opened)
    rows = [whole.next_row() for _ in range(20)]
    again = lane_of(opened)
    again.restore(rows[row].state)
    assert again.initial_state == rows[row].state
    for expected in rows[row + 1 :]:
        found = again.next_row()
        assert pieces(found) == pieces(expected)
        assert (found.lane, found.index) == (expected.lane, expected.index)
        assert found.state == expected.state


@pytest.mark.parametrize("kind", ["wrap", "best_fit"])
def test_rows_are_numbered_and_hold_no_more_than_seq_len(kind: str) -> None:
    lane = lane_of(opened_with(kind))
    rows = [lane.next_row() for _ in range(30)]
    assert [row.index for row in rows] == list(range(30))
    assert [row.state.delivered_rows for row in rows] == list(range(1, 31))
    sizes = [sum(run.num_tokens for run in row.runs) for row in rows]
    assert max(sizes) == 16
    assert kind == "best_fit" or set(sizes) == {16}


@pytest.mark.parametrize("kind", ["wrap", "best_fit"])
def test_the_ledger_is_what_was_drawn(kind: str) -> None:
    """Tokens by dataset are those of the rows and of what the packer holds; credits sum to zero."""
    lane = lane_of(opened_with(kind))
    tokens, documents = [0, 0, 0], [0, 0, 0]
    for _ in range(25):
        row = lane.next_row()
        for dataset, _, offset, length in pieces(row):
            tokens[dataset] += length
            documents[dataset] += offset == 0
        held, begun = tokens.copy(), documents.copy()
        for piece in row.state.carry:
            held[piece.dataset] += piece.num_tokens
            begun[piece.dataset] += piece.offset == 0
        assert row.state.tokens == tuple(held)
        assert row.state.documents == tuple(begun)
        assert sum(row.state.credits) == 0


def test_a_dataset_without_a_share_is_not_opened() -> None:
    lane = lane_of(opened_with())
    for step in range(3):
        lane.open_ahead(step)
        row = lane.next_row()
        assert row.state.cursors[2] is None
        assert lane._streams[2] is None
    rows = [lane.next_row() for _ in range(6)]
    assert any(piece[0] == 2 for row in rows for piece in pieces(row))
    assert not any(piece[0] == 0 for row in rows for piece in pieces(row))
    firsts = [piece for row in rows for piece in pieces(row) if piece[0] == 2]
    assert firsts[0][:3] == (2, 0, 0)


def test_opening_ahead_is_not_drawing() -> None:
    lane = lane_of(opened_with())
    lane.open_ahead(0)
    lane.open_ahead(3)
    assert all(stream is not None for stream in lane._streams)
    assert lane.next_row().state.cursors[2] is None


def test_the_largest_shares_are_opened_ahead_and_not_all() -> None:
    names = [f"d{i}" for i in range(12)]
    recipe = make_recipe({n: ["a"] for n in names}, Constant({n: 1 + i for i, n in enumerate(names)}))
    lane = lane_of(open_small(recipe))
    lane.open_ahead(0)
    opened = [i for i, stream in enumerate(lane._streams) if stream is not None]
    assert opened == list(range(12 - OPEN_AHEAD, 12))


class OneByOne(MixtureWorkSource):
    """The mixture, asked again before every document."""

    def choose(self, ledger: Ledger) -> tuple[int, int]:
        return super().choose(ledger)[0], 1


@pytest.mark.parametrize("kind", ["wrap", "best_fit"])
@pytest.mark.parametrize("lane", range(4))
def test_a_run_of_documents_is_what_asking_before_each_gives(kind: str, lane: int) -> None:
    opened = opened_with(kind, seq_len=64)
    recipe = opened.recipe
    whole = lane_of(opened, lane)
    asked = lane_of(opened, lane, OneByOne(recipe.datasets, STAGES))
    for _ in range(25):
        assert pieces(whole.next_row()) == pieces(asked.next_row())


@pytest.mark.parametrize("kind", ["wrap", "best_fit"])
def test_the_pieces_of_a_dataset_are_its_documents_in_order(kind: str) -> None:
    """C5: whatever the weights do. What the packer holds at the end is all that is missing."""
    lane = lane_of(opened_with(kind))
    rows = [lane.next_row() for _ in range(40)]
    drawn = [piece for row in rows for piece in pieces(row)]
    drawn += [(p.dataset, p.position, p.offset, p.num_tokens) for p in rows[-1].state.carry]
    for dataset in range(3):
        ends = {(position, offset + length) for d, position, offset, length in drawn if d == dataset}
        starts = sorted((position, offset) for d, position, offset, _ in drawn if d == dataset)
        assert len(starts) == len(set(starts)) == len(ends)
        assert starts[0] == (0, 0)
        for before, after in pairwise(starts):
            assert after in ends or after == (before[0] + 1, 0)


def test_the_carry_is_addresses() -> None:
    lane = lane_of(opened_with("best_fit"))
    state = [lane.next_row() for _ in range(9)][-1].state
    assert 0 < len(state.carry) <= 3
    assert all(isinstance(piece, CarriedPiece) and piece.num_tokens <= 16 for piece in state.carry)


@pytest.mark.parametrize("change", [{"num_tokens": 400}, {"offset": 400}], ids=str)
def test_a_carried_document_that_changed_is_refused(change: dict[str, int]) -> None:
    opened = opened_with("best_fit")
    lane = lane_of(opened)
    state = [lane.next_row() for _ in range(9)][-1].state
    again = lane_of(opened)
    again.restore(state._replace(carry=(state.carry[0]._replace(**change), *state.carry[1:])))
    with pytest.raises(StateError, match="a document that the packer holds changed"):
        again.next_row()


def test_credits_begin_with_the_step_that_first_has_a_share() -> None:
    lane = lane_of(opened_with())
    first = lane.next_row().state
    shares = (PARTS * 2 // 3 + 1, PARTS // 3, 0)
    before = [c - s * 16 + d * PARTS for c, s, d in zip(first.credits, shares, first.tokens, strict=True)]
    assert sum(before) == 0
    assert max(abs(credit) for credit in before) <= 2 * 16 * PARTS
    assert first.credits[2] == 0
    assert first.cursors[2] is None
    assert isinstance(first.cursors[0] or first.cursors[1], Cursor)
