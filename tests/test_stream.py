"""A stream gives the documents of a lane in order, cut as asked; the cursor is all it goes on from."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import faulty, make_recipe, open_small, read, sized, tokens_of, words
from zephon import feed, prepare
from zephon.errors import DataError, StateError
from zephon.executors import inline
from zephon.feed import Feed, Ticket
from zephon.opened import Opened
from zephon.prepare import Request
from zephon.stream import Cursor, Run, Stream


def opened_with(documents: Sequence[object], **fields: object) -> Opened:
    """Returns one dataset, `web`, of documents that may be no text."""
    return open_small(make_recipe(datasets=(faulty("web", documents, on_error="skip"),), **fields))  # type: ignore[arg-type]


def stream_of(opened: Opened, lane: int = 0, max_bad: int = 1000) -> Stream:
    made = Feed(inline(opened.prepare(), 1), budget_bytes=1 << 20, timeout_s=10.0)
    return Stream(made, 0, lane, "web", group=opened.orders[0].group(lane), max_bad=max_bad)


def tokens(run: Run) -> list[int]:
    found: list[int] = run.block.tokens[run.begin : run.begin + run.num_tokens].tolist()
    return found


def pieces(run: Run) -> list[tuple[int, int, int]]:
    """Returns (position, offset, tokens) of each piece of a run."""
    lengths = run.block.lengths[run.first : run.last].tolist()
    positions = run.block.positions[run.first : run.last].tolist()
    offsets = [run.skip] + [0] * (len(lengths) - 1)
    lengths[0] -= run.skip
    lengths[-1] -= run.cut
    return list(zip(positions, offsets, lengths, strict=True))


def documents_of(opened: Opened, lane: int, count: int) -> list[tuple[int, list[int]]]:
    """Returns (position, tokens) of the first `count` documents of a lane that have text."""
    found: list[tuple[int, list[int]]] = []
    position = 0
    while len(found) < count:
        if document := tokens_of(opened, 0, lane, position):
            found.append((position, document))
        position += 1
    return found


BOUNDS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=30)
LENGTHS = st.lists(st.integers(0, 30), max_size=9).map(lambda lengths: [*lengths, 4])


@given(
    LENGTHS, BOUNDS, st.integers(0, 3), st.sampled_from([1, 20, 100, 1 << 16]), st.sampled_from([1, 2, 4096])
)
def test_the_runs_are_the_documents_in_order(
    lengths: list[int], bounds: list[tuple[int, int]], lane: int, block_bytes: int, block_documents: int
) -> None:
    opened = opened_with(sized(len(lengths), lengths))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feed, "MIN_BLOCK_BYTES", block_bytes)
        patch.setattr(feed, "MAX_BLOCK_BYTES", block_bytes)
        patch.setattr(prepare, "MAX_BLOCK_DOCUMENTS", block_documents)
        stream = stream_of(opened, lane)
        runs = [stream.take(least, most) for least, most in bounds]
    drawn = [token for run in runs for token in tokens(run)]
    documents = documents_of(opened, lane, len(drawn) + 1)
    assert drawn == [token for _, document in documents for token in document][: len(drawn)]
    _check_pieces(runs, documents)
    _check_cursor(stream.cursor, documents, len(drawn))


def _check_pieces(runs: list[Run], documents: list[tuple[int, list[int]]]) -> None:
    expected, offset = iter(documents), 0
    position, document = next(expected)
    for run in runs:
        assert sum(length for _, _, length in pieces(run)) == run.num_tokens >= 1
        for piece in pieces(run):
            assert piece[:2] == (position, offset)
            offset += piece[2]
            assert offset <= len(document)
            if offset == len(document):
                (position, document), offset = next(expected), 0


def _check_cursor(cursor: Cursor, documents: list[tuple[int, list[int]]], num_drawn: int) -> None:
    for position, document in documents:
        if num_drawn < len(document):
            assert cursor.offset == num_drawn
            if num_drawn:
                assert cursor.position == position
            return
        num_drawn -= len(document)


@given(st.integers(1, 50), st.integers(1, 50))
def test_a_run_ends_where_it_is_told(at_least: int, at_most: int) -> None:
    """Whole documents of 5 tokens until `at_least`, cut at `at_most`."""
    stream = stream_of(opened_with(sized(20, (4,))))
    stream.take(1, 2)
    run = stream.take(at_least, at_most)
    assert run.num_tokens == min(at_most, -(-(at_least - 3) // 5) * 5 + 3 if at_least > 3 else 3)


@given(LENGTHS, BOUNDS, st.sampled_from([1, 20, 1 << 16]), st.data())
def test_a_stream_goes_on_from_its_cursor(
    lengths: list[int], bounds: list[tuple[int, int]], block_bytes: int, data: st.DataObject
) -> None:
    opened = opened_with([None, *sized(len(lengths), lengths)])
    stream = stream_of(opened)
    cut = data.draw(st.integers(0, len(bounds)))
    for least, most in bounds[:cut]:
        stream.take(least, most)
    cursor, counts = stream.cursor, stream.counts
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feed, "MIN_BLOCK_BYTES", block_bytes)
        patch.setattr(feed, "MAX_BLOCK_BYTES", block_bytes)
        again = stream_of(opened)
        again.restore(cursor, dict(counts))
        for _, most in bounds[cut:]:
            expected, found = _draw(stream, most), _draw(again, most)
            assert found == expected
            assert again.cursor == stream.cursor
            assert again.counts == stream.counts


def _draw(stream: Stream, num_tokens: int) -> list[int]:
    """Returns the next `num_tokens`: a single run may end with its block."""
    drawn: list[int] = []
    while len(drawn) < num_tokens:
        drawn += tokens(stream.take(num_tokens - len(drawn), num_tokens - len(drawn)))
    return drawn


def test_each_lane_and_each_epoch_has_its_own_order() -> None:
    opened = opened_with(words("w", 12))
    texts = {}
    for lane in range(4):
        stream = stream_of(opened, lane)
        texts[lane] = "".join(read(_draw(stream, 1)) for _ in range(600)).split(">")[:9]
    assert len({tuple(text) for text in texts.values()}) == 4
    for epoch in range(3):  # 4 lanes with 3 documents each
        read_once = [text for lane in range(4) for text in texts[lane][3 * epoch : 3 * epoch + 3]]
        assert sorted(read_once) == sorted(words("w", 12))


def test_what_is_left_out_is_counted_when_it_is_passed() -> None:
    opened = opened_with(["a", None, "", "b"])
    stream = stream_of(opened)
    for _ in range(60):
        stream.take(1, 1)
    passed = stream.cursor.position
    kinds = [opened.orders[0].locate(0, p, 1).record.tolist()[0] for p in range(passed)]
    assert stream.counts == (("bad", kinds.count(1)), ("empty", kinds.count(2)))


def test_nothing_is_counted_before_the_first_draw() -> None:
    stream = stream_of(opened_with([None, "a"]))
    stream.open()
    assert stream.counts == ()
    assert stream.cursor == Cursor(0, 0, 0)


def test_opening_twice_is_opening_once() -> None:
    stream = stream_of(opened_with(["a"]))
    stream.open()
    stream.open()
    assert stream._feed.num_streams == 1


def test_too_many_bad_records_are_an_error() -> None:
    stream = stream_of(opened_with([None, "a"]), max_bad=2)
    with pytest.raises(DataError, match="a lane may skip at most max_bad = 2") as caught:  # noqa: PT012
        for _ in range(100):
            stream.take(1, 9)
    assert "got:  3 skipped" in str(caught.value)


def test_a_dataset_without_text_is_an_error() -> None:
    stream = stream_of(opened_with(["", None]))
    with pytest.raises(DataError, match="dataset 'web': no document has text"):
        stream.take(1, 1)


@pytest.mark.parametrize("block_documents", [50, 4096])
@pytest.mark.parametrize("seed", range(3))
def test_one_document_with_text_is_found_whatever_the_blocks(
    monkeypatch: pytest.MonkeyPatch, seed: int, block_documents: int
) -> None:
    """Nearly two epochs may lie between two turns of a document."""
    monkeypatch.setattr(prepare, "MAX_BLOCK_DOCUMENTS", block_documents)
    stream = stream_of(opened_with(["x"] + [""] * 1199, lanes=1, global_batch_size=1, seed=seed))
    assert [read(tokens(stream.take(1, 9))) for _ in range(6)] == ["x>"] * 6


def test_a_cursor_in_a_document_that_got_shorter_is_refused() -> None:
    long, short = opened_with(["a" * 30]), opened_with(["a" * 10])
    stream = stream_of(long)
    stream.take(20, 20)
    again = stream_of(short)
    again.restore(stream.cursor, {})
    with pytest.raises(StateError, match="dataset 'web', lane 0, position 0: the document changed") as caught:
        again.take(1, 1)
    assert "got:  11 tokens" in str(caught.value)


def test_a_cursor_in_a_document_that_lost_its_text_is_refused() -> None:
    stream = stream_of(opened_with(["a" * 30, "b" * 30]))
    stream.take(20, 20)
    spoilt = "b" if read(tokens(stream.take(1, 1))) == "a" else "a"
    again = stream_of(opened_with([text * 30 if text == spoilt else None for text in "ab"]))
    again.restore(stream.cursor, {})
    with pytest.raises(StateError, match="the document changed"):
        again.take(1, 1)


def test_blocks_begin_small_and_double(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = opened_with(sized(2000, [100]))
    stream = stream_of(opened)
    asked: list[int] = []
    request = Feed.request

    def noted(self: Feed, wanted: Request) -> Ticket:
        asked.append(wanted.target_bytes)
        return request(self, wanted)

    monkeypatch.setattr(Feed, "request", noted)
    for _ in range(3000):
        stream.take(100, 100)
    usual = asked[-1]
    assert asked[:5] == [usual // 8, usual // 4, usual // 2, usual, usual]
