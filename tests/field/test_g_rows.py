"""G1, G3, G4: no length loses a token, no label leaves its document, no document sees another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.elastic.endings import run_leg
from tests.field.corpora import (
    FILES,
    FORMATS,
    counts_of,
    dataset_of,
    documents_of,
    open_here,
    passed_by,
    recipe_of,
)
from tests.helpers import read
from zephon.batch import Batch
from zephon.errors import DataError
from zephon.stages import Constant

LENGTHS = [(3, (4, 2, 3, 1)), (60, (59, 60, 61, 119, 120, 121)), (1, (1, 2, 3))]


def lettered(lengths: Sequence[int]) -> list[str]:
    """Returns documents of exactly these lengths, each of its own letter."""
    return [chr(ord("a") + i) * length for i, length in enumerate(lengths)]


@pytest.mark.parametrize(("form", "kind"), [("jsonl", "wrap"), ("parquet", "best_fit")])
@pytest.mark.parametrize(("seq_len", "lengths"), LENGTHS, ids=str)
@pytest.mark.parametrize("eos", [False, "</s>"])
def test_every_token_of_documents_about_as_long_as_the_row_comes_once(
    tmp_path: Path, form: str, kind: str, seq_len: int, lengths: Sequence[int], eos: Any
) -> None:
    """By default, and whole where the row is one document: two epochs, on one rank and on two."""
    documents = lettered(lengths)
    web = dataset_of(tmp_path, "web", documents, form, max_epochs=2)
    recipe = recipe_of(
        tmp_path, web, seq_len=seq_len, kind=kind, eos=eos, lanes=2, global_batch_size=2, when_exhausted="pad"
    )
    opened = open_here(recipe)
    leg = run_leg(opened, 2)
    assert documents_of(opened, leg.steps)["web"] == Counter({d + ">" * bool(eos): 2 for d in documents})
    assert run_leg(opened, 1).digests == leg.digests
    assert counts_of(leg.states[-1]) == {}


@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("overlong", ["truncate", "drop", "refuse"])
@pytest.mark.parametrize(("seq_len", "lengths"), LENGTHS, ids=str)
def test_to_cut_or_drop_long_documents_is_a_choice_that_is_counted(
    tmp_path: Path, form: str, overlong: str, seq_len: int, lengths: Sequence[int]
) -> None:
    documents = lettered(lengths)
    long = [text for text in documents if len(text) > seq_len]
    web = dataset_of(tmp_path, "web", documents, form, max_epochs=2)
    recipe = recipe_of(
        tmp_path, web, seq_len=seq_len, kind="best_fit", options={"overlong": overlong}, eos=False,
        lanes=2, global_batch_size=2, when_exhausted="pad",
    )  # fmt: skip
    opened = open_here(recipe)
    if overlong == "refuse":
        with pytest.raises(
            DataError, match=r"dataset 'web', file '.*', record \d+: cannot be used \(too_long\)"
        ):
            run_leg(opened, 2)
        return
    leg = run_leg(opened, 2)
    assert leg.ended
    kept = [t[:seq_len] for t in documents if t not in long or overlong == "truncate"]
    assert documents_of(opened, leg.steps)["web"] == Counter(dict.fromkeys(kept, 2))
    kind = {"truncate": "truncated", "drop": "dropped"}[overlong]
    kinds = [kind if text in long else "" for text in documents]
    endless = open_here(replace(recipe, datasets=(replace(web, max_epochs=None),), when_exhausted="stop"))
    state = run_leg(endless, 2, num_steps=30).states[-1]
    assert counts_of(state) == passed_by(endless, state, kinds)
    assert counts_of(state)[kind] > 10


# Labels -----------------------------------------------------------------------------------------------------


def row_of(folder: Path, form: str, documents: Sequence[str], **fields: Any) -> Batch:
    """Returns the only batch of a pass over documents that fit a row of 8 and its rest."""
    web = dataset_of(folder, "web", documents, form, num_files=1, order="identity", max_epochs=1)
    recipe = recipe_of(
        folder, web, kind="best_fit", lanes=1, global_batch_size=1, when_exhausted="pad",
        **{"seq_len": 8} | fields,
    )  # fmt: skip
    (step,) = run_leg(open_here(recipe)).steps
    (batch,) = step
    return batch


def spelled(labels: Any) -> str:
    """Returns labels as text, those that are left out as dots."""
    return "".join("." if label == -100 else read([label]) for label in labels)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("bos", "eos", "inputs", "labels", "positions", "segments"),
    [
        (False, False, "abcde", "bc.e....", [0, 1, 2, 0, 1, 0, 0, 0], [1, 1, 1, 2, 2, 0, 0, 0]),
        (False, "</s>", "abc>de>", "bc>.e>..", [0, 1, 2, 3, 0, 1, 2, 0], [1, 1, 1, 1, 2, 2, 2, 0]),
        ("<s>", False, "<abc<de", "abc.de..", [0, 1, 2, 3, 0, 1, 2, 0], [1, 1, 1, 1, 2, 2, 2, 0]),
    ],
)
def test_two_documents_in_a_row_of_eight(
    tmp_path: Path, form: str, bos: Any, eos: Any, inputs: str, labels: str, positions: list[int],
    segments: list[int],
) -> None:  # fmt: skip
    """Labels stop at the end of a document and in padding; positions begin anew."""
    batch = row_of(tmp_path, form, ["abc", "de"], bos=bos, eos=eos)
    assert read(batch.inputs[0][batch.segment_ids[0] > 0]) == inputs
    assert spelled(batch.labels[0]) == labels
    assert batch.positions[0].tolist() == positions
    assert batch.segment_ids[0].tolist() == segments
    crossing = row_of(tmp_path / "crossing", form, ["abc", "de"], bos=bos, eos=eos, mask_document_ends=False)
    assert spelled(crossing.labels[0]) == (inputs[1:] + "." * 8)[:8]


@pytest.mark.parametrize("form", FORMATS)
def test_text_that_spells_the_end_token_is_no_end(tmp_path: Path, form: str) -> None:
    batch = row_of(tmp_path, form, ["a</s>b", "c"], seq_len=12)
    assert spelled(batch.labels[0]) == "</s>b>.>...."
    assert batch.segment_ids[0].tolist() == [1] * 7 + [2] * 2 + [0] * 3


# One document and another -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("micro_batch_size", [1, 2])
def test_one_document_of_a_row_does_not_change_the_other(
    tmp_path: Path, form: str, micro_batch_size: int
) -> None:
    """Two documents a row, two rows a step; the first of each row is another text of the same length."""
    found = []
    for name, first in (("one", "aaaa"), ("other", "zzzz")):
        web = dataset_of(
            tmp_path / name, "web", [first, first, "bbb", "ccc"], form, num_files=1, order="identity"
        )
        recipe = recipe_of(tmp_path / name, web, seq_len=9, lanes=2, global_batch_size=2)
        leg = run_leg(open_here(recipe), num_steps=1, micro_batch_size=micro_batch_size)
        found.append([np.concatenate([getattr(b, n) for b in leg.steps[0]])
                      for n in ("inputs", "labels", "positions", "segment_ids")])  # fmt: skip
    assert [read(row) for row in found[0][0]] == ["aaaa>bbb>", "aaaa>ccc>"]
    assert [spelled(row) for row in found[0][1]] == ["aaa>.bb>.", "aaa>.cc>."]
    for one, other in zip(*found, strict=True):
        assert one.shape == (2, 9)
        assert (one[:, 5:] == other[:, 5:]).all()
    assert found[0][2].tolist() == [[0, 1, 2, 3, 4, 0, 1, 2, 3]] * 2
    assert found[0][3].tolist() == [[1] * 5 + [2] * 4] * 2
    assert (found[0][0][:, :4] != found[1][0][:, :4]).all()


@pytest.mark.parametrize("kind", ["wrap", "best_fit"])
def test_the_segments_of_a_row_are_its_pieces_and_fill_it(tmp_path: Path, kind: str) -> None:
    web = dataset_of(tmp_path, "web", lettered(range(1, 27)), "jsonl", max_epochs=1)
    code = dataset_of(tmp_path, "code", lettered(range(26, 0, -1)), "parquet", max_epochs=1)
    recipe = recipe_of(
        tmp_path, web, code, kind=kind, schedule=Constant({"web": 2, "code": 1}), global_batch_size=8,
        lanes=4, when_exhausted="pad",
    )  # fmt: skip
    for step in run_leg(open_here(recipe), 2).steps:
        for batch in step:
            lengths = batch.pieces.length
            for row in range(len(batch.inputs)):
                mine = lengths[batch.pieces.row == row].tolist()
                segments = np.repeat(np.arange(1, len(mine) + 1), mine)
                padding = 16 - len(segments)
                assert batch.segment_ids[row].tolist() == segments.tolist() + [0] * padding
                restarts = [i for length in mine for i in range(length)]
                assert batch.positions[row].tolist() == restarts + [0] * padding
                ends = np.cumsum([0, *mine])[1:] - 1
                ignored = [*ends.tolist(), *range(16 - padding, 16), 15]
                assert np.flatnonzero(batch.labels[row] == -100).tolist() == sorted(set(ignored))
