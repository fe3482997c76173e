"""What the rows of a batch hold: every piece leads back to its document, and no batch is needed after."""

from __future__ import annotations

import pytest

from tests.helpers import INLINE, make_recipe, open_small, sized, words
from zephon.batch import digest
from zephon.described import DescribedRow, describe_rows
from zephon.loader import Loader

DOCUMENTS = {"web": words("web", 40), "code": words("code", 9, (1, 7)), "math": sized(12, (3, 50))}


@pytest.mark.parametrize("kind", ["wrap", "best_fit"])
def test_every_piece_leads_back_to_its_document(kind: str) -> None:
    opened = open_small(make_recipe(DOCUMENTS, kind=kind, seq_len=24, global_batch_size=8, lanes=4))
    with Loader(opened, INLINE) as loader:
        kept: list[tuple[list[tuple[int, int, str]], list[DescribedRow]]] = []
        for batch in loader:
            kept.append((sorted(digest(batch)), list(describe_rows(opened, batch))))
            if batch.step == 9:
                break
    for step, (digests, rows) in enumerate(kept):
        assert [(row.lane, row.row, row.digest) for row in rows] == digests
        for row in rows:
            assert row.step == step
            assert row.num_tokens + row.padding_tokens == len(row.tokens) == 24
            assert [piece.begin for piece in row.pieces] == [0, *(p.end for p in row.pieces[:-1])]
            for piece in row.pieces:
                document = DOCUMENTS[piece.dataset][piece.record] + ">"
                assert piece.file == piece.dataset
                text = opened.encoder.decode(row.tokens_of(piece))
                assert text == document[piece.offset : piece.offset + piece.num_tokens]
    assert any(row.padding_tokens for _, rows in kept for row in rows) == (kind == "best_fit")


def test_rows_of_padding_have_no_pieces() -> None:
    recipe = make_recipe({"web": ["one", "two", "three"]}).evaluation()
    opened = open_small(recipe)
    with Loader(opened, INLINE) as loader:
        rows = [row for batch in loader for row in describe_rows(opened, batch)]
    assert [row.padding_tokens for row in rows if not row.pieces] == [16] * sum(not r.pieces for r in rows)
    assert sum(len(row.pieces) for row in rows) == 3


def test_a_row_is_a_line_in_a_repl() -> None:
    with Loader(opened := open_small(make_recipe()), INLINE) as loader:
        row = next(describe_rows(opened, next(loader)))
    assert repr(row).startswith(f"DescribedRow of step 0, lane 0, row 0: {len(row.pieces)} pieces, digest ")
