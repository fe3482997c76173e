"""Mixing laws: what loss a mixture reaches, fitted to a swarm of small runs.

Upstream: `swarm.py`. Downstream: `optimum.py`, which looks for the mixture of the lowest loss. A law says how
well it foretells runs that it has not seen, by leaving out each run in turn; without that it says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from zephon.cli.common import add_row, new_table
from zephon_curriculum.laws.mixtures import Floats, ratios_of
from zephon_curriculum.laws.swarm import Swarm, advised_runs
from zephon_curriculum.results import Readable, Shown, warned

LOGLINEAR, QUADRATIC = "loglinear", "quadratic"
LAW_KINDS = (LOGLINEAR, QUADRATIC)
HUBER = 0.01
"""Residuals above this, in units of the loss, count by their size and not by their square."""
SLOPE_BOUND = 30.0
"""Bound of |t|: exp(30) is beyond any loss."""
GRID = (0.05, 0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
"""Values of c that a fit may start from, as parts of the way to the lowest loss."""
MAX_STARTS = 3
"""A fit starts from the best of these values until two starts agree."""
MAX_EVALUATIONS = 100
"""Of a fit from one start; losses that no mixture explains leave it walking about a plain."""
RIDGES = tuple(10.0 ** (k / 2) for k in range(-12, 5))
"""Penalties of the quadratic regression, of which leaving runs out picks one."""
SIGNIFICANT = 0.05
"""A law foretells something where chance would give its rank correlation less often than this."""


class Law(Protocol):
    """The loss of one target as a function of the mixture."""

    def predict(self, ratios: Floats) -> Floats:
        """Returns the losses of mixtures: (..., datasets) -> (...)."""
        ...

    def gradient(self, ratios: Floats) -> Floats:
        """Returns the derivative of the loss by each ratio, at one mixture."""
        ...


@dataclass(frozen=True, slots=True)
class LogLinear:
    """L(r) = c + exp(t . r); convex in r."""

    c: float
    t: Floats

    def predict(self, ratios: Floats) -> Floats:
        """Returns the losses of mixtures."""
        return np.asarray(self.c + np.exp(ratios @ self.t))

    def gradient(self, ratios: Floats) -> Floats:
        """Returns the derivative of the loss by each ratio, at one mixture."""
        return np.asarray(np.exp(ratios @ self.t) * self.t)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quadratic:
    """L(r) = constant + linear . r + r . matrix . r; not always convex."""

    constant: float
    linear: Floats
    matrix: Floats = field(repr=False)
    """Symmetric, with zeros on the diagonal: as ratios sum to 1, squares say nothing that products do not."""

    def predict(self, ratios: Floats) -> Floats:
        """Returns the losses of mixtures."""
        return np.asarray(
            self.constant + ratios @ self.linear + np.einsum("...i,ij,...j", ratios, self.matrix, ratios)
        )

    def gradient(self, ratios: Floats) -> Floats:
        """Returns the derivative of the loss by each ratio, at one mixture."""
        return np.asarray(self.linear + 2 * self.matrix @ ratios)


def residuals(parameters: Floats, ratios: Floats, losses: Floats) -> Floats:
    """Returns c + exp(ratios . t) - losses for the parameters (c, t)."""
    return np.asarray(parameters[0] + np.exp(ratios @ parameters[1:]) - losses)


def jacobian(parameters: Floats, ratios: Floats, losses: Floats) -> Floats:
    """Returns the derivatives of `residuals` by the parameters: (runs, 1 + datasets)."""
    slopes = np.exp(ratios @ parameters[1:])[:, None] * ratios
    return np.column_stack([np.ones(len(losses)), slopes])


def fit_loglinear(ratios: Floats, losses: Floats, near: LogLinear | None = None) -> LogLinear:
    """Returns the log-linear law of the runs: the best of several starts, by Huber's loss.

    `near` is a law of nearly the same losses, the only start then.
    """
    from scipy.optimize import least_squares

    spread = max(float(np.ptp(losses)), 1e-9)
    top = float(losses.min())
    bottom = min(0.0, top - 10 * spread)
    low = np.r_[bottom, np.full(ratios.shape[1], -SLOPE_BOUND)]
    high = np.r_[top - 1e-6 * spread, np.full(ratios.shape[1], SLOPE_BOUND)]
    if near is None:
        starts = [_start(bottom + part * (top - bottom), ratios, losses) for part in GRID]
        missed = [float(np.abs(residuals(start, ratios, losses)).sum()) for start in starts]
        first = [starts[i] for i in np.argsort(missed, kind="stable")[:MAX_STARTS]]
    else:
        first = [np.asarray(np.r_[near.c, near.t])]
    best, lowest = first[0], np.inf
    for start in first:
        found = least_squares(
            residuals, np.clip(start, low + 1e-9 * spread, high - 1e-9 * spread), jac=jacobian,
            bounds=(low, high), loss="huber", f_scale=HUBER, x_scale="jac", args=(ratios, losses),
            max_nfev=MAX_EVALUATIONS,
        )  # fmt: skip
        is_same = lowest < np.inf and abs(found.cost - lowest) <= 1e-6 * lowest
        if found.cost < lowest:
            best, lowest = found.x, float(found.cost)
        if is_same:  # two starts that agree have found it
            break
    return LogLinear(float(best[0]), np.asarray(best[1:]))


def _start(c: float, ratios: Floats, losses: Floats) -> Floats:
    """Returns the parameters with this c and the slopes that least squares of log(loss - c) gives."""
    slopes = np.linalg.lstsq(ratios, np.log(losses - c), rcond=None)[0]
    return np.asarray(np.r_[c, slopes])


def fit_quadratic(ratios: Floats, losses: Floats) -> Quadratic:
    """Returns the quadratic law of the runs: ridge regression on ratios and their products in pairs.

    The penalty is the one by which runs left out are foretold best.
    """
    from scipy import linalg

    num_datasets = ratios.shape[1]
    first, second = np.triu_indices(num_datasets, 1)
    features = np.hstack([ratios, ratios[:, first] * ratios[:, second]])
    centre, scale = features.mean(axis=0), features.std(axis=0)
    scale[scale == 0] = 1
    left, singular, right = linalg.svd((features - centre) / scale, full_matrices=False)
    mean = losses.mean()
    along = left.T @ (losses - mean)
    scored = [_left_out(left, singular, along, losses - mean, ridge) for ridge in RIDGES]
    ridge = RIDGES[int(np.argmin(scored))]
    slopes = right.T @ (singular * along / (singular**2 + ridge)) / scale
    matrix = np.zeros((num_datasets, num_datasets))
    matrix[first, second] = matrix[second, first] = slopes[num_datasets:] / 2
    constant = float(mean - centre @ slopes)
    return Quadratic(constant=constant, linear=slopes[:num_datasets], matrix=matrix)


def _left_out(left: Floats, singular: Floats, along: Floats, centred: Floats, ridge: float) -> float:
    """Returns the mean square of the errors of ridge regression on runs left out, from its hat matrix."""
    shrunk = singular**2 / (singular**2 + ridge)
    own = (left**2) @ shrunk + 1 / len(centred)  # the mean is fitted too
    errors = (centred - left @ (shrunk * along)) / np.maximum(1 - own, 1e-9)
    return float((errors**2).mean())


def fit_one(kind: str, ratios: Floats, losses: Floats, near: Law | None = None) -> Law:
    """Returns the law of a kind for one target; `near` is a law of nearly the same losses, a start."""
    if kind == LOGLINEAR:
        return fit_loglinear(ratios, losses, near if isinstance(near, LogLinear) else None)
    if kind == QUADRATIC:
        return fit_quadratic(ratios, losses)
    raise ValueError(f"`kind` must be one of {', '.join(LAW_KINDS)}, got {kind!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFit:
    """The law of one target, and how well it foretells."""

    target: str
    law: Law
    rmse: float
    """Of the runs it was fitted to."""
    left_out: Floats = field(repr=False)
    """Of each run, the loss reached minus that foretold by a law fitted without it."""
    mean_rmse: float
    """Of the mean of the other runs, the forecast that knows no mixture."""
    rank_correlation: float
    """Spearman's, of losses foretold for runs left out and losses reached; 0 where all are foretold alike."""
    p_value: float
    """How often chance gives a rank correlation as high."""

    @property
    def loo_rmse(self) -> float:
        """Returns the error on runs left out."""
        return float(np.sqrt((self.left_out**2).mean()))

    @property
    def foretells(self) -> bool:
        """Returns whether the law says more of a run that it has not seen than the mean of the others."""
        return self.p_value < SIGNIFICANT and self.loo_rmse < self.mean_rmse


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LawFit(Readable):
    """A law for every target of a swarm."""

    kind: str
    swarm: Swarm
    fits: tuple[TargetFit, ...]

    def mean_loss(self, ratios: Floats) -> Floats:
        """Returns the mean over the targets of the losses of mixtures."""
        return np.asarray(np.mean([fit.law.predict(ratios) for fit in self.fits], axis=0))

    def predict(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Returns the loss foretold for every target, at weights of any sum."""
        ratios = ratios_of(weights, self.swarm.names, "weights")
        return {fit.target: float(fit.law.predict(ratios)) for fit in self.fits}

    def warnings(self) -> list[str]:
        """Returns what is doubtful about the fit, as sentences."""
        num_runs, advised = len(self.swarm.runs), advised_runs(len(self.swarm.names))
        found = [
            f"the law of {fit.target!r} foretells nothing: it misses runs left out by {fit.loo_rmse:.4g}, "
            f"the mean of the others {fit.mean_rmse:.4g}; rank correlation {fit.rank_correlation:.2f}"
            for fit in self.fits
            if not fit.foretells
        ]
        if num_runs < advised:
            found.append(f"{num_runs} runs are few for {len(self.swarm.names)} datasets; take {advised}")
        return found

    def shown(self) -> Shown:
        """Returns how well the law of each target foretells runs that it has not seen."""
        table = new_table("target", "#error on runs left out", "#of their mean", "#rank correlation")
        for one in self.fits:
            errors = (f"{one.loo_rmse:.4g}", f"{one.mean_rmse:.4g}", f"{one.rank_correlation:.2f}")
            add_row(table, one.target, *errors)
        head = f"{self.kind} law of {len(self.swarm.runs)} runs"
        return Shown(head=head, tables=(table,), notes=warned(self.warnings()))


def fit_law(swarm: Swarm, kind: str = LOGLINEAR) -> LawFit:
    """Returns the law of every target, each with its error on runs left out.

    It costs a fit for each run and target: milliseconds each.
    """
    fits = tuple(_fit_target(swarm, column, kind) for column in range(len(swarm.targets)))
    return LawFit(kind=kind, swarm=swarm, fits=fits)


def _fit_target(swarm: Swarm, column: int, kind: str) -> TargetFit:
    ratios, losses = swarm.ratios, swarm.losses[:, column]
    law = fit_one(kind, ratios, losses)
    num_runs = len(losses)
    foretold = np.empty(num_runs)
    for run in range(num_runs):
        others = np.arange(num_runs) != run
        foretold[run] = fit_one(kind, ratios[others], losses[others]).predict(ratios[run])
    left_out = losses - foretold
    correlation, p_value = _rank_correlation(foretold, losses)
    from_mean = (losses - losses.mean()) * num_runs / (num_runs - 1)
    return TargetFit(
        target=swarm.targets[column],
        law=law,
        rmse=float(np.sqrt(((law.predict(ratios) - losses) ** 2).mean())),
        left_out=left_out,
        mean_rmse=float(np.sqrt((from_mean**2).mean())),
        rank_correlation=correlation,
        p_value=p_value,
    )


def _rank_correlation(foretold: Floats, losses: Floats) -> tuple[float, float]:
    from scipy.stats import spearmanr

    if np.ptp(foretold) == 0 or np.ptp(losses) == 0:
        return 0.0, 1.0
    found = spearmanr(foretold, losses, alternative="greater")
    return float(found.statistic), float(found.pvalue)
