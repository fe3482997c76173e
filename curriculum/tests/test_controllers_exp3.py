"""EXP3 against bandits of which the best arm is known."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest

from zephon import PARTS, Constant, ScheduleContext, Stages, compile_schedule
from zephon_curriculum import (
    ControllerContext,
    Exp3,
    Learner,
    Observation,
    PowerLaw,
    consult,
    quantise,
    simulate,
)
from zephon_curriculum.controllers.rounds import rounds_of, with_floor
from zephon_curriculum.controllers.simulate import _normal

LOSSES = {"web": 2.0, "code": 4.0, "math": 3.0}


def made_context(weights: Mapping[str, float]) -> ControllerContext:
    names = tuple(weights)
    told = ScheduleContext(names=names, total_steps=None, tokens_per_step=1000)
    base = compile_schedule(Constant(weights), told)
    return ControllerContext(names=names, base=base, total_steps=None, tokens_per_step=1000)


def fixed_losses(losses: Mapping[str, float], noise: float = 0.0, seed: int = 0) -> Learner:
    laws = {
        name: PowerLaw(alpha=0.0, log_beta=-50.0, log_eps=math.log(loss)) for name, loss in losses.items()
    }
    return Learner(laws=laws, noise=noise, seed=seed)


EVEN = made_context(dict.fromkeys(LOSSES, 1))


def observed(step: int, losses: Mapping[str, float | None], tokens: Mapping[str, int]) -> Observation:
    shares = quantise(dict.fromkeys(losses, 1), tuple(losses))
    return Observation(step=step, losses=losses, num_tokens=tokens, shares=shares)


def test_the_weights_are_those_of_the_formula() -> None:
    """Two rounds, drawn as planned: G = .9 * loss/10 + loss/10; w = .9 softmax(.3 G) + .1/3."""
    drawn = [dict.fromkeys(LOSSES, 1000 * t) for t in (1, 2)]
    history = [observed(1, {"web": 1.0, "code": 6.0, "math": 3.0}, drawn[0]), observed(2, LOSSES, drawn[1])]
    got = Exp3(context=EVEN, warmup=0).decide(history)
    assert got is not None
    total = {"web": 0.09 + 0.2, "code": 0.54 + 0.4, "math": 0.27 + 0.3}
    powers = {name: math.exp(0.3 * total[name]) for name in LOSSES}
    wanted = {name: 0.9 * powers[name] / sum(powers.values()) + 0.1 / 3 for name in LOSSES}
    assert got == pytest.approx(wanted, abs=1e-5)


def test_it_concentrates_on_the_dataset_whose_loss_stays_high() -> None:
    controller = Exp3(context=EVEN, every=5, warmup=0, memory=1.0, eta=1.0)
    got = simulate(controller, EVEN, fixed_losses(LOSSES, noise=0.3), 600, observe_every=5)
    seen = [o.shares for o in got.history if 500 <= o.step < 600]
    shares = {name: sum(of[name] for of in seen) / (PARTS * len(seen)) for name in seen[0]}
    assert shares["code"] == pytest.approx(0.9 + 0.1 / 3, abs=0.01)
    assert shares["web"] == pytest.approx(0.1 / 3, abs=0.01)


def test_it_follows_a_loss_that_moves() -> None:
    """With a memory of ten rounds the best dataset of the last rounds has most, whatever came before."""
    controller = Exp3(context=EVEN, every=1, warmup=0, eta=3.0)
    early = simulate(controller, EVEN, fixed_losses(LOSSES), 200).history
    turned = {"web": 4.0, "code": 2.0, "math": 3.0}
    last = early[-1]
    later = [
        Observation(
            step=last.step + seen.step,
            losses=turned,
            num_tokens={name: last.num_tokens[name] + seen.num_tokens[name] for name in LOSSES},
            shares=seen.shares,
        )
        for seen in early
    ]
    before, after = controller.decide(early), controller.decide([*early, *later])
    assert before is not None
    assert after is not None
    assert max(before, key=lambda name: before[name]) == "code"
    assert max(after, key=lambda name: after[name]) == "web"


def regret(num_rounds: int) -> float:
    """Returns the reward that the best arm would have had over what was had, drawing in proportion."""
    controller = Exp3(context=EVEN, every=1, warmup=0, eta="decay", gamma="decay", memory=1.0, max_loss=4.0)
    got = simulate(controller, EVEN, fixed_losses(LOSSES, noise=0.5), num_rounds)
    best = max(LOSSES.values())
    return sum(
        best - sum(LOSSES[name] * share / PARTS for name, share in seen.shares.items())
        for seen in got.history
    )


def test_the_regret_grows_slower_than_the_rounds() -> None:
    """With the paper's decaying rates: four times the rounds cost about twice as much."""
    totals = [regret(num_rounds) for num_rounds in (150, 600)]
    assert totals[1] < 2.6 * totals[0]


