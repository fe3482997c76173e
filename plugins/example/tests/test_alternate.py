"""Tests of the schedule `alternate`, against the conformance kit and by hand."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

import pytest

from zephon import ScheduleContext
from zephon.testing import check_schedule
from zephon_example import Alternate

CONTEXT = ScheduleContext(names=("web", "code"), total_steps=10, tokens_per_step=4096)
CONFIG: Mapping[str, Any] = {"first": {"web": 3, "code": 1}, "second": {"code": 1}, "every": 4}


def test_the_kit_accepts_it() -> None:
    check_schedule(Alternate.from_config(CONFIG, CONTEXT), CONTEXT)


def test_it_is_registered() -> None:
    (entry,) = entry_points(group="zephon.schedules", name="alternate")
    assert entry.load() == Alternate.from_config


def test_the_mixtures_take_turns_and_the_last_turn_never_ends() -> None:
    schedule = Alternate.from_config(CONFIG, CONTEXT)
    assert (
        "".join("1" if schedule.weights(step) == schedule.first else "2" for step in range(16))
        == "1111222211111111"
    )
    assert list(schedule.changes()) == [0, 4, 8]


def test_a_dataset_that_is_not_named_has_weight_zero() -> None:
    assert Alternate.from_config(CONFIG, CONTEXT).second == {"web": 0, "code": 1}


def test_until_ends_the_turns_before_the_run_ends() -> None:
    schedule = Alternate.from_config({**CONFIG, "until": 5}, CONTEXT)
    assert list(schedule.changes()) == [0, 4]
    assert schedule.weights(9) == schedule.second


def test_its_table_makes_the_same_schedule() -> None:
    schedule = Alternate.from_config(CONFIG, CONTEXT)
    config = schedule.to_config()
    assert config.pop("kind") == "alternate"
    assert Alternate.from_config(config, CONTEXT) == schedule


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"every": 0}, "`every` must be a whole number >= 1, got 0"),
        ({"every": 2.0}, "`every` must be a whole number >= 1, got 2.0"),
        ({"until": -1}, "`until` must be a whole number >= 1, got -1"),
        ({"first": 1}, "`first` must be a table of weights, got 1"),
        ({"first": {"web": 0.5}}, "must be whole numbers >= 0, got 0.5 for `first.web`"),
        ({"second": {"web": 0}}, "a weight in `second` must be > 0"),
        (
            {"second": {"books": 1}},
            "names 'books', which is no dataset of the recipe; its datasets are web, code",
        ),
        ({"evry": 4}, "got first, second, every, evry"),
    ],
)
def test_wrong_fields_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"^schedule alternate: ") as caught:
        Alternate.from_config({**CONFIG, **change}, CONTEXT)
    assert message in str(caught.value)


def test_without_total_steps_until_must_be_given() -> None:
    endless = ScheduleContext(names=("web", "code"), total_steps=None, tokens_per_step=4096)
    with pytest.raises(ValueError, match="needs `until`"):
        Alternate.from_config(CONFIG, endless)
