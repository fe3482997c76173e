"""Mixing laws on losses of which the law is known: fits, errors on runs left out, the optimum, its spread."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon import PARTS
from zephon_curriculum.chance import generator
from zephon_curriculum.laws.fit import (
    LAW_KINDS,
    LOGLINEAR,
    QUADRATIC,
    LawFit,
    Quadratic,
    fit_law,
    fit_loglinear,
    fit_quadratic,
    jacobian,
    residuals,
)
from zephon_curriculum.laws.mixtures import Floats, make_limits
from zephon_curriculum.laws.optimum import find_optimum, minimize_law
from zephon_curriculum.laws.swarm import Swarm

NAMES = ("web", "code", "math", "wiki", "books")
SLOPES = np.array([[0.2, -0.5, -1.0, 0.3, 0.1], [-0.7, 0.1, 0.4, -0.2, 0.1], [0.3, 0.2, 0.1, -0.9, 0.2]])
"""Of three targets; each likes another dataset."""
NOISE = 0.004


def make_swarm(num_runs: int = 24, noise: float = NOISE, strength: float = 1.0, seed: int = 0) -> Swarm:
    """Returns runs of L = 1.5 + exp(strength * slopes . r) + noise; of strength 0 nothing but noise."""
    random = generator("test_laws", num_runs, seed)
    ratios = random.dirichlet(np.ones(5), num_runs)
    losses = 1.5 + np.exp(ratios @ (strength * SLOPES).T) + random.normal(0, noise, (num_runs, 3))
    runs = tuple(f"run_{i:03d}" for i in range(num_runs))
    return Swarm(names=NAMES, runs=runs, ratios=ratios, targets=("val", "code", "qa"), losses=losses)


def true_optimum() -> tuple[Floats, float]:
    """Returns the best mixture of the true law and its mean loss: of all mixtures in steps of 2.5%."""
    cuts = np.array(list(combinations(range(1, 45), 4)))
    ratios = (np.diff(cuts, axis=1, prepend=0, append=45) - 1) / 40
    losses = (1.5 + np.exp(ratios @ SLOPES.T)).mean(axis=1)
    return ratios[int(losses.argmin())], float(losses.min())


@pytest.fixture(scope="module")
def fits() -> dict[str, LawFit]:
    """Returns a fit of each kind to the 24 runs."""
    return {kind: fit_law(make_swarm(), kind) for kind in LAW_KINDS}


@given(st.integers(0, 2**32))
def test_the_jacobian_is_that_of_finite_differences(seed: int) -> None:
    random = generator("jacobian", seed)
    ratios, losses = random.dirichlet(np.ones(3), 6), random.random(6)
    at = random.normal(size=4)
    exact = jacobian(at, ratios, losses)
    for i in range(4):
        nudge = np.zeros(4)
        nudge[i] = 1e-6
        slope = (residuals(at + nudge, ratios, losses) - residuals(at - nudge, ratios, losses)) / 2e-6
        np.testing.assert_allclose(exact[:, i], slope, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", LAW_KINDS)
def test_gradients_are_those_of_finite_differences(fits: dict[str, LawFit], kind: str) -> None:
    for fit in fits[kind].fits:
        at = np.array([0.1, 0.2, 0.3, 0.15, 0.25])
        nudges = 1e-6 * np.eye(5)
        slopes = (fit.law.predict(at + nudges) - fit.law.predict(at - nudges)) / 2e-6
        np.testing.assert_allclose(fit.law.gradient(at), slopes, rtol=1e-6, atol=1e-8)


def test_without_noise_the_loglinear_law_is_found_again() -> None:
    swarm = make_swarm(noise=0)
    law = fit_loglinear(swarm.ratios, swarm.losses[:, 0])
    assert law.c == pytest.approx(1.5, abs=1e-4)
    assert law.t.tolist() == pytest.approx(SLOPES[0].tolist(), abs=1e-4)


def test_a_run_that_went_wrong_hardly_moves_the_loglinear_law() -> None:
    swarm = make_swarm(noise=0)
    losses = swarm.losses[:, 0].copy()
    losses[3] += 5.0
    corners = np.eye(5)
    error = fit_loglinear(swarm.ratios, losses).predict(corners) - 1.5 - np.exp(SLOPES[0])
    assert np.abs(error).max() < 0.05


def test_without_noise_the_quadratic_law_is_found_again() -> None:
    true = Quadratic(
        constant=2.0, linear=np.array([0.1, -0.2, 0.3]), matrix=0.4 * (np.ones((3, 3)) - np.eye(3))
    )
    ratios = generator("quadratic").dirichlet(np.ones(3), 20)
    law = fit_quadratic(ratios, true.predict(ratios))
    np.testing.assert_allclose(law.predict(np.eye(3)), true.predict(np.eye(3)), atol=1e-4)


@pytest.mark.parametrize("kind", LAW_KINDS)
def test_the_laws_foretell_runs_left_out(fits: dict[str, LawFit], kind: str) -> None:
    for fit in fits[kind].fits:
        assert fit.foretells
        assert fit.rank_correlation > 0.97
        assert fit.rmse <= fit.loo_rmse < (2 * NOISE if kind == LOGLINEAR else 6 * NOISE)
    assert fits[kind].warnings() == []


@pytest.mark.parametrize("kind", LAW_KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_of_noise_a_law_foretells_nothing_and_says_so(kind: str, seed: int) -> None:
    swarm = make_swarm(strength=0.0, seed=seed).only(["val"])
    fit = fit_law(swarm, kind)
    assert not fit.fits[0].foretells
    assert fit.fits[0].rank_correlation < 0.4
    assert fit.warnings()[0].startswith("the law of 'val' foretells nothing")
    found = find_optimum(fit, num_bootstrap=20)
    assert found.gain >= 0, "on paper there is always something to gain"
    assert found.is_within_noise
    assert any("is within the noise" in warning for warning in found.warnings)


def test_the_optimum_is_that_of_the_true_law(fits: dict[str, LawFit]) -> None:
    best, lowest = true_optimum()
    found = find_optimum(fits[LOGLINEAR], num_bootstrap=30)
    assert found.bootstrap is not None
    assert (np.array(found.shares) / PARTS).tolist() == pytest.approx(best.tolist(), abs=0.03)
    assert np.mean(found.losses) == pytest.approx(lowest, abs=0.01)
    assert max(found.bootstrap.sd) < 0.02
    assert not found.is_within_noise
    centre = make_swarm().ratios.mean(axis=0)
    gain = (1.5 + np.exp(SLOPES @ centre)).mean() - (
        1.5 + np.exp(SLOPES @ (np.array(found.shares) / PARTS))
    ).mean()
    assert found.bootstrap.gain_low <= gain <= found.bootstrap.gain_high
    assert find_optimum(fits[LOGLINEAR], num_bootstrap=30) == found


def test_the_quadratic_optimum_is_near(fits: dict[str, LawFit]) -> None:
    found = find_optimum(fits[QUADRATIC], num_bootstrap=0)
    assert (np.array(found.shares) / PARTS).tolist() == pytest.approx(true_optimum()[0].tolist(), abs=0.15)
    assert found.bootstrap is None
    assert found.is_within_noise, "nothing has shown that it is not"


def test_fewer_runs_make_the_optimum_less_sure() -> None:
    sds = []
    for num_runs in (24, 12):
        fit = fit_law(make_swarm(num_runs).only(["val", "qa"]))
        spread = find_optimum(fit, num_bootstrap=30).bootstrap
        assert spread is not None
        sds.append(max(spread.sd))
    assert 1.5 * sds[0] < sds[1], sds
    assert fit.warnings() == ["12 runs are few for 5 datasets; take 18"]


def test_a_loglinear_law_has_one_optimum_from_whatever_start(fits: dict[str, LawFit]) -> None:
    limits = make_limits(NAMES, {"wiki": 0.5}, {"web": 0.1})
    starts = generator("starts").dirichlet(np.full(5, 0.5), 20)
    found = np.array([minimize_law(fits[LOGLINEAR], limits, [start]) for start in starts])
    assert np.ptp(found, axis=0).max() < 1e-5


@given(st.integers(0, 2**32))
def test_limits_of_shares_are_kept(fits: dict[str, LawFit], seed: int) -> None:
    random = generator("limits", seed)
    inside = random.dirichlet(np.ones(5))
    max_shares = dict(zip(NAMES, np.minimum(inside + 0.2 * random.random(5), 1).tolist(), strict=True))
    min_shares = dict(zip(NAMES, np.maximum(inside - 0.2 * random.random(5), 0).tolist(), strict=True))
    found = find_optimum(fits[LOGLINEAR], max_shares=max_shares, min_shares=min_shares, num_bootstrap=0)
    assert sum(found.shares) == PARTS
    for name, share in found.weights.items():
        assert min_shares[name] - 1.5 / PARTS <= share / PARTS <= max_shares[name] + 1.5 / PARTS
    inside_loss = np.mean(
        list(fits[LOGLINEAR].predict(dict(zip(NAMES, inside.tolist(), strict=True))).values())
    )
    assert np.mean(found.losses) <= inside_loss + 1e-5


@pytest.mark.parametrize(
    ("max_shares", "min_shares", "message"),
    [
        (dict.fromkeys(NAMES, 0.15), {}, r"`max_shares` must sum to 1 or more, got 0.75: 0.25 short"),
        ({}, {"web": 0.7, "code": 0.5}, r"`min_shares` must sum to 1 or less, got 1.2: 0.2 too much"),
        ({"web": 0.2}, {"web": 0.3}, r"`min_shares` of 'web' must be <= its max share, 0.2, got 0.3"),
        ({"web": 1.5}, {}, r"`max_shares` of 'web' must be in \[0, 1\], got 1.5"),
        ({}, {"pdf": 0.1}, r"`min_shares` names 'pdf', which is no dataset of web, code"),
    ],
)
def test_limits_that_no_mixture_keeps_are_refused(
    max_shares: dict[str, float], min_shares: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_limits(NAMES, max_shares, min_shares)


def test_an_optimum_beyond_the_runs_is_told_of(fits: dict[str, LawFit]) -> None:
    swarm = fits[LOGLINEAR].swarm
    near = Swarm(
        names=swarm.names,
        runs=swarm.runs,
        ratios=0.2 + 0.5 * (swarm.ratios - 0.2),
        targets=("val",),
        losses=swarm.losses[:, :1],
    )
    found = find_optimum(fit_law(near), num_bootstrap=0)
    assert any("add runs there, or a max share" in warning for warning in found.warnings)


def test_unknown_kinds_and_baselines_are_refused(fits: dict[str, LawFit]) -> None:
    with pytest.raises(ValueError, match=r"`kind` must be one of loglinear, quadratic, got 'cubic'"):
        fit_law(make_swarm(), "cubic")
    with pytest.raises(ValueError, match=r"`baseline`: no weight for dataset 'code'"):
        find_optimum(fits[LOGLINEAR], baseline={"web": 1})
    with pytest.raises(ValueError, match="`num_bootstrap` must be >= 0, got -1"):
        find_optimum(fits[LOGLINEAR], num_bootstrap=-1)
    with pytest.raises(ValueError, match=r"`targets` names 'x', which is none of val"):
        make_swarm().only(["x"])
