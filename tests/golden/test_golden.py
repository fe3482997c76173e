"""Literal orders, shares and digests: edit only when you mean to break resume.

Whoever changes one of these lists changes the rows of every run, and no state taken before fits them. Then
`zephon.recipe.FORMAT` must be counted up as well, so that such states are refused.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import digests, loaders, make_recipe, open_small, read, take_steps, words
from zephon import order as order_module
from zephon.mixture import first_credits
from zephon.order import Order
from zephon.recipe import FORMAT, Recipe
from zephon.shares import PARTS, shares_of
from zephon.stages import Stages

ROOT = Path(__file__).resolve().parents[2]


def lane(order: Order, index: int, count: int) -> str:
    """Returns the first addresses of a lane as `chunk.record`, epochs not told apart."""
    found = order.locate(index, 0, count)
    pairs = zip(found.chunk.tolist(), found.record.tolist(), strict=True)
    return " ".join(f"{chunk}.{record}" for chunk, record in pairs)


def make(documents: Sequence[int], lanes: int, name: str = "web") -> Order:
    counts = np.array(documents)
    return Order(seed=42, name=name, num_lanes=lanes, num_documents=counts, num_bytes=100 * counts)


def stages() -> Stages:
    return Stages(
        {
            0: {"web": 3, "code": 1, "books": 0},
            4: {"web": 1, "code": 1, "books": 2},
            7: {"web": 0, "code": 1, "books": 1},
        }
    )


def recipe(kind: str) -> Recipe:
    """Returns three datasets in three stages, 4 lanes, 2 rows a step each."""
    documents = {"web": words("web", 30), "code": words("code", 7, (1, 9)), "books": words("books", 2, (40,))}
    options = {"pool_documents": 5} if kind == "best_fit" else None
    return make_recipe(
        documents, stages(), kind=kind, options=options, lanes=4, global_batch_size=8, seq_len=24
    )


def test_an_order_of_one_group() -> None:
    assert (
        lane(make([3, 1, 4], 1), 0, 16) == "0.2 2.1 2.3 0.1 0.0 2.2 1.0 2.0 0.2 0.0 2.2 2.0 2.1 1.0 2.3 0.1"
    )
    assert lane(make([3, 1, 4], 2), 0, 8) == "0.2 2.3 0.0 1.0 0.2 2.2 2.1 2.3"
    assert lane(make([3, 1, 4], 2), 1, 8) == "2.1 0.1 2.2 2.0 0.0 2.0 1.0 0.1"
    assert lane(make([3, 1, 4], 1, "code"), 0, 8) == "0.1 0.0 0.2 2.3 1.0 2.2 2.1 2.0"


def test_the_order_of_the_files() -> None:
    counts = np.array([3, 1, 4])
    found = [
        lane(
            Order(
                seed=42, name="web", num_lanes=lanes, num_documents=counts, num_bytes=counts, order="identity"
            ),
            index,
            8,
        )
        for lanes, index in ((1, 0), (3, 0), (3, 1), (3, 2))
    ]
    assert found == [
        "0.0 0.1 0.2 1.0 2.0 2.1 2.2 2.3",
        "0.0 1.0 2.2 0.1 2.0 2.3 0.2 2.1",
        "0.1 2.0 2.3 0.2 2.1 0.0 1.0 2.2",
        "0.2 2.1 0.0 1.0 2.2 0.1 2.0 2.3",
    ]


def test_an_order_of_groups_and_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_module, "GROUP_CHUNKS", 4)
    monkeypatch.setattr(order_module, "GROUP_DOCUMENTS", 2)
    monkeypatch.setattr(order_module, "WINDOW_CHUNKS", 2)
    order = make([2] * 8, 2)
    assert order.num_groups == 2
    assert lane(order, 0, 16) == "5.0 3.1 3.0 5.1 1.1 1.0 2.0 2.1 5.0 2.0 5.1 2.1 3.0 3.1 1.1 1.0"
    assert lane(order, 1, 16) == "4.0 6.0 4.1 6.1 7.1 7.0 0.0 0.1 6.0 6.1 7.1 7.0 4.0 4.1 0.1 0.0"


def test_shares() -> None:
    assert shares_of({"web": 0.7, "code": 0.2, "books": 0.1}, ("web", "code", "books"), "") == (
        734003,
        209715,
        104858,
    )


def test_first_credits() -> None:
    shares = (PARTS // 2, PARTS // 4, PARTS // 4)
    assert [first_credits(i, 4, shares, (0, 1, 2), 16) for i in range(4)] == [
        (-4718592, 7077888, -2359296),
        (5767168, -2883584, -2883584),
        (5242880, -2621440, -2621440),
        (-4194304, -2097152, 6291456),
    ]


def test_the_first_rows_of_a_run() -> None:
    with loaders(open_small(recipe("wrap"))) as ranks:
        ((batch,),) = take_steps(ranks, 1)
    assert [read(row) for row in batch.inputs] == [
        "web13 web13 >web11 web11",
        "code0 >code5 code5 code5",
        "web2 web2 web2 >web5 web",
        "web28 web28 >web19 web19",
        "code1 code1 code1 code1 ",
        "web17 web17 web17 >web29",
        "code2 >5 web5 >web10 web",
        "code3 code3 code3 code3 ",
    ]


DIGESTS = {
    "wrap": [
        "7e60c6fb133d92fa",
        "17a8f21484fde35c",
        "e2637f475e56034a",
        "443e8c3f7c6b61f3",
        "ce61f3a75fd495a4",
        "75b949d68a0b1e21",
        "7d7a64adb9a2fcb5",
        "a978dd799e8ed717",
        "8b5988f569bd850f",
        "8b62858a5c9cad14",
    ],
    "best_fit": [
        "08080395d91a0382",
        "4d4706d04e01be77",
        "2865c893622d5c3b",
        "27482461e67d47dd",
        "944f5bbd188b2d68",
        "1d883baa1edae9ba",
        "481616077eaaa5a4",
        "5c283b54ce7547e5",
        "e783cca41e809279",
        "1927b517c2329eb8",
    ],
}


@pytest.mark.parametrize("kind", DIGESTS)
def test_a_run(kind: str) -> None:
    assert [digest[:16] for digest in digests(open_small(recipe(kind)), 10)] == DIGESTS[kind]


def test_a_state() -> None:
    with loaders(open_small(recipe("best_fit"))) as ranks:
        take_steps(ranks, 2)
        state = ranks[0].state_dict()
    assert list(state) == ["version", "recipe", "lock", "schedule", *(f"lane_0000{i}" for i in range(4))]
    assert json.loads(state["lane_00001"]) == {
        "lane": 1,
        "rows": 4,
        "tokens": [74, 55, 0],
        "documents": [5, 2, 0],
        "credits": [12845056, -12845056, 0],
        "cursors": [[5, 0, 0], [1, 0, 48], None],
        "counts": [{}, {}, {}],
        "carry": [[0, 2, 0, 0, 19], [1, 1, 0, 24, 24], [0, 3, 0, 0, 11], [0, 4, 0, 0, 6]],
    }


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_a_run_in_another_process(seed: str) -> None:
    code = (
        "from tests.golden.test_golden import recipe; from tests.helpers import digests, open_small\n"
        "print(*(d[:16] for d in digests(open_small(recipe('wrap')), 10)))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == DIGESTS["wrap"]


def test_the_format_is_the_one_of_these_lists() -> None:
    assert FORMAT == 1
