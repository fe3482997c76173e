"""A switch at a loss, at exactly the step at which it is passed."""

from __future__ import annotations

import math

import pytest

from zephon import PARTS, Constant, ScheduleContext, compile_schedule
from zephon_curriculum.controllers import (
    ControllerContext,
    Learner,
    Observation,
    PowerLaw,
    Threshold,
    consult,
    simulate,
)

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
    controller = Threshold(context=CONTEXT, dataset="web", below=2.0, weights=LATER, max_switches=9)
    assert decided_at(controller, [3.0, 1.9, 5.0, 1.0]) == [2, 3, 4]


def test_between_the_two_values_nothing_changes() -> None:
    controller = Threshold(context=CONTEXT, dataset="web", below=2.0, back=3.0, weights=LATER, max_switches=9)
    losses: list[float | None] = [2.5, 1.9, 2.5, 2.9, 3.1, 2.5, 1.9]
    history = watched(losses)
    got = [consult(controller, CONTEXT, history[: i + 1]).weights for i in range(7)]
    # Back: the schedule's shares have been in force at that very step, so there is nothing to do.
    assert got == [None, LATER_PARTS, LATER_PARTS, LATER_PARTS, None, None, LATER_PARTS]


def test_it_goes_back_to_the_schedule() -> None:
    controller = Threshold(context=CONTEXT, dataset="web", below=2.0, back=3.0, weights=LATER, max_switches=9)
    history = watched([1.9, 1.9]) + watched([0.0, 0.0, 3.5], LATER_PARTS)[2:]
    assert consult(controller, CONTEXT, history).weights == CONTEXT.prior(3)


def test_it_switches_no_more_often_than_it_may() -> None:
    controller = Threshold(context=CONTEXT, dataset="web", below=2.0, back=3.0, weights=LATER, max_switches=1)
    history = watched([1.9, 3.5])
    assert consult(controller, CONTEXT, history).weights == LATER_PARTS


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
    assert got.reason == "loss 1 of 'web'; the last switch was at step 2"


def test_the_mixture_before_the_switch_may_be_given() -> None:
    controller = Threshold(
        context=CONTEXT, dataset="web", below=2.0, weights=LATER, before={"web": 1, "math": 0}
    )
    assert consult(controller, CONTEXT, watched([3.0])).weights == {"web": PARTS, "math": 0}
    assert consult(controller, CONTEXT, watched([3.0], {"web": PARTS, "math": 0})).weights is None


def test_it_says_what_it_waits_for() -> None:
    controller = Threshold(context=CONTEXT, dataset="web", below=2.0, back=3.0, weights=LATER, max_switches=9)
    assert (
        consult(controller, CONTEXT, watched([2.5])).reason == "loss 2.5 of 'web'; waits until it is below 2"
    )
    switched = watched([1.0], LATER_PARTS)
    assert consult(controller, CONTEXT, switched).reason == "loss 1 of 'web'; waits until it is above 3"
