"""Wrap fills every row to its last token, cuts only at the ends of rows, and loses nothing at any length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import EOS, loaders, make_recipe, open_small, read, sized, take_steps, tokens_of
from zephon.opened import Opened
from zephon.packing import Carrying, Packing, Wrap
from zephon.stages import Constant
from zephon.testing import check_packer


def wrapped(documents: Sequence[str], seq_len: int, rows: int, **fields: Any) -> list[str]:
    """Returns the rows of one lane over one dataset, as text."""
    opened = open_small(make_recipe({"a": documents}, seq_len=seq_len, global_batch_size=1, **fields))
    with loaders(opened) as ranks:
        return [read(batch.inputs[0]) for (batch,) in take_steps(ranks, rows)]


def expected(opened: Opened, num_tokens: int, *, dataset: int = 0, lane: int = 0) -> list[int]:
    """Returns the first tokens of the documents of a lane, one after the other."""
    tokens: list[int] = []
    position = 0
    while len(tokens) < num_tokens:
        tokens += tokens_of(opened, dataset, lane, position)
        position += 1
    return tokens[:num_tokens]


def test_rows_of_one_document() -> None:
    assert wrapped(["abcdefg"], 4, 4) == ["abcd", "efg>", "abcd", "efg>"]
    assert wrapped(["abc"], 4, 2) == ["abc>", "abc>"]
    assert wrapped(["abcd"], 4, 5) == ["abcd", ">abc", "d>ab", "cd>a", "bcd>"]
    assert wrapped(["abcd"], 4, 2, eos=False) == ["abcd", "abcd"]
    assert wrapped(["ab"], 1, 6) == ["a", "b", ">", "a", "b", ">"]
    assert wrapped(["ab"], 4, 2, bos="<s>") == ["<ab>", "<ab>"]
    assert wrapped(["abcde"], 4, 2, bos="<s>") == ["<abc", "de><"]  # the rest has no new BOS


@pytest.mark.parametrize("seq_len", [1, 2, 3, 7, 60])
@pytest.mark.parametrize("eos", [False, True])
def test_documents_about_as_long_as_the_row_lose_no_token(seq_len: int, eos: bool) -> None:
    edges = [seq_len - 1, seq_len, seq_len + 1, 2 * seq_len - 1, 2 * seq_len, 2 * seq_len + 1]
    documents = sized(13, [n for n in edges if n])
    opened = open_small(make_recipe({"a": documents}, seq_len=seq_len, global_batch_size=1, eos=eos))
    with loaders(opened) as ranks:
        rows = [batch.inputs[0].tolist() for (batch,) in take_steps(ranks, 80)]
    assert [t for row in rows for t in row] == expected(opened, 80 * seq_len)


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=9),
    st.integers(1, 24),
    st.lists(st.integers(0, 3), min_size=2, max_size=2).filter(any),
    st.booleans(),
    st.sampled_from([1, 2]),
)
def test_each_dataset_of_a_lane_gives_its_documents_in_order(
    lengths: list[int], seq_len: int, weights: list[int], eos: bool, rows_per_step: int
) -> None:
    """C5 and C7: whatever the mix does, what a lane gives of a dataset is its documents in order."""
    documents = {"a": sized(7, lengths), "b": sized(5, lengths[::-1], "A")}
    recipe = make_recipe(
        documents,
        Constant(dict(zip("ab", weights, strict=True))),
        seq_len=seq_len,
        eos=eos,
        lanes=2,
        global_batch_size=2 * rows_per_step,
    )
    opened = open_small(recipe)
    seen: dict[tuple[int, int], list[int]] = {}
    with loaders(opened) as ranks:
        for (batch,) in take_steps(ranks, 12):
            at = 0
            flat = batch.inputs.reshape(-1)
            pieces = batch.pieces
            for row, dataset, length in zip(
                pieces.row.tolist(), pieces.dataset.tolist(), pieces.length.tolist(), strict=True
            ):
                lane = int(batch.lanes[row])
                seen.setdefault((lane, dataset), []).extend(flat[at : at + length].tolist())
                at += length
            assert at == flat.size  # wrap never pads
    for (lane, dataset), tokens in seen.items():
        assert tokens == expected(opened, len(tokens), dataset=dataset, lane=lane)
    assert {dataset for _, dataset in seen} <= {d for d in (0, 1) if weights[d]}


def test_a_piece_ends_at_its_document_or_at_the_row() -> None:
    opened = open_small(make_recipe(seq_len=10))
    with loaders(opened) as ranks:
        for (batch,) in take_steps(ranks, 30):
            ends = batch.pieces.length.cumsum()
            last_tokens = batch.inputs.reshape(-1)[ends - 1]
            assert all(t == EOS or end % 10 == 0 for t, end in zip(last_tokens, ends, strict=True))


# The packer alone -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seq_len", [1, 5, 16])
def test_the_kit_accepts_it(seq_len: int) -> None:
    check_packer(Wrap.plan(Packing(seq_len=seq_len)), seq_len)


def test_nothing_is_carried_after_a_row() -> None:
    packer = Wrap(4)
    assert isinstance(packer, Carrying)
    assert packer.carry() == []
    assert packer.flush() == []
    assert packer.room() == 4


@pytest.mark.parametrize(
    ("name", "hint"), [("pool_documents", ""), ("mask_document_end", r"did you mean 'mask_document_ends'\? ")]
)
def test_wrap_takes_no_options(name: str, hint: str) -> None:
    known = "known are kind, seq_len, mask_document_ends, pad_id"
    with pytest.raises(ValueError, match=f"packing wrap: unknown field {name!r}; {hint}{known}"):
        Wrap.plan(Packing(seq_len=4, options={name: 3}))


# The table of a recipe --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seq_len": 0}, "`seq_len` must be a whole number >= 1, got 0"),
        ({"seq_len": 2.0}, "`seq_len` must be a whole number >= 1, got 2.0"),
        ({"seq_len": True}, "got True"),
        ({"pad_id": -1}, "`pad_id` must be a token id >= 0, got -1"),
        ({"mask_document_ends": 1}, "`mask_document_ends` must be true or false, got 1"),
        ({"kind": 3}, "`kind` must"),
        ({"kind": ""}, "`kind` must"),
    ],
)
def test_wrong_fields_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Packing(**{"seq_len": 8} | fields)


def test_the_table_spells_every_field_out() -> None:
    assert Packing(seq_len=8, options={"pool_documents": 2}).to_config() == {
        "kind": "wrap",
        "seq_len": 8,
        "mask_document_ends": True,
        "pad_id": 0,
        "pool_documents": 2,
    }