def test_one_arm_a_round_is_weighted_by_its_chance() -> None:
    """The paper's own setting: each round draws one dataset, and only its loss is known."""
    context = made_context({"web": 1, "code": 1})
    controller = Exp3(context=context, every=1, warmup=0, gamma=0.3, eta=0.1, memory=1.0)
    losses, tokens = {"web": 2.0, "code": 6.0}, {"web": 0, "code": 0}
    history: list[Observation] = []
    shares = {"web": PARTS // 2, "code": PARTS // 2}
    drawn = []
    for step in range(1, 301):
        chance = NormalDist().cdf(_normal(f"draw {step}"))
        arm = "web" if chance < shares["web"] / PARTS else "code"
        tokens = {**tokens, arm: tokens[arm] + 1000}
        known: dict[str, float | None] = {name: losses[name] if name == arm else None for name in losses}
        history.append(Observation(step=step, losses=known, num_tokens=tokens, shares=shares))
        shares = consult(controller, context, history).weights or shares
        drawn.append(arm)
    assert shares["code"] > 0.8 * PARTS
    assert drawn[-100:].count("code") > 60


def test_a_dataset_that_is_not_drawn_gains_nothing() -> None:
    context = made_context({"web": 1, "code": 1})
    history = [
        observed(1, {"web": 3.0, "code": 3.0}, {"web": 500, "code": 500}),
        observed(2, {"web": 3.0, "code": None}, {"web": 1500, "code": 500}),
    ]
    got = Exp3(context=context, warmup=0, eta=1.0).decide(history)
    assert got is not None
    assert got["web"] > got["code"]


def test_a_dataset_that_was_never_seen_is_taken_for_average() -> None:
    names = {"high": 6.0, "low": 2.0, "new": None}
    context = made_context(dict.fromkeys(names, 1))
    got = Exp3(context=context, warmup=0, eta=2.0).decide(
        [observed(1, names, {"high": 500, "low": 500, "new": 0})]
    )
    assert got is not None
    assert got["low"] < got["new"] < got["high"]


def test_shares_that_change_within_a_round_are_no_surprise() -> None:
    """Half of the tokens came before a change from 1/2 to 1/4: 3/8 is as planned at both ends."""
    context = made_context({"web": 1, "code": 1})
    parts = [{"web": PARTS // 2, "code": PARTS // 2}, {"web": PARTS // 4, "code": 3 * PARTS // 4}]
    tokens = [{"web": 500, "code": 500}, {"web": 875, "code": 1125}]
    history = [
        Observation(step=s + 1, losses={"web": 3.0, "code": 3.0}, num_tokens=tokens[s], shares=parts[s])
        for s in range(2)
    ]
    assert Exp3(context=context, warmup=0).decide(history) == pytest.approx({"web": 0.5, "code": 0.5})


def test_the_schedule_is_where_it_starts_from() -> None:
    context = made_context({"web": 8, "code": 1, "math": 1})
    even = observed(1, dict.fromkeys(LOSSES, 3.0), dict.fromkeys(LOSSES, 333))
    scheduled = Exp3(context=context, warmup=0, gamma=0.0).decide([even])
    assert scheduled == pytest.approx({"web": 0.8, "code": 0.1, "math": 0.1}, abs=1e-3)


def test_a_dataset_that_the_schedule_leaves_out_stays_out() -> None:
    names = ("web", "late")
    told = ScheduleContext(names=names, total_steps=None, tokens_per_step=1000)
    stages = Stages({0: {"web": 1, "late": 0}, 50: {"web": 1, "late": 1}})
    context = ControllerContext(
        names=names, base=compile_schedule(stages, told), total_steps=None, tokens_per_step=1000
    )
    controller = Exp3(context=context, every=10, warmup=0, floor=0.1)
    got = simulate(controller, context, fixed_losses({"web": 2.0, "late": 5.0}), 100, observe_every=10)
    assert {step: parts["late"] > 0 for step, parts in got.decisions.items()} == {
        step: step >= 50 for step in range(10, 101, 10)
    }


def test_the_floor_holds_and_the_warm_up_waits() -> None:
    controller = Exp3(context=EVEN, every=5, warmup=50, memory=1.0, gamma=0.0, eta=5.0, floor=0.05)
    got = simulate(controller, EVEN, fixed_losses(LOSSES), 400, observe_every=5)
    assert min(got.decisions) == 50
    least = quantise({"web": 0.05, "code": 0.9, "math": 0.05}, EVEN.names)
    assert got.decisions[400] == pytest.approx(least, abs=1)
    waits = consult(controller, EVEN, got.history[:3])
    assert waits.reason == "warm-up until step 50"


def test_floors_are_kept_exactly() -> None:
    assert with_floor(np.array([0.97, 0.02, 0.01]), 0.1) == pytest.approx([0.8, 0.1, 0.1])
    assert with_floor(np.array([5.0, 3.0, 2.0]), 0.1) == pytest.approx([0.5, 0.3, 0.2])
    assert with_floor(np.array([1.0, 1.0]), 0.5) == pytest.approx([0.5, 0.5])
    # The first raise pushes the second under the floor.
    assert with_floor(np.array([0.85, 0.105, 0.0, 0.045]), 0.1) == pytest.approx([0.7, 0.1, 0.1, 0.1])


def test_old_rounds_are_not_looked_at_where_they_are_forgotten() -> None:
    controller = Exp3(context=EVEN, every=10**6, warmup=0)
    history = simulate(controller, EVEN, fixed_losses(LOSSES, noise=0.3), 400).history
    near = controller.decide(history[-300:])
    assert controller.decide(history) == pytest.approx(near, abs=1e-8)


def test_rounds_with_a_fault_are_left_out() -> None:
    drawn = [dict.fromkeys(LOSSES, 1000 * t) for t in range(1, 4)]
    history = [observed(t + 1, LOSSES, drawn[t]) for t in range(3)]
    history[1] = replace(history[1], losses={**LOSSES, "web": math.nan})
    assert list(rounds_of(history, EVEN.names).steps) == [1, 3]
    history[2] = replace(history[2], step=4)
    unknowing = Observation(step=3, losses={"web": 2.0}, num_tokens={"web": 9}, shares={"web": PARTS})
    late = rounds_of([history[0], unknowing, history[2]], EVEN.names)
    assert late.num_tokens[1].tolist() == [9, 0, 0]
    got = Exp3(context=EVEN, warmup=0).decide(history)
    assert got is not None
    assert all(math.isfinite(weight) for weight in got.values())


def test_a_thousand_observations_of_twenty_datasets_cost_little() -> None:
    names = {f"d{i}": 1.0 + i / 10 for i in range(20)}
    context = made_context(names)
    quiet = Exp3(context=context, every=10**6, memory=1.0)
    history = simulate(quiet, context, fixed_losses(names, noise=0.1), 1000).history
    seconds = []
    for _ in range(5):
        start = time.process_time()
        assert quiet.decide(history) is not None
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.05


def test_decisions_come_one_by_one_as_they_would_from_the_whole() -> None:
    controller = Exp3(context=EVEN, every=10, warmup=20)
    got = simulate(controller, EVEN, fixed_losses(LOSSES, noise=0.2), 100, observe_every=5)
    assert list(got.decisions) == list(range(20, 101, 10))
    for step, parts in got.decisions.items():
        told = [seen for seen in got.history if seen.step <= step]
        assert consult(Exp3(context=EVEN, every=10, warmup=20), EVEN, told).weights == parts
    assert all(b - a == 10 for a, b in pairwise(got.decisions))
