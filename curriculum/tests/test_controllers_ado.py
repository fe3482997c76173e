"""ADO against learners of which the power laws are known."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon import PARTS, Constant, ScheduleContext, Stages, compile_schedule
from zephon_curriculum import Ado, ControllerContext, Learner, PowerLaw, consult, simulate
from zephon_curriculum.controllers.power_law import fit_power_law

LAWS = {
    "web": PowerLaw(alpha=0.3, log_beta=1.5, log_eps=0.6),
    "code": PowerLaw(alpha=0.5, log_beta=2.5, log_eps=0.7),
    "math": PowerLaw(alpha=0.2, log_beta=1.0, log_eps=0.8),
}
PRIOR = {"web": 6, "code": 3, "math": 1}


def made_context(weights: Mapping[str, float], tokens_per_step: int = 1 << 20) -> ControllerContext:
    names = tuple(weights)
    told = ScheduleContext(names=names, total_steps=None, tokens_per_step=tokens_per_step)
    base = compile_schedule(Constant(weights), told)
    return ControllerContext(names=names, base=base, total_steps=None, tokens_per_step=tokens_per_step)


CONTEXT = made_context(PRIOR)
QUICK = {"every": 50, "warmup": 200, "skip": 50, "refit": 100, "smoothing": 1}


@given(st.floats(0.1, 0.7), st.floats(0.5, 3.0), st.floats(0.55, 1.2))
@settings(max_examples=15, deadline=None)
def test_the_law_of_a_curve_without_noise_is_found(alpha: float, log_beta: float, log_eps: float) -> None:
    law = PowerLaw(alpha=alpha, log_beta=log_beta, log_eps=log_eps)
    n = np.arange(100.0, 3000.0, 10.0)
    found = fit_power_law(n, np.array([law.loss(x) for x in n]))
    assert found is not None
    assert found.loss(3000.0) == pytest.approx(law.loss(3000.0), abs=2e-3)
    assert found.slope(3000.0) == pytest.approx(law.slope(3000.0), rel=0.02)
    assert found.alpha == pytest.approx(alpha, abs=0.01)
    assert math.exp(found.log_eps) == pytest.approx(math.exp(log_eps), abs=0.1)


def test_outliers_do_not_move_the_law() -> None:
    law = LAWS["web"]
    n = np.arange(100.0, 3000.0, 10.0)
    losses = np.array([law.loss(x) for x in n])
    losses[::17] += 3.0
    found = fit_power_law(n, losses)
    assert found is not None
    assert found.alpha == pytest.approx(law.alpha, abs=0.01)
    assert found.log_eps == pytest.approx(law.log_eps, abs=0.02)


def test_the_bounds_hold() -> None:
    n = np.arange(1.0, 400.0)
    steep = PowerLaw(alpha=1.5, log_beta=2.0, log_eps=0.6)
    found = fit_power_law(n, np.array([steep.loss(x) for x in n]))
    assert found is not None
    assert found.alpha <= 0.8
    low = PowerLaw(alpha=0.3, log_beta=0.0, log_eps=-1.5)
    found = fit_power_law(n, np.array([low.loss(x) for x in n]))
    assert found is not None
    assert math.exp(found.log_eps) < low.loss(400.0)  # although 0.5 is the least log of eps
    wide = PowerLaw(alpha=0.6, log_beta=9.0, log_eps=0.6)
    n = np.arange(1e5, 2e5, 1e3)
    found = fit_power_law(n, np.array([wide.loss(x) for x in n]))
    assert found is not None
    assert found.log_beta < 6.6


@pytest.mark.parametrize(
    ("n", "losses"),
    [
        (np.arange(1.0, 8.0), np.full(7, 2.0)),
        (np.arange(1.0, 20.0), np.zeros(19)),
        (np.full(20, 3.0), np.full(20, 2.0)),
        (np.arange(0.0, 20.0), np.full(20, 2.0)),
    ],
)
def test_a_curve_that_says_nothing_has_no_law(n: np.ndarray, losses: np.ndarray) -> None:
    assert fit_power_law(n, losses) is None


def expected(shares: Mapping[str, float], n: float, laws: Mapping[str, PowerLaw]) -> dict[str, float]:
    """Returns the preference of the paper with the true laws, by its own words."""
    total = sum(PRIOR.values())
    raw = {
        name: PRIOR[name]
        / total
        * law.alpha
        * math.exp(law.log_beta)
        * n ** (-law.alpha - 1)
        * shares[name] ** 0.5
        for name, law in laws.items()
    }
    return {name: value / sum(raw.values()) for name, value in raw.items()}


def test_the_weights_are_those_of_the_true_laws() -> None:
    """The first decision, before any share has moved: the credit is the root of the prior."""
    controller = Ado(context=CONTEXT, momentum=0.0, floor=0.0, **QUICK)
    got = simulate(controller, CONTEXT, Learner(laws=LAWS), 200, observe_every=5)
    prior = {name: weight / 10 for name, weight in PRIOR.items()}
    wanted = expected(prior, 200.0, LAWS)
    parts = got.decisions[200]
    assert {name: part / PARTS for name, part in parts.items()} == pytest.approx(wanted, abs=2e-3)


def test_the_run_settles_where_its_own_formula_says() -> None:
    """Every share goes a tenth of the way to the preference; with the credit fed back to itself."""
    controller = Ado(context=CONTEXT, momentum=0.0, floor=0.01, **QUICK)
    got = simulate(controller, CONTEXT, Learner(laws=LAWS), 1200, observe_every=5)
    before = {name: part / PARTS for name, part in got.decisions[1150].items()}
    after = {name: part / PARTS for name, part in got.decisions[1200].items()}
    assert after == pytest.approx(expected(before, 1200.0, LAWS), abs=0.01)


def test_noise_moves_the_weights_little() -> None:
    settings = {**QUICK, "smoothing": 101, "momentum": 0.0}
    clean = simulate(Ado(context=CONTEXT, **settings), CONTEXT, Learner(laws=LAWS), 600, observe_every=2)
    noisy = simulate(
        Ado(context=CONTEXT, **settings), CONTEXT, Learner(laws=LAWS, noise=0.02), 600, observe_every=2
    )
    one, other = clean.decisions[600], noisy.decisions[600]
    assert {n: p / PARTS for n, p in one.items()} == pytest.approx(
        {n: p / PARTS for n, p in other.items()}, abs=0.12
    )


def test_momentum_holds_the_shares_near_their_mean() -> None:
    jumpy = simulate(
        Ado(context=CONTEXT, momentum=0.0, **QUICK), CONTEXT, Learner(laws=LAWS), 200, observe_every=5
    )
    slow = simulate(
        Ado(context=CONTEXT, momentum=0.9, **QUICK), CONTEXT, Learner(laws=LAWS), 200, observe_every=5
    )
    for name, share in CONTEXT.prior(0).items():
        wanted = 0.9 * share + 0.1 * jumpy.decisions[200][name]
        assert slow.decisions[200][name] == pytest.approx(wanted, abs=2)


def test_a_decision_uses_the_laws_of_the_last_fit() -> None:
    """Fits are due at 200, 300, ...: what is seen from 201 to 250 does not change the laws at 250."""
    controller = Ado(context=CONTEXT, momentum=0.0, power=0.0, **QUICK)
    history = list(simulate(controller, CONTEXT, Learner(laws=LAWS), 250, observe_every=5).history)
    other = list(simulate(controller, CONTEXT, Learner(laws=LAWS, noise=0.3), 250, observe_every=5).history)
    mixed = [a if a.step <= 200 else b for a, b in zip(history, other, strict=True)]
    assert consult(controller, CONTEXT, mixed) == consult(controller, CONTEXT, history)
    assert consult(controller, CONTEXT, other) != consult(controller, CONTEXT, history)


def test_it_waits_for_the_warm_up_and_for_enough_losses() -> None:
    controller = Ado(context=CONTEXT, **QUICK)
    got = simulate(controller, CONTEXT, Learner(laws=LAWS), 200, observe_every=50)
    assert not got.decisions
    assert consult(controller, CONTEXT, got.history[:2]).reason == "warm-up until step 200"
    assert consult(controller, CONTEXT, got.history).reason.startswith("held: no dataset has 8 losses")


def test_a_stage_of_the_schedule_begins_where_it_should() -> None:
    """Math comes in at step 400 with 40 %: the mean of the past does not hold it down."""
    told = ScheduleContext(names=CONTEXT.names, total_steps=None, tokens_per_step=1 << 20)
    stages = Stages({0: {"web": 2, "code": 1, "math": 0}, 400: {"web": 4, "code": 2, "math": 4}})
    context = replace(CONTEXT, base=compile_schedule(stages, told))
    got = simulate(Ado(context=context, **QUICK), context, Learner(laws=LAWS), 600, observe_every=5)
    assert {step: parts["math"] for step, parts in got.decisions.items() if step < 400} == dict.fromkeys(
        range(200, 400, 50), 0
    )
    assert got.decisions[400]["math"] == pytest.approx(0.4 * PARTS, abs=2)
    assert got.decisions[600]["math"] > 0.3 * PARTS


def test_a_dataset_without_a_law_has_its_share_of_the_schedule() -> None:
    controller = Ado(context=CONTEXT, momentum=0.0, floor=0.0, **QUICK)
    history = simulate(controller, CONTEXT, Learner(laws=LAWS), 200, observe_every=5).history
    blind = [replace(seen, losses={**seen.losses, "code": None}) for seen in history]
    got = consult(controller, CONTEXT, blind).weights
    assert got is not None
    assert got["code"] == pytest.approx(0.3 * PARTS, abs=2)
    assert got["web"] + got["math"] == pytest.approx(0.7 * PARTS, abs=2)


def test_ten_datasets_are_fitted_within_a_second() -> None:
    names = {f"d{i}": 1 for i in range(10)}
    context = made_context(names)
    laws = {name: PowerLaw(alpha=0.1 + 0.06 * i, log_beta=1.5, log_eps=0.6) for i, name in enumerate(names)}
    controller = Ado(context=context, every=10**6)
    history = simulate(controller, context, Learner(laws=laws, noise=0.05), 2000, observe_every=2).history
    seconds = []
    for _ in range(3):
        start = time.process_time()
        assert controller.decide(history) is not None
        seconds.append(time.process_time() - start)
    assert min(seconds) < 1.0
