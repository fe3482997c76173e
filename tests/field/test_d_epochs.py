"""D1: each epoch has its own order, of seed and epoch alone; in file order all epochs are alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.elastic.endings import run_leg
from tests.field.corpora import FORMATS, dataset_of, open_here, recipe_of
from tests.helpers import read
from zephon.options import LoaderOptions

DOCUMENTS = [f"{i:02}" for i in range(20)]
CASES = [
    *((form, "threads") for form in FORMATS),
    pytest.param("parquet", "processes", marks=pytest.mark.slow),
]


def epochs(folder: Path, form: str, order: str, executor: str, seed: int = 42) -> list[list[str]]:
    """Returns the documents of three epochs, by one set of workers that stays alive."""
    web = dataset_of(folder, "web", DOCUMENTS, form, order=order)
    recipe = recipe_of(folder, web, seq_len=2, lanes=1, global_batch_size=1, eos=False, seed=seed)
    options = LoaderOptions(executor=executor, workers=2, prefetch=2)
    leg = run_leg(open_here(recipe), num_steps=60, options=options)
    texts = [read(step[0].inputs[0]) for step in leg.steps]
    return [texts[start : start + 20] for start in (0, 20, 40)]


@pytest.mark.parametrize(("form", "executor"), CASES)
def test_shuffled_epochs_differ_and_come_again(tmp_path: Path, form: str, executor: str) -> None:
    found = epochs(tmp_path, form, "shuffled", executor)
    assert [sorted(epoch) for epoch in found] == [DOCUMENTS] * 3
    assert len({tuple(epoch) for epoch in [*found, DOCUMENTS]}) == 4
    assert epochs(tmp_path, form, "shuffled", "threads") == found
    assert epochs(tmp_path, form, "shuffled", "threads", seed=43)[0] not in found


@pytest.mark.parametrize(("form", "executor"), CASES)
def test_epochs_in_file_order_are_the_files(tmp_path: Path, form: str, executor: str) -> None:
    assert epochs(tmp_path, form, "identity", executor) == [DOCUMENTS] * 3
