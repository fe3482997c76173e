"""A switch at a loss, at exactly the step at which it is passed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from zephon import PARTS, Constant, ScheduleContext, compile_schedule
from zephon_curriculum import ControllerContext, Learner, Observation, PowerLaw, Threshold, consult, simulate

NAMES = ("web", "math")
TOLD = ScheduleContext(names=NAMES, total_steps=None, tokens_per_step=1000)
CONTEXT = ControllerContext(
    names=NAMES,
    base=compile_schedule(Constant({"web": 3, "math": 1}), TOLD),
    total_steps=None,
    tokens_per_step=1000,
)
LATER = {"web": 1, "math": 3}
LATER_PARTS = {"web": PARTS // 4, "math": 3 * PARTS // 4}


def watched(losses: list[float | None], shares: dict[str, int] | None = None) -> list[Observation]:
    """Returns observations of steps 1, 2, ... with these losses of web."""
    shares = shares or CONTEXT.prior(0)
    return [
        Observation(
            step=i + 1, losses={"web": loss, "math": 1.0}, num_tokens={"web": i, "math": i}, shares=shares
        )
        for i, loss in enumerate(losses)
    ]


def decided_at(controller: Threshold, losses: list[float | None]) -> list[int]:
    """Returns the steps at which it would change weights that nobody puts in force."""
    history = watched(losses)
    return [i + 1 for i in range(len(history)) if consult(controller, CONTEXT, history[: i + 1]).weights]


def test_it_switches_at_the_step_of_the_crossing() -> None:
    """The loss is 2 + 4 / sqrt(n): under 2.5 from step 65 on."""
    law = PowerLaw(alpha=0.5, log_beta=math.log(4), log_eps=math.log(2))
    learner = Learner(laws={"web": law, "math": law})
    controller = Threshold(context=CONTEXT, dataset="web", below=2.5, weights=LATER)
    got = simulate(controller, CONTEXT, learner, 100, lead_steps=0)
    assert got.decisions == {65: LATER_PARTS}
    in_force = {seen.step: seen.shares for seen in got.history}
    assert in_force[65] == CONTEXT.prior(0)
    assert in_force[66] == LATER_PARTS


def test_until_the_switch_is_in_force_it_is_asked_for_again() -> None:
    law = PowerLaw(alpha=0.5, log_beta=math.log(4), log_eps=math.log(2))
    controller = Threshold(context=CONTEXT, dataset="web", below=2.5, weights=LATER)
    got = simulate(controller, CONTEXT, Learner(laws={"web": law, "math": law}), 100, lead_steps=2)
    assert list(got.decisions) == [65, 66, 67]


def test_above_is_the_other_way_round() -> None:
    above = Threshold(context=CONTEXT, dataset="web", above=3.0, weights=LATER)
    assert decided_at(above, [2.0, 3.0, 3.1, 2.0]) == [3, 4]


def test_without_a_way_back_it_stays() -> None:
    controller = Threshold(context=CONTEXT, dataset="web", below=2.0, weights=LATER)
    assert decided_at(controller, [3.0, 1.9, 5.0, 1.0]) == [2, 3, 4]


def test_a_loss_is_the_mean_of_some_observations() -> None:
    controller = Threshold(context=CONTEXT, dataset="web", below=2.0, weights=LATER, smoothing=3)
    assert decided_at(controller, [1.0, 3.0, 2.5, 1.0, 2.0]) == [5]


def test_a_dataset_that_was_not_seen_is_waited_for() -> None:
    controller = Threshold(context=CONTEXT, dataset="web", below=2.0, weights=LATER)
    assert decided_at(controller, [None, None, 1.0]) == [3]
    assert consult(controller, CONTEXT, watched([None])).reason.startswith("no loss yet of 'web'")


def test_losses_of_the_warm_up_do_not_count() -> None:
    controller = Threshold(context=CONTEXT, dataset="web", below=2.0, weights=LATER, warmup=3)
    assert decided_at(controller, [1.0, 1.0, 2.5, 1.0]) == [4]


@pytest.mark.parametrize("loss", [math.nan, -math.inf])
def test_it_does_not_switch_on_what_is_no_number(loss: float) -> None:
    controller = Threshold(context=CONTEXT, dataset="web", below=2.0, weights=LATER)
    assert decided_at(controller, [3.0, loss, 3.0]) == []


def test_an_amendment_after_the_switch_stands() -> None:
    controller = Threshold(context=CONTEXT, dataset="web", below=2.0, weights=LATER)
    switched = watched([3.0, 1.0])[:2] + watched([0.0, 0.0, 1.0], LATER_PARTS)[2:]
    amended = [*switched, *watched([0.0, 0.0, 0.0, 1.0], {"web": PARTS, "math": 0})[3:]]
    got = consult(controller, CONTEXT, amended)
    assert got.weights is None
    assert got.reason == "loss 1 of 'web'; the switch was at step 2"


def test_it_says_what_it_waits_for() -> None:
    controller = Threshold(context=CONTEXT, dataset="web", below=2.0, weights=LATER)
    assert (
        consult(controller, CONTEXT, watched([2.5])).reason == "loss 2.5 of 'web'; waits until it is below 2"
    )


@pytest.mark.parametrize("weights", [None, 1, True, [1, 2], "web", {}, {"web": math.nan, "code": 1}])
def test_weights_that_are_no_mixture_are_refused(weights: Any) -> None:
    with pytest.raises(ValueError, match="controller: "):
        Threshold(context=CONTEXT, dataset="web", below=2.0, weights=weights)
