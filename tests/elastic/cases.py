"""Random recipes, small enough to run in milliseconds, and random ways to run them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import strategies as st

from tests.helpers import make_recipe
from zephon import feed, lane, prepare
from zephon.recipe import Recipe
from zephon.stages import Stages

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PACKERS = ("wrap", "best_fit", "sorted_rows")


def divisors(number: int) -> list[int]:
    """Returns the whole numbers that divide `number`, ascending."""
    return [d for d in range(1, number + 1) if number % d == 0]


@st.composite
def corpora(draw: st.DrawFn) -> dict[str, list[str]]:
    """Draws 1-4 datasets of 1-9 documents of 0-40 letters, of which one at least has text."""
    count = draw(st.integers(1, 4))
    made: dict[str, list[str]] = {}
    for dataset in range(count):
        lengths = draw(st.lists(st.integers(0, 40), min_size=0, max_size=8))
        lengths.append(draw(st.integers(1, 40)))
        made[f"d{dataset}"] = [LETTERS[i] * length for i, length in enumerate(lengths)]
    return made


@st.composite
def stages(draw: st.DrawFn, names: list[str]) -> Stages:
    """Draws 1-3 stages of whole weights, zeros among them."""
    weights = st.lists(st.integers(0, 3), min_size=len(names), max_size=len(names)).filter(any)
    starts = [0, *sorted(draw(st.sets(st.integers(1, 5), max_size=2)))]
    return Stages({start: dict(zip(names, draw(weights), strict=True)) for start in starts})


@st.composite
def recipes(draw: st.DrawFn, packers: tuple[str, ...] = PACKERS) -> Recipe:
    """Draws a recipe over datasets in memory."""
    documents = draw(corpora())
    lanes = draw(st.sampled_from([1, 2, 3, 4, 6, 8]))
    kind = draw(st.sampled_from(packers))
    seq_len = draw(st.sampled_from([1, 2, 5, 16, 33]))
    options: dict[str, object] = {}
    if kind == "best_fit":
        options = {"pool_documents": draw(st.integers(1, 6))}
        options["overlong"] = draw(st.sampled_from(["split", "truncate"])) if seq_len > 2 else "split"
    return make_recipe(
        documents,
        draw(stages(list(documents))),
        seed=draw(st.integers(0, 3)),
        lanes=lanes,
        global_batch_size=lanes * draw(st.integers(1, 3)),
        seq_len=seq_len,
        kind=kind,
        options=options,
        mask_document_ends=draw(st.booleans()),
        bos="<s>" if draw(st.booleans()) else False,
        eos="</s>" if draw(st.booleans()) else False,
        flush_every=draw(st.sampled_from([None, 1, 2, 5])) if kind != "wrap" else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to run a recipe; whatever it is, the rows are the same."""

    world: int
    micro_batch_size: int
    executor: str
    workers: int
    prefetch: int
    block_bytes: int
    block_documents: int
    group_bytes: int


@st.composite
def ways(draw: st.DrawFn, recipe: Recipe) -> Way:
    """Draws a way to run `recipe`."""
    world = draw(st.sampled_from(divisors(recipe.lanes)))
    rows = recipe.global_batch_size // world
    return Way(
        world=world,
        micro_batch_size=draw(st.sampled_from(divisors(rows))),
        executor=draw(st.sampled_from(["inline", "threads", "dawdling"])),
        workers=draw(st.integers(1, 3)),
        prefetch=draw(st.sampled_from([0, 1, 4])),
        block_bytes=draw(st.sampled_from([1, 8, 100, 1 << 20])),
        block_documents=draw(st.sampled_from([1, 3, 4096])),
        group_bytes=draw(st.sampled_from([1, 64, 1 << 18])),
    )


@contextlib.contextmanager
def block_sizes(way: Way) -> Iterator[None]:
    """Gives blocks and groups the sizes of `way`."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (feed, lane):
            patch.setattr(module, "MIN_BLOCK_BYTES", way.block_bytes)
        patch.setattr(feed, "MAX_BLOCK_BYTES", way.block_bytes)
        patch.setattr(feed, "GROUP_BYTES", way.group_bytes)
        patch.setattr(prepare, "MAX_BLOCK_DOCUMENTS", way.block_documents)
        yield
