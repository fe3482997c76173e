"""What does not fit a recipe's lanes is refused with the numbers, before anything is opened."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from tests.helpers import make_recipe
from zephon.options import LoaderKeywords, LoaderOptions


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dp_world_size": 0}, "`dp_world_size` must be a whole number >= 1, got 0"),
        ({"dp_world_size": 2.0}, "`dp_world_size` must be a whole number >= 1, got 2.0"),
        ({"dp_world_size": True}, "`dp_world_size` must be a whole number >= 1, got True"),
        ({"dp_rank": 2, "dp_world_size": 2}, r"`dp_rank` must be in \[0, 2\), got 2"),
        ({"dp_rank": -1}, r"`dp_rank` must be in \[0, 1\), got -1"),
        ({"dp_rank": True, "dp_world_size": 2}, r"`dp_rank` must be in \[0, 2\), got True"),
        (
            {"dp_world_size": 3},
            "got 3 ranks for 8 lanes; no lane count fits 16 rows and 3 ranks: set global_batch",
        ),
        ({"dp_world_size": 16}, "got 16 ranks for 8 lanes; set lanes = 16; or global_batch_size = 16 or 32"),
        ({"micro_batch_size": 3}, "must divide the rank's 16 rows a step, got 3"),
        ({"micro_batch_size": 0}, "must divide the rank's 16 rows a step, got 0"),
        ({"micro_batch_size": -1}, "must divide the rank's 16 rows a step, got -1"),
        ({"micro_batch_size": 2.0}, "must divide the rank's 16 rows a step, got 2.0"),
        ({"micro_batch_size": 16, "dp_world_size": 2}, "must divide the rank's 8 rows a step, got 16"),
        ({"workers": 0}, "`workers` must be a whole number >= 1, got 0"),
        ({"workers": {"tokenize": 0}}, "`workers` must be a whole number >= 1, got 0"),
        ({"workers": {"token": 2}}, "`workers` names operators, tokenize, got 'token'"),
        ({"workers": 1.5}, "`workers` must be a whole number >= 1, got 1.5"),
        ({"prefetch": -1}, "`prefetch` must be a whole number >= 0, got -1"),
        ({"prefetch": 1.5}, "`prefetch` must be a whole number >= 0, got 1.5"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LoaderOptions(**fields).check(8, 2)


@pytest.mark.parametrize(("lanes", "rows", "world"), [(8, 1, 3), (8, 2, 16), (12, 4, 16), (4, 6, 8)])
def test_the_lanes_that_the_refusal_proposes_fit(lanes: int, rows: int, world: int) -> None:
    with pytest.raises(ValueError, match="dp_world_size") as caught:
        LoaderOptions(dp_world_size=world).check(lanes, rows)
    given = re.search(r"; set lanes = ([\d, or]+); or ", str(caught.value))
    proposed = [(rows * lanes, int(n)) for n in re.findall(r"\d+", given[1] if given else "")]
    batches = re.search(r"global_batch_size = ([\d, or]+) with lanes = (\d+)", str(caught.value))
    assert batches is not None
    proposed += [(int(batch), int(batches[2])) for batch in re.findall(r"\d+", batches[1])]
    for batch, fitting in proposed:
        recipe = make_recipe(global_batch_size=batch, lanes=fitting)
        LoaderOptions(dp_world_size=world).check(recipe.lanes, recipe.rows_per_step)


@pytest.mark.parametrize("fields", [{"dp_world_size": w, "dp_rank": w - 1} for w in (1, 2, 4, 8)], ids=str)
def test_every_size_that_divides_the_lanes_fits(fields: dict[str, Any]) -> None:
    LoaderOptions(**fields).check(8, 2)
    LoaderOptions(micro_batch_size=16 // fields["dp_world_size"], **fields).check(8, 2)


@pytest.mark.parametrize("worker_timeout_s", [0, -1.0, float("nan"), "1"])
def test_a_time_that_no_block_can_keep_is_refused(worker_timeout_s: Any) -> None:
    with pytest.raises(ValueError, match="worker_timeout_s"):
        LoaderOptions(worker_timeout_s=worker_timeout_s).check(8, 2)


@pytest.mark.parametrize(
    ("workers", "count"),
    [(3, 3), ({"tokenize": 2}, 2), ({}, 1), (None, max(1, min(4, len(os.sched_getaffinity(0)) - 1)))],
)
def test_the_number_of_workers(workers: Any, count: int) -> None:
    assert LoaderOptions(workers=workers).num_workers == count


def test_the_keywords_are_the_options() -> None:
    assert set(LoaderKeywords.__annotations__) == set(LoaderOptions.__dataclass_fields__)


def test_a_recipe_refuses_before_it_opens_anything() -> None:
    recipe = make_recipe(tokenizer="missing")
    with pytest.raises(ValueError, match="got 3 ranks for 4 lanes"):
        recipe.loader(dp_world_size=3)
