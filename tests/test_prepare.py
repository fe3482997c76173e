"""Blocks are consecutive documents of a stream, the same however much is asked for at a time."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import EOS, Letters, faulty, make_recipe, open_small, read, sized, write_tokenizer
from tests.token_data import write_bin, write_jsonl
from zephon import prepare as prepare_module
from zephon.dataset import Dataset
from zephon.errors import DataError
from zephon.opened import Opened, open_recipe
from zephon.prepare import Block, DatasetRules, Event, Prepare, Request, check_ids
from zephon.readers import Tokens

LONG = "x" * 9
MIXED = ["aa", "", None, "bbb", 7, "c\ud800", LONG, "", "", "dd", [1], "e", "\n", LONG + "y", "f", " "]
"""Texts among what is empty, null, no text, replaced and, for rows of 8, too long."""


def opened_with(
    documents: Sequence[object],
    *,
    on_error: str = "skip",
    lanes: int = 1,
    overlong: str = "split",
    **fields: Any,
) -> Opened:
    dataset = faulty("a", documents, on_error=on_error)
    fields = {"global_batch_size": lanes, "eos": False} | fields
    options = {"overlong": overlong}
    recipe = make_recipe(datasets=(dataset,), kind="best_fit", seq_len=8, options=options, **fields)
    return open_small(recipe)


def block_of(prepare: Prepare, start: int, size: int = 100, lane: int = 0) -> Block:
    (block,) = prepare([Request(0, lane, start, size)])
    if isinstance(block, Exception):
        raise block
    assert len(block.tokens) == block.lengths.sum()
    assert (block.lengths >= 1).all()
    assert block.tokens.dtype == np.uint32
    befores = [event.before for event in block.events]
    assert befores == sorted(befores)
    assert all(0 <= event.before <= len(block.lengths) for event in block.events)
    return block


def texts(block: Block) -> list[str]:
    ends = block.lengths.cumsum()
    return [read(block.tokens[a:b]) for a, b in zip(ends - block.lengths, ends, strict=True)]


def counts(blocks: Sequence[Block], num_documents: int) -> dict[str, int]:
    """Returns the events ahead of, or at, the first `num_documents` documents of consecutive blocks."""
    found: dict[str, int] = {}
    first = 0
    for block in blocks:
        for before, kind, count in block.events:
            if first + before < num_documents:
                found[kind] = found.get(kind, 0) + count
        first += len(block.lengths)
    return found


def walk(prepare: Prepare, sizes: Sequence[int], until: int) -> list[Block]:
    """Returns consecutive blocks of the given sizes, in turns, up to position `until` at least."""
    blocks: list[Block] = []
    start = 0
    while start < until:
        blocks.append(block_of(prepare, start, sizes[len(blocks) % len(sizes)]))
        assert blocks[-1].end > start
        start = blocks[-1].end
    return blocks


def test_a_block_holds_documents_in_order() -> None:
    opened = opened_with(sized(5, [3]))
    block = block_of(opened.prepare(), 2, 9)
    order = opened.orders[0].locate(0, 2, 3)
    assert texts(block) == [chr(ord("a") + record) * 3 for record in order.record.tolist()]
    assert (block.positions.tolist(), block.end, block.events) == ([2, 3, 4], 5, [])


def test_a_block_ends_with_the_document_that_reaches_its_size() -> None:
    prepare = opened_with(sized(5, [3])).prepare()
    assert [block_of(prepare, 0, size).end for size in (1, 2, 3, 4, 6, 7)] == [1, 1, 1, 2, 2, 3]


def test_a_block_has_a_bounded_number_of_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_module, "MAX_BLOCK_DOCUMENTS", 3)
    assert block_of(opened_with(sized(5, [3])).prepare(), 4).positions.tolist() == [4, 5, 6]


@settings(max_examples=150)
@given(
    st.lists(st.sampled_from(MIXED), min_size=1, max_size=12).filter(lambda d: any(t == "aa" for t in d)),
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
    st.sampled_from(["split", "truncate", "drop"]),
    st.booleans(),
    st.sampled_from([1, 2, 4096]),
)
def test_blocks_of_any_size_are_one_stream(
    documents: list[object], sizes: list[int], overlong: str, eos: bool, max_documents: int
) -> None:
    """Documents, their positions, and what is counted before each of them."""
    prepare = opened_with(documents, overlong=overlong, eos=eos).prepare()
    total = 3 * len(documents)
    whole = block_of(prepare, 0, 400)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare_module, "MAX_BLOCK_DOCUMENTS", max_documents)
        blocks = walk(prepare, sizes, total)
    split = [text for block in blocks for text in texts(block)]
    places = [position for block in blocks for position in block.positions.tolist()]
    num = len([position for position in places if position < total])
    assert texts(whole)[:num] == split[:num]
    assert whole.positions.tolist()[:num] == places[:num]
    for n in range(num + 1):
        assert counts([whole], n) == counts(blocks, n)


@pytest.mark.parametrize("eos", [False, True])
@pytest.mark.parametrize("overlong", ["split", "truncate", "drop"])
def test_every_document_is_counted_for_what_it_is(overlong: str, eos: bool) -> None:
    opened = opened_with(MIXED, overlong=overlong, eos=eos)
    (block,) = opened.prepare()([Request(0, 0, 0, 1, tuple(range(len(MIXED))))])
    assert isinstance(block, Block)
    long = {"split": "", "truncate": "truncated", "drop": "dropped"}[overlong]
    expected = {"empty": 3, "bad": 3, "replaced": 1} | ({long: 2} if long else {})
    found: dict[str, int] = {}
    for _, kind, count in block.events:
        found[kind] = found.get(kind, 0) + count
    assert found == expected
    assert len(block.lengths) == len(MIXED) - 6 - (2 if overlong == "drop" else 0)


def test_whitespace_is_text() -> None:
    block = block_of(opened_with([" ", "\n", "   "]).prepare(), 0, 3)
    assert set(texts(block)) <= {" ", "\n", "   "}


def test_a_document_of_bos_and_eos_alone_is_empty() -> None:
    opened = opened_with(["", "x"], bos="<s>", eos="</s>")
    block = block_of(opened.prepare(), 0)
    assert set(texts(block)) == {"<x>"}
    assert {event.kind for event in block.events} == {"empty"}


# Faults -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [None, 3, 2.5, ["a"], {"a": 1}, b"bytes"])
def test_raise_gives_what_comes_before_and_then_the_error(bad: object) -> None:
    documents: list[object] = [*sized(6, [2])]
    documents[4] = bad
    opened = opened_with(documents, on_error="raise")
    prepare = opened.prepare()
    place = opened.orders[0].locate(0, 0, 6).record.tolist().index(4)
    if place:
        before = block_of(prepare, 0)
        assert before.end == place
        assert len(before.lengths) == place
    with pytest.raises(DataError) as caught:
        block_of(prepare, place)
    message = str(caught.value)
    assert message.startswith("dataset 'a', file 'a', record 4: cannot be used (")
    assert 'on_error = "skip"' in message
    assert [line.split(":")[0].strip() for line in message.splitlines()[1:]] == ["got", "rule", "cure"]


def test_a_missing_field_is_told_with_those_there_are_and_the_cure_names_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "one", "id": 1}\n' * 3)
    dataset = Dataset.from_path("a", tmp_path / "a.jsonl")
    recipe = make_recipe(datasets=(dataset,), global_batch_size=1, tokenizer=str(write_tokenizer(tmp_path)))
    opened = open_recipe(recipe, cache=tmp_path / "cache")
    with pytest.raises(DataError) as caught:
        block_of(opened.prepare(), 0)
    lines = str(caught.value).splitlines()
    assert lines[1] == "  got:  the keys ['body', 'id']"
    assert lines[3].startswith("  cure: set `text` to the field that holds the text, or ")


def test_skip_costs_a_position_and_no_tokens() -> None:
    documents: list[object] = [*sized(6, [2])]
    good = opened_with(documents).prepare()
    documents[4] = None
    skipping = opened_with(documents)
    place = skipping.orders[0].locate(0, 0, 6).record.tolist().index(4)
    block, whole = block_of(skipping.prepare(), 0, 10), block_of(good, 0, 12)
    assert block.end == whole.end == 6
    assert block.positions.tolist() == [p for p in range(6) if p != place]
    assert texts(block) == [text for p, text in enumerate(texts(whole)) if p != place]
    assert block.events == [Event(place, "bad", 1)]


def test_a_block_may_hold_no_document() -> None:
    block = block_of(opened_with(["", ""]).prepare(), 7, 1)
    assert len(block.lengths) == 0
    assert block.end > 7
    assert sum(number for *_, number in block.events) == block.end - 7


def test_an_overlong_document_is_refused_at_its_place() -> None:
    documents = sized(6, [2])
    documents[3] = LONG
    opened = opened_with(documents, overlong="refuse")
    place = opened.orders[0].locate(0, 0, 6).record.tolist().index(3)
    if place:
        before = block_of(opened.prepare(), 0)
        assert (before.end, len(before.lengths)) == (place, place)
    with pytest.raises(DataError, match=r"record 3: cannot be used \(too_long\)"):
        block_of(opened.prepare(), place)


def test_what_comes_after_a_refused_document_is_not_counted_yet() -> None:
    opened = opened_with(["aa", LONG, "", None], overlong="refuse")
    order = [["aa", LONG, "", None][i] for i in opened.orders[0].locate(0, 0, 12).record.tolist()]
    starts = [i for i in range(1, 12) if order[i] == LONG and order[i - 1] in ("", None)]
    (block,) = opened.prepare()([Request(0, 0, starts[0] - 1, 100)])
    assert isinstance(block, Block)
    assert (block.end, [event.before for event in block.events]) == (starts[0], [0])


# Together ---------------------------------------------------------------------------------------------------


def equal(one: Block, other: Block) -> bool:
    arrays = ("tokens", "lengths", "positions")
    return (one.end, one.events) == (other.end, other.events) and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays
    )


def test_requests_together_give_what_each_gives_alone() -> None:
    prepare = opened_with(MIXED, lanes=4, overlong="drop").prepare()
    requests = [Request(0, lane, start, size) for lane, start, size in [(0, 0, 9), (3, 5, 1), (1, 0, 99)]]
    requests.append(Request(0, 2, 3, 1, (3, 5, 9)))
    together = [block for block in prepare(requests) if isinstance(block, Block)]
    for request, block in zip(requests, together, strict=True):
        (alone,) = prepare([request])
        assert isinstance(alone, Block)
        assert equal(block, alone)
    travelled: Prepare = pickle.loads(pickle.dumps(prepare))
    again = [block for block in travelled(requests) if isinstance(block, Block)]
    assert all(equal(a, b) for a, b in zip(again, together, strict=True))


def test_positions_asked_for_are_read_and_no_others() -> None:
    opened = opened_with(sized(9, [3]))
    (block,) = opened.prepare()([Request(0, 0, 2, 1, (2, 3, 7))])
    assert isinstance(block, Block)
    assert block.positions.tolist() == [2, 3, 7]
    records = opened.orders[0].locate(0, 0, 8).record
    assert texts(block) == [chr(ord("a") + int(records[p])) * 3 for p in (2, 3, 7)]


def test_an_error_stays_with_its_request() -> None:
    dataset = (faulty("a", [None]), faulty("b", ["text"]))
    prepare = open_small(make_recipe(datasets=dataset, global_batch_size=1)).prepare()
    bad, good = prepare([Request(0, 0, 0, 9), Request(1, 0, 0, 4)])
    assert isinstance(bad, DataError)
    assert isinstance(good, Block)
    assert texts(good) == ["text>"]


def test_an_error_of_the_encoder_reaches_those_that_read() -> None:
    dataset = (faulty("a", [None]), faulty("b", ["text"]))
    opened = open_small(make_recipe(datasets=dataset, global_batch_size=1))

    class Broken(Letters):
        def encode(self, texts: list[str]) -> Any:
            raise DataError("broken")

    rules = [DatasetRules(name=name, on_error="raise", mean_bytes=4) for name in "ab"]
    broken = Prepare(opened.readers, opened.orders, Broken(), rules, opened.packer.length)
    bad, good = broken([Request(0, 0, 0, 9), Request(1, 0, 0, 4)])
    assert "cannot be used" in str(bad)
    assert str(good) == "broken"


def tokenized(folder: Path, documents: Sequence[Any], overlong: str, on_error: str = "skip") -> Opened:
    dataset = Dataset.from_path("a", str(folder), **write_jsonl(folder, documents), on_error=on_error)
    fields: dict[str, Any] = {
        "global_batch_size": 1,
        "kind": "best_fit",
        "seq_len": 8,
        "options": {"overlong": overlong},
    }
    return open_small(make_recipe(datasets=(dataset,), **fields), folder.parent / "cache")


MIXED_IDS = [[1, 2], [], None, [3, EOS], "ids", [999], [EOS], [4] * 9, [], [5] * 12, [300, 6], [7]]
"""Token ids among what is empty, null, none, beyond the vocabulary and, for rows of 8, too long."""


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(MIXED_IDS), min_size=1, max_size=12).filter(lambda d: [7] in d or [1, 2] in d),
    st.lists(st.integers(1, 60), min_size=1, max_size=4),
    st.sampled_from(["split", "truncate", "drop"]),
)
def test_blocks_of_token_ids_of_any_size_are_one_stream(
    tmp_path_factory: pytest.TempPathFactory, documents: list[Any], sizes: list[int], overlong: str
) -> None:
    """As those of texts are; a document of EOS alone is one, and nothing is added to any."""
    folder = tmp_path_factory.mktemp("ids") / "data"
    prepare = tokenized(folder, documents, overlong).prepare()
    total = 3 * len(documents)
    whole = block_of(prepare, 0, 1600)
    blocks = walk(prepare, sizes, total)
    split = [text for block in blocks for text in texts(block)]
    num = sum(position < total for block in blocks for position in block.positions.tolist())
    assert texts(whole)[:num] == split[:num]
    for n in range(num + 1):
        assert counts([whole], n) == counts(blocks, n)


@pytest.mark.parametrize("overlong", ["split", "truncate", "drop"])
def test_every_document_of_token_ids_is_counted_for_what_it_is(overlong: str, tmp_path: Path) -> None:
    opened = tokenized(tmp_path / "data", MIXED_IDS, overlong)
    (block,) = opened.prepare()([Request(0, 0, 0, 1, tuple(range(len(MIXED_IDS))))])
    assert isinstance(block, Block)
    long = {"split": {}, "truncate": {"truncated": 2}, "drop": {"dropped": 2}}[overlong]
    assert counts([block], len(MIXED_IDS)) == {"empty": 2, "bad": 4} | long
    assert len(block.lengths) == 6 - (2 if overlong == "drop" else 0)


def test_a_fault_of_token_ids_is_raised_when_it_is_reached(tmp_path: Path) -> None:
    opened = tokenized(tmp_path / "data", [[1], [2, 999]], "split", on_error="raise")
    bad = opened.orders[0].locate(0, 0, 2).record.tolist().index(1)  # type: ignore[union-attr]
    if bad:
        assert block_of(opened.prepare(), 0).end == 1
    with pytest.raises(DataError, match=r"record 1: cannot be used \(not_tokens\)(.|\n)*the id 999"):
        block_of(opened.prepare(), bad)


def test_texts_and_token_ids_are_prepared_in_one_call(tmp_path: Path) -> None:
    ids = Dataset.from_path("ids", str(tmp_path / "ids"), **write_bin(tmp_path / "ids", [[1, 2]]))
    datasets = (ids, Dataset.from_documents("web", ["ab"]))
    prepare = open_small(make_recipe(datasets=datasets), tmp_path / "cache").prepare()
    blocks = prepare([Request(1, 0, 0, 1), Request(0, 0, 0, 1), Request(1, 1, 0, 1), Request(0, 1, 0, 1)])
    assert [block.tokens.tolist() for block in blocks if isinstance(block, Block)] == [
        [97, 98, EOS],
        [1, 2],
        [97, 98, EOS],
        [1, 2],
    ]


@pytest.mark.parametrize("dtype", ["uint16", "int16", "uint32", "int32", "int64"])
def test_ids_are_checked_in_every_type(dtype: str) -> None:
    ids = np.array([1, 2, 3, 300, 4, 5], dtype)
    if np.iinfo(dtype).min < 0:
        ids[5] = -5
    found = Tokens(ids, np.array([2, 0, 2, 2]))
    check_ids(found, 70_000)
    assert len(found.faults) == (ids[5] < 0)
    check_ids(found, 258)
    assert found.lengths.tolist() == [2, 0, 0, 2 if ids[5] > 0 else 0]
    assert [fault.got for _, fault in found.faults] == ["the id 300", "the id -5"][: len(found.faults)]
    assert found.tokens.tolist() == ([1, 2, 4, 5] if ids[5] > 0 else [1, 2])
