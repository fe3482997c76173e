"""The built-in schedules: what holds at each step, what is refused, and their tables of a recipe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from zephon.schedule import ScheduleContext, compile_schedule
from zephon.shares import PARTS
from zephon.stages import Constant, Stages

CONTEXT = ScheduleContext(names=("web", "code"), total_steps=10, tokens_per_step=64)
HALF, QUARTER = PARTS // 2, PARTS // 4


def test_constant_holds_at_every_step() -> None:
    compiled = compile_schedule(Constant({"web": 3, "code": 1}), CONTEXT)
    assert (compiled.starts, compiled.shares) == ((0,), ((3 * QUARTER, QUARTER),))


def test_stages_hold_from_their_step_on() -> None:
    stages = Stages({6: {"web": 1, "code": 0}, 0: {"web": 1, "code": 1}, 2: {"web": 0, "code": 5}})
    assert list(stages.changes()) == [0, 2, 6]
    assert [stages.weights(step)["web"] for step in range(8)] == [1, 1, 0, 0, 0, 0, 1, 1]
    compiled = compile_schedule(stages, CONTEXT)
    assert compiled.starts == (0, 2, 6)
    assert compiled.shares == ((HALF, HALF), (0, PARTS), (PARTS, 0))


def test_stages_with_equal_shares_are_one_entry() -> None:
    stages = Stages({0: {"web": 1, "code": 1}, 4: {"web": 7, "code": 7}, 6: {"web": 1, "code": 0}})
    assert compile_schedule(stages, CONTEXT).starts == (0, 6)


@pytest.mark.parametrize(
    "stages",
    [{}, {1: {"web": 1}}, {0: {"web": 1}, -1: {"web": 1}}, {0: {"web": 1}, 1.0: {"web": 1}}, [1], None],
)
def test_wrong_stages_are_refused(stages: Any) -> None:
    with pytest.raises(ValueError, match="schedule stages"):
        Stages(stages)


def test_true_is_no_step() -> None:
    with pytest.raises(ValueError, match="a step must be a whole number >= 0, got True"):
        Stages({0: {"web": 1}, True: {"web": 1}})


@pytest.mark.parametrize(
    "schedule",
    [Constant({"web": 0.5, "code": 2}), Stages({0: {"web": 1, "code": 1}, 9: {"web": 0, "code": 1}})],
)
def test_a_schedule_is_the_same_from_its_own_table(schedule: Constant | Stages) -> None:
    config = schedule.to_config()
    assert config.pop("kind") == type(schedule).__name__.lower()
    assert type(schedule).from_config(json.loads(json.dumps(config)), CONTEXT) == schedule


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        (Constant, {}, "field 'weights' is missing"),
        (Constant, {"weights": {"web": 1}, "weight": 1}, "unknown field 'weight'; did you mean 'weights'"),
        (Stages, {"stages": 3}, "must be a list of tables, got 3"),
        (Stages, {"stages": [{"step": 0}]}, "an entry has `step` and `weights`"),
        (Stages, {"stages": [{"step": 0, "weights": {"web": 1}}] * 2}, "step 0 is given twice"),
        (Stages, {"stages": [{"step": "0", "weights": {"web": 1}}]}, "from step 0 on"),
        (Stages, {}, "field 'stages' is missing"),
    ],
)
def test_a_wrong_table_is_refused(kind: Any, config: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind.from_config(config, CONTEXT)
