"""A ramp as it is planned and as it is drawn: shares by step and phase, credits at every draw."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.helpers import INLINE, digest_of, loaders, make_recipe, open_small, sized, take_steps
from zephon import PARTS, Dataset, Ledger, Loader, ScheduleTable, Stages, compile_schedule
from zephon.opened import Opened
from zephon_curriculum.schedules.ramp import linear

STEPS, LANES, SEQ_LEN = 200, 32, 512
PHASES = 4


@pytest.fixture(scope="module")
def ramp() -> Opened:
    """Documents of 40 tokens make room for documents of 4,000 over 200 steps."""
    schedule = {"kind": "linear", "from": {"short": 9, "long": 1}, "to": {"short": 1, "long": 9}}
    documents = {"short": sized(4000, (40,)), "long": sized(200, (4000,))}
    return open_small(
        make_recipe(
            documents,
            schedule,
            seq_len=SEQ_LEN,
            lanes=LANES,
            global_batch_size=LANES,
            total_steps=STEPS,
            eos=False,
        )
    )


def drawn(opened: Opened, world: int) -> tuple[list[str], NDArray[np.int64]]:
    """Returns the digest of each step, and (steps, datasets) tokens."""
    found, tokens = [], []
    with loaders(opened, world) as ranks:
        for _ in range(STEPS):
            (step,) = take_steps(ranks, 1)
            found.append(digest_of(step))
            tokens.append(sum(batch.tokens.sum(axis=1) for batch in step))
    return found, np.array(tokens)


@pytest.fixture(scope="module")
def on_one(ramp: Opened) -> tuple[list[str], NDArray[np.int64]]:
    return drawn(ramp, 1)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4, 8])
def test_every_number_of_ranks_draws_the_same(
    ramp: Opened, on_one: tuple[list[str], NDArray[np.int64]], world: int
) -> None:
    digests, tokens = drawn(ramp, world)
    assert digests == on_one[0]
    assert (tokens == on_one[1]).all()


def distances(opened: Opened, tokens: NDArray[np.int64]) -> tuple[NDArray[np.float64], list[float]]:
    """Returns the total variation of each step, and by how much each of the phases is off."""
    planned = np.array([opened.table.at(step) for step in range(STEPS)]) / PARTS
    realised = tokens / tokens.sum(axis=1, keepdims=True)
    by_step = np.abs(realised - planned).sum(axis=1) / 2
    phases = np.split(np.arange(STEPS), PHASES)
    return by_step, [abs(float((realised[p] - planned[p]).mean(axis=0)[1])) for p in phases]


@pytest.mark.slow
def test_what_is_drawn_is_near_what_is_planned(
    ramp: Opened, on_one: tuple[list[str], NDArray[np.int64]]
) -> None:
    """Documents of exactly two lengths let lanes fall in step: a step is coarse, a phase is not."""
    planned = np.array([ramp.table.at(step) for step in (0, STEPS - 1)]) / PARTS
    assert planned.ravel().tolist() == pytest.approx([0.9, 0.1, 0.1, 0.9], abs=1e-6)
    by_step, by_phase = distances(ramp, on_one[1])
    assert by_step.mean() <= 0.10
    assert by_step.max() <= 0.50
    assert max(by_phase) <= 0.005


@pytest.mark.slow
def test_lengths_that_vary_bring_every_step_near_its_plan(ramp: Opened) -> None:
    documents = {"short": sized(4000, range(20, 61, 3)), "long": sized(200, range(2000, 6001, 170))}
    recipe = replace(
        ramp.recipe, datasets=tuple(Dataset.from_documents(name, texts) for name, texts in documents.items())
    )
    opened = open_small(recipe)
    by_step, by_phase = distances(opened, drawn(opened, 1)[1])
    assert by_step.mean() <= 0.035
    assert np.quantile(by_step, 0.95) <= 0.10
    assert max(by_phase) <= 0.005


# The bound of C4, at every draw -----------------------------------------------------------------------------


@st.composite
def tables(draw: st.DrawFn) -> ScheduleTable:
    """Draws shares of 1 to 6 datasets that ramp, jump and vanish, at steps in [0, 12)."""
    names = tuple(f"d{i}" for i in range(draw(st.integers(1, 6))))
    weights = st.lists(st.integers(0, 20), min_size=len(names), max_size=len(names)).filter(any)
    starts = [0, *sorted(draw(st.sets(st.integers(1, 11), max_size=11)))]
    stages = {start: dict(zip(names, draw(weights), strict=True)) for start in starts}
    if draw(st.booleans()):  # one dataset has all for a while
        stages[draw(st.sampled_from(starts))] = {name: int(name == names[0]) for name in names}
    recipe = make_recipe({name: ["x"] for name in names}, {"kind": "constant", "weights": stages[0]})
    context = recipe._schedule_context()
    return compile_schedule(Stages(stages), context)


@settings(max_examples=30)
@given(st.data())
def test_credits_stay_within_the_bound_at_every_draw(data: st.DataObject) -> None:
    table = data.draw(tables())
    longest = [data.draw(st.integers(1, 40)) for _ in table.names]
    documents = {
        name: sized(7, (length, max(1, length // 3)))
        for name, length in zip(table.names, longest, strict=True)
    }
    seq_len = data.draw(st.sampled_from([4, 16, 64]))
    lanes = data.draw(st.sampled_from([1, 2, 8]))
    recipe = make_recipe(documents, eos=False, seq_len=seq_len, lanes=lanes, global_batch_size=lanes)
    opened = replace(open_small(recipe), table=table)
    number = len(table.names)
    pieces = 2 + sum(Fraction(1, i) for i in range(1, number))
    held = (
        2 * seq_len + seq_len // 2
    )  # at most what a lane owes at its start, and gains with each first share
    most = (pieces * min(max(longest), seq_len) + held * number) * PARTS
    seen: list[int] = []

    def watch(ledger: Ledger, dataset: int, at_least: int) -> None:
        assert sum(ledger.credits) == 0
        assert max(abs(credit) for credit in ledger.credits) <= most
        assert ledger.credits[dataset] == max(
            credit for credit, share in zip(ledger.credits, ledger.shares, strict=True) if share
        )
        assert ledger.shares == table.at(ledger.rows)
        seen.append(dataset)

    with Loader(opened, INLINE, watch=watch) as loader:
        take_steps([loader], 12)
    assert seen
    active = {i for shares in table.shares for i, share in enumerate(shares) if share}
    assert set(seen) <= active


def test_a_ramp_is_the_plain_python_one() -> None:
    """An independent few lines: exact fractions, largest remainder, ties by order."""
    config = {"from": {"a": 3, "b": 1}, "to": {"a": 1, "b": 2, "c": 1}, "begin": 2, "end": 9}
    recipe = make_recipe({name: ["x"] for name in "abc"})
    table = compile_schedule(linear(config, recipe._schedule_context()), recipe._schedule_context())
    first = [Fraction(3, 4), Fraction(1, 4), Fraction(0)]
    last = [Fraction(1, 4), Fraction(1, 2), Fraction(1, 4)]
    for step in range(12):
        at = min(Fraction(1), max(Fraction(0), Fraction(step - 2, 7)))
        exact = [(a + (b - a) * at) * PARTS for a, b in zip(first, last, strict=True)]
        shares = [int(value) for value in exact]
        by_rest = sorted(range(3), key=lambda i: (shares[i] - exact[i], i))
        for i in by_rest[: PARTS - sum(shares)]:
            shares[i] += 1
        assert table.at(step) == tuple(shares)
