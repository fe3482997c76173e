"""C12, as far as the loader goes: a schedule update is taken at its step, and cannot touch the past."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.helpers import digest_of, digests, loaders, make_recipe, open_small, take_steps, union, words
from tests.waiting import PATIENCE_S, own_threads, wait_until, within
from zephon.errors import ZephonError
from zephon.loader import Loader
from zephon.mixture import Ledger
from zephon.opened import Opened
from zephon.options import LoaderOptions
from zephon.recipe import Recipe
from zephon.schedule import ScheduleTable
from zephon.stages import Stages

DOCUMENTS = {"web": words("web", 30), "code": words("code", 30)}
WEB, CODE = {"web": 1, "code": 0}, {"web": 0, "code": 1}
INLINE = LoaderOptions(executor="inline")


def recipe(stages: Mapping[int, Mapping[str, float]], **fields: Any) -> Recipe:
    return make_recipe(DOCUMENTS, Stages(stages), **fields)


def table(stages: Mapping[int, Mapping[str, float]]) -> ScheduleTable:
    return recipe(stages).compile_schedule()


@dataclass
class Updates:
    """The table of each step that has one, and the steps that were asked for."""

    tables: dict[int, ScheduleTable] = field(default_factory=dict)
    lead_steps: int = 2
    asked: list[int] = field(default_factory=list)
    exchanged: list[int] = field(default_factory=list)
    head: str = ""

    def exchange(self, step: int) -> None:
        self.exchanged.append(step)

    def update(self, step: int) -> ScheduleTable | None:
        self.asked.append(step)
        return self.tables.get(step)


@pytest.mark.parametrize("options", [INLINE, LoaderOptions(workers=2, prefetch=4)], ids=["inline", "threads"])
def test_an_update_gives_the_rows_of_a_recipe_that_says_so(options: LoaderOptions) -> None:
    expected = digests(open_small(recipe({0: WEB, 5: CODE})), 8)
    updates = Updates({3: table({0: WEB, 5: CODE})})
    assert digests(open_small(recipe({0: WEB})), 8, 1, replace(options, updates=updates)) == expected


def test_every_token_from_the_step_on_is_of_the_new_mixture() -> None:
    opened = open_small(recipe({0: WEB}))
    with loaders(opened, updates=Updates({5: table({0: WEB, 5: CODE})})) as ranks:
        drawn = [step[0].tokens.sum(axis=1).tolist() for step in take_steps(ranks, 9)]
    assert drawn == [[64, 0]] * 5 + [[0, 64]] * 4


@pytest.mark.parametrize("world", [1, 2, 4])
def test_every_rank_takes_it_at_the_same_step(world: int) -> None:
    expected = digests(open_small(recipe({0: WEB, 4: {"web": 1, "code": 2}})), 8)
    opened = open_small(recipe({0: WEB}))
    new = table({0: WEB, 4: {"web": 1, "code": 2}})
    ranks_updates = [Updates({4: new}) for _ in range(world)]
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(Loader(opened, replace(INLINE, dp_rank=r, dp_world_size=world, updates=each)))
            for r, each in enumerate(ranks_updates)
        ]
        assert [digest_of(step) for step in take_steps(ranks, 8)] == expected


def test_it_is_asked_once_for_each_step_in_order() -> None:
    for micro in (1, 2, 8):
        updates = Updates()
        opened = open_small(recipe({0: WEB}, lanes=4, global_batch_size=8))
        with loaders(opened, updates=updates, micro_batch_size=micro) as ranks:
            take_steps(ranks, 5)
        assert updates.asked[:5] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("options", [INLINE, LoaderOptions(workers=2, prefetch=4)], ids=["inline", "threads"])
def test_an_update_that_changes_the_past_is_refused(options: LoaderOptions) -> None:
    updates = Updates({4: table({0: WEB, 3: CODE})})
    opened = open_small(recipe({0: WEB}))
    with loaders(opened, 1, options, updates=updates) as ranks:
        take_steps(ranks, 3)
        with pytest.raises(ZephonError, match="a schedule update at step 4 changes step 3") as refused:
            take_steps(ranks, 2)
    assert "web 0.0000%, code 100.0000% in place of web 100.0000%, code 0.0000%" in str(refused.value)


def test_an_update_of_other_datasets_is_refused() -> None:
    other = make_recipe({"web": ["a"], "prose": ["b"]}).compile_schedule()
    with (
        loaders(open_small(recipe({0: WEB})), updates=Updates({2: other})) as ranks,
        pytest.raises(ZephonError, match="a schedule update at step 2"),
    ):
        take_steps(ranks, 4)


@pytest.mark.parametrize("lead_steps", [1, 2, 3])
def test_rows_are_mixed_no_further_ahead_than_the_lead(lead_steps: int) -> None:
    updates = Updates(lead_steps=lead_steps)
    options = LoaderOptions(workers=1, prefetch=50)
    with loaders(open_small(recipe({0: WEB})), 1, options, updates=updates) as ranks:
        for step in range(4):
            take_steps(ranks, 1)
            wait_until(lambda step=step: updates.asked[-1] >= step + lead_steps)  # type: ignore[misc]
            time.sleep(0.02)  # no further
            assert updates.asked[-1] == step + lead_steps


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_lead_of_no_steps_does_not_wait_for_ever(prefetch: int) -> None:
    """Nothing is mixed before the step before it is delivered; the step asked for is."""
    options = LoaderOptions(workers=1, prefetch=prefetch)
    with loaders(open_small(recipe({0: WEB})), 1, options, updates=Updates(lead_steps=0)) as ranks:
        assert len(within(PATIENCE_S, lambda: take_steps(ranks, 3))) == 3


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_restored_loader_with_updates_goes_on(prefetch: int) -> None:
    """The lead is measured from the state that was loaded."""
    opened = open_small(recipe({0: WEB}))
    expected = digests(opened, 12)
    state = state_after(opened, 8)
    options = LoaderOptions(workers=1, prefetch=prefetch)
    with loaders(opened, 1, options, updates=Updates()) as ranks:
        ranks[0].load_state_dict(state)
        steps = within(PATIENCE_S, lambda: take_steps(ranks, 4))
        assert [digest_of(step) for step in steps] == expected[8:]


def state_after(opened: Opened, num_steps: int, **changes: Any) -> dict[str, Any]:
    with loaders(opened, 1, INLINE, **changes) as ranks:
        take_steps(ranks, num_steps)
        return union(ranks)


def test_a_state_after_an_update_fits_the_recipe_that_says_so() -> None:
    amended = open_small(recipe({0: WEB, 4: CODE}))
    updates = Updates({4: table({0: WEB, 4: CODE})})
    state = state_after(open_small(recipe({0: WEB})), 6, updates=updates)
    with loaders(amended) as ranks:
        ranks[0].load_state_dict(state)
        assert ranks[0].notes == []
        assert [digest_of(step) for step in take_steps(ranks, 2)] == digests(amended, 8)[6:]


def test_a_state_says_nothing_of_an_update_that_is_only_prefetched() -> None:
    """With prefetch the table of step 4 is in force for the mix when step 2 is delivered, and not for it."""
    new = table({0: WEB, 4: CODE})
    opened = open_small(recipe({0: WEB}))
    expected = state_after(opened, 3, updates=Updates({4: new}))
    updates = Updates({4: new})
    options = LoaderOptions(workers=1, prefetch=8)
    with loaders(opened, 1, options, updates=updates) as ranks:
        take_steps(ranks, 3)
        wait_until(lambda: updates.asked[-1] >= 4)
        assert union(ranks) == expected


def test_closing_wakes_a_loader_that_waits_for_its_lead() -> None:
    options = LoaderOptions(workers=1, prefetch=50)
    with loaders(open_small(recipe({0: WEB})), 1, options, updates=Updates()) as ranks:
        next(ranks[0])
    wait_until(lambda: "zephon-rows" not in own_threads())


# Agreeing with other ranks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("prefetch", "micro"), [(0, 1), (0, 4), (4, 2)])
def test_ranks_agree_once_a_step_before_its_first_batch_in_the_thread_that_takes_it(
    prefetch: int, micro: int
) -> None:
    threads: list[threading.Thread] = []

    class Exchanging(Updates):
        def exchange(self, step: int) -> None:
            threads.append(threading.current_thread())
            super().exchange(step)

    updates = Exchanging()
    options = LoaderOptions(workers=1, prefetch=prefetch, micro_batch_size=micro)
    with loaders(open_small(recipe({0: WEB})), 1, options, updates=updates) as (loader,):
        state = union([loader])
        for step in range(3):
            assert updates.exchanged == list(range(step))
            take_steps([loader], 1)
            if step == 1:
                state = union([loader])
    assert set(threads) == {threading.current_thread()}
    again = Updates()
    with loaders(open_small(recipe({0: WEB})), 1, options, updates=again) as (loader,):
        loader.load_state_dict(state)
        assert again.exchanged == []
        take_steps([loader], 2)
    assert again.exchanged == [2, 3]


def test_what_is_agreed_on_at_a_step_is_in_force_past_the_lead_at_any_prefetch() -> None:
    """Rows are mixed ahead of what is agreed on, but never so far that it could reach them."""
    new = table({0: WEB, 6: CODE})

    class AtThree(Updates):
        def exchange(self, step: int) -> None:
            if step == 3:
                self.now = new

        def update(self, step: int) -> ScheduleTable | None:
            return getattr(self, "now", None)

    expected = digests(open_small(recipe({0: WEB, 6: CODE})), 9)
    for prefetch in (0, 1, 8):
        options = LoaderOptions(workers=1, prefetch=prefetch)
        opened = open_small(recipe({0: WEB}))
        with loaders(opened, 1, options, updates=AtThree(lead_steps=2)) as ranks:
            assert [digest_of(step) for step in take_steps(ranks, 9)] == expected


def test_a_state_has_the_head_of_the_log() -> None:
    with loaders(open_small(recipe({0: WEB})), updates=Updates(head="abc")) as ranks:
        take_steps(ranks, 1)
        assert json.loads(union(ranks)["schedule"])["head"] == "abc"


def test_who_watches_sees_every_choice_and_the_ledger_it_was_made_by() -> None:
    seen: list[tuple[int, int, tuple[int, ...], int]] = []
    opened = open_small(recipe({0: {"web": 1, "code": 1}}))

    def watch(ledger: Ledger, dataset: int, at_least: int) -> None:
        seen.append((ledger.lane, ledger.rows, ledger.credits, dataset))

    with Loader(opened, INLINE, watch=watch) as loader:
        expected = digests(opened, 3)
        assert [digest_of(step) for step in take_steps([loader], 3)] == expected
    assert {(lane, rows) for lane, rows, _, _ in seen} == {
        (lane, row) for lane in range(4) for row in range(3)
    }
    assert all(credits[dataset] == max(credits) for _, _, credits, dataset in seen)
