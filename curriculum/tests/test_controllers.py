"""What a controller is asked, and what becomes of its answer."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon import PARTS, Constant, ScheduleContext, compile_schedule
from zephon_curriculum import (
    Ado,
    Controller,
    ControllerContext,
    Exp3,
    Observation,
    Threshold,
    consult,
    make_controller,
    quantise,
)
from zephon_curriculum.controllers.protocol import fault_of, is_due

NAMES = ("web", "code")


def made_context(
    weights: Mapping[str, float] | None = None, tokens_per_step: int = 1024
) -> ControllerContext:
    weights = weights or {"web": 1, "code": 1}
    names = tuple(weights)
    told = ScheduleContext(names=names, total_steps=None, tokens_per_step=tokens_per_step)
    base = compile_schedule(Constant(weights), told)
    return ControllerContext(names=names, base=base, total_steps=None, tokens_per_step=tokens_per_step)


def seen(step: int, web: float | None = 2.0, code: float | None = 3.0) -> Observation:
    half = {"web": PARTS // 2, "code": PARTS // 2}
    losses = {"web": web, "code": code}
    return Observation(
        step=step, losses=losses, num_tokens={"web": 512 * step, "code": 512 * step}, shares=half
    )


class Fixed:
    """Decides on the same weights whatever was seen."""

    every = 10

    def __init__(self, weights: Mapping[str, float] | None) -> None:
        self.weights = weights

    def decide(self, history: Sequence[Observation]) -> Mapping[str, float] | None:
        return self.weights


def test_weights_become_parts_of_a_whole() -> None:
    assert quantise({"web": 3, "code": 1}, NAMES) == {"web": 786432, "code": 262144}
    assert quantise({"code": Fraction(1, 3), "web": Fraction(2, 3)}, NAMES) == {"web": 699051, "code": 349525}
    assert quantise({"a": 1, "b": 1, "c": 1}, ("a", "b", "c")) == {"a": 349526, "b": 349525, "c": 349525}


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=9).filter(any))
def test_parts_are_what_a_schedule_would_make_of_the_weights(values: list[float]) -> None:
    weights = {f"d{i}": value for i, value in enumerate(values)}
    names = tuple(weights)
    parts = quantise(weights, names)
    assert tuple(parts) == names
    assert sum(parts.values()) == PARTS
    told = ScheduleContext(names=names, total_steps=None, tokens_per_step=1)
    assert tuple(parts.values()) == compile_schedule(Constant(weights), told).shares[0]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"web": 1}, "no weight for dataset 'code'; write code = 0"),
        ({"web": 1, "code": 1, "math": 1}, "no dataset is named 'math'; the datasets are web, code"),
        ({"web": math.nan, "code": 1}, "weight of 'web' must be finite"),
        ({"web": math.inf, "code": 1}, "weight of 'web' must be finite"),
        ({"web": -1, "code": 1}, "weight of 'web' must be finite and >= 0"),
        ({"web": 0, "code": 0}, "at least one weight must be > 0"),
    ],
)
def test_weights_that_cannot_be_used_are_refused(weights: Mapping[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        consult(Fixed(weights), made_context(), [seen(10)])


def test_a_decision_is_integers_or_has_a_reason() -> None:
    context = made_context()
    assert consult(Fixed({"web": 1, "code": 3}), context, [seen(10)]).weights == {
        "web": 262144,
        "code": 786432,
    }
    nothing = consult(Fixed(None), context, [seen(10)])
    assert (nothing.weights, nothing.reason) == (None, "no change")


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        ([], "nothing is observed yet"),
        ([seen(10, web=math.nan)], "the loss of dataset 'web' at step 10 is nan"),
        ([seen(10), seen(20, code=math.inf)], "the loss of dataset 'code' at step 20 is inf"),
        ([seen(10, web=None, code=None)], "step 10 has no loss for any dataset"),
        (
            [Observation(step=5, losses={"web": 2.0}, num_tokens={"web": 1}, shares={"web": PARTS})],
            "has no loss for dataset 'code'",
        ),
        (
            [
                Observation(
                    step=5, losses={"web": 2.0, "code": 1.0}, num_tokens={"web": 1}, shares={"web": PARTS}
                )
            ],
            "no tokens or no share for dataset 'code'",
        ),
    ],
)
def test_nothing_is_decided_on_what_is_no_number(history: list[Observation], reason: str) -> None:
    decision = consult(Fixed({"web": 1, "code": 3}), made_context(), history)
    assert decision.weights is None
    assert decision.reason.startswith("held: ")
    assert reason in decision.reason


def test_a_dataset_without_a_token_does_not_hold_the_others() -> None:
    assert fault_of([seen(10, web=None)], NAMES) == ""


def test_only_the_newest_observation_can_hold() -> None:
    assert fault_of([seen(10, web=math.nan), seen(20)], NAMES) == ""


def test_decisions_are_due_at_multiples_of_every() -> None:
    assert [step for step in range(35) if is_due(Fixed(None), step)] == [10, 20, 30]


def test_what_has_every_and_decide_is_a_controller() -> None:
    assert isinstance(Fixed(None), Controller)


@given(
    st.integers(0, 10**12),
    st.lists(st.none() | st.floats(), min_size=2, max_size=2),
    st.lists(st.integers(0, 2**60), min_size=2, max_size=2),
)
def test_observations_pass_through_strict_json(
    step: int, losses: list[float | None], tokens: list[int]
) -> None:
    one = Observation(
        step=step,
        losses=dict(zip(NAMES, losses, strict=True)),
        num_tokens=dict(zip(NAMES, tokens, strict=True)),
        shares={"web": PARTS, "code": 0},
    )
    text = json.dumps(one.to_json(), allow_nan=False)
    again = Observation.from_json(json.loads(text))
    assert json.dumps(again.to_json(), allow_nan=False) == text
    assert (again.step, again.num_tokens, again.shares) == (one.step, one.num_tokens, one.shares)
    assert repr(again.losses) == repr(one.losses)


def test_a_controller_is_found_by_its_kind() -> None:
    context = made_context()
    for kind in ("exp3", "ado"):
        assert make_controller({"kind": kind, "every": 7}, context).every == 7
    table = {"kind": "threshold", "dataset": "web", "below": 2, "weights": {"web": 0, "code": 1}}
    assert make_controller(table, context).every == 1


def test_a_controller_without_a_known_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="`kind` must name a controller, got None"):
        make_controller({"every": 20}, made_context())
    with pytest.raises(LookupError, match="no controllers named 'exp4'"):
        make_controller({"kind": "exp4"}, made_context())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"kind": "exp3", "gama": 0.1}, "unknown field 'gama'; did you mean 'gamma'"),
        ({"kind": "exp3", "every": 0}, "`every` must be a whole number >= 1, got 0"),
        ({"kind": "exp3", "every": 2.0}, "`every` must be a whole number >= 1, got 2.0"),
        ({"kind": "exp3", "gamma": 1.5}, r"`gamma` must be a number in \[0, 1\], got 1.5"),
        ({"kind": "exp3", "eta": "fast"}, "`eta` must be a number >= 0, got 'fast'"),
        ({"kind": "exp3", "floor": 0.6}, "`floor` must be <= 1/2, got 0.6"),
        ({"kind": "ado", "momentom": 0.5}, "unknown field 'momentom'; did you mean 'momentum'"),
        ({"kind": "ado", "skip": 1000}, "`skip` must be < `warmup`, got 1000 and 1000"),
        ({"kind": "ado", "power": float("nan")}, "`power` must be a number >= 0, got nan"),
        ({"kind": "threshold", "weights": {"web": 1, "code": 0}}, "field 'dataset' is missing"),
        (
            {"kind": "threshold", "dataset": "web", "weights": {"web": 1, "code": 0}},
            "give `below` or `above`, one of them",
        ),
        (
            {"kind": "threshold", "dataset": "wed", "weights": {"web": 1, "code": 0}, "below": 2},
            "`dataset` must be one of web, code, got 'wed'",
        ),
        (
            {"kind": "threshold", "dataset": "web", "weights": {"web": 1}, "below": 2},
            "no weight for dataset 'code'",
        ),
    ],
)
def test_a_table_that_says_nonsense_is_refused(table: dict[str, object], message: str) -> None:
    kinds = {"exp3": Exp3, "ado": Ado, "threshold": Threshold}
    fields = {name: value for name, value in table.items() if name != "kind"}
    with pytest.raises(ValueError, match=message):
        kinds[str(table["kind"])].from_config(fields, made_context())
