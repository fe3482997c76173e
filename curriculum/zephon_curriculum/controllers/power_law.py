"""The power law L(n) = eps + beta n^-alpha of a training loss, fitted robustly.

Upstream: the losses of one dataset. Downstream: `ado.py`. The objective is that of 2410.11820: the Huber loss
of log L against logsumexp(log beta - alpha log n, log eps), from several starts. It is minimised by scipy's
truncated Newton method: the L-BFGS-B of the paper gives the same laws, but its calls of threaded LAPACK make
seconds of 10 ms on a busy machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from zephon_curriculum.controllers.rounds import Floats

MAX_POINTS = 200
"""Points of a fit; of a longer curve an even selection."""
MIN_POINTS = 8
MAX_CALLS = 120
NUM_ALPHAS = 40
"""Points of a grid of starts."""
FURTHER = 6
"""Neighbours on the grid lead to the same place, so the second start is not the second best."""
MAX_ALPHA, MAX_LOG_BETA, MIN_LOG_EPS = 0.8, 6.5, 0.5
"""Bounds of the fit; see `fit_power_law`."""
DELTA = 1e-3
"""Where the Huber loss turns from square to linear, in units of log loss."""
SMOOTHING_ORDER = 3
"""The order of the polynomials of the smoothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLaw:
    """A loss of eps + beta n^-alpha."""

    alpha: float
    log_beta: float
    log_eps: float

    def reducible(self, n: float) -> float:
        """Returns the part of the loss above eps at `n`."""
        return math.exp(self.log_beta - self.alpha * math.log(n))

    def loss(self, n: float) -> float:
        """Returns the loss at `n`."""
        return math.exp(self.log_eps) + self.reducible(n)

    def slope(self, n: float, min_alpha: float = 0.0) -> float:
        """Returns how fast the loss falls at `n`: alpha (L - eps) / n, alpha being `min_alpha` at least."""
        return max(self.alpha, min_alpha) * self.reducible(n) / n


def smoothed(losses: Floats, window: int) -> Floats:
    """Returns `losses` under a Savitzky-Golay filter of `window` points, or of as many as there are."""
    from scipy.signal import savgol_filter

    width = min(window, len(losses))
    width -= 1 - width % 2
    if width <= SMOOTHING_ORDER + 1:
        return losses
    result: Floats = savgol_filter(losses, width, SMOOTHING_ORDER)
    return result


def fit_power_law(n: Floats, losses: Floats) -> PowerLaw | None:
    """Returns the law of the curve; None for fewer than 8 points, or losses that are not > 0.

    `n` is > 0 and ascends. The bound on eps gives way where the losses fall under it: eps may always be half
    of the smallest. The bound on beta is a steep penalty.
    """
    from scipy.optimize import minimize

    if len(n) < MIN_POINTS or losses.min() <= 0 or n[0] <= 0 or n[-1] <= n[0]:
        return None
    if len(n) > MAX_POINTS:
        chosen = np.unique(np.linspace(0, len(n) - 1, MAX_POINTS).round().astype(np.int64))
        n, losses = n[chosen], losses[chosen]
    log_n, log_loss = np.log(n), np.log(losses)
    middle = float(log_n.mean())
    curve = _Curve(log_n - middle, log_loss, middle)
    least = min(MIN_LOG_EPS, float(log_loss.min()) - math.log(2.0))
    bounds = [(-20.0, 20.0), (least, float(log_loss.max())), (0.0, MAX_ALPHA)]
    best: tuple[float, Floats] | None = None
    for start in _starts(curve, bounds):
        found = minimize(
            curve.objective,
            start,
            jac=True,
            method="TNC",
            bounds=bounds,
            options={"maxfun": MAX_CALLS, "ftol": 1e-7, "gtol": 1e-8, "xtol": 1e-7},
        )
        if math.isfinite(found.fun) and (best is None or found.fun < best[0]):
            best = (float(found.fun), found.x)
    if best is None or not np.isfinite(best[1]).all():
        return None
    level, log_eps, alpha = (float(value) for value in best[1])
    return PowerLaw(log_beta=level + alpha * middle, log_eps=log_eps, alpha=alpha)


@dataclass(frozen=True, slots=True)
class _Curve:
    """What is fitted. A point is (log of the power term in the middle, log eps, alpha): hardly correlated."""

    log_n: Floats  # (T,), their mean is 0
    log_loss: Floats  # (T,)
    middle: float
    """The mean of log n."""

    def objective(self, point: Floats) -> tuple[float, Floats]:
        """Returns the mean Huber loss in units of DELTA^2, with the penalty, and the gradient."""
        level, log_eps, alpha = point
        power = level - alpha * self.log_n
        fitted = np.logaddexp(power, log_eps)
        off = (fitted - self.log_loss) / DELTA
        pull = np.clip(off, -1.0, 1.0)
        value = float((pull * (off - 0.5 * pull)).mean())  # off^2 / 2, or |off| - 1/2
        pull /= DELTA * len(off)
        part = pull * np.exp(power - fitted)  # of the power term in the loss
        over = max(0.0, level + alpha * self.middle - MAX_LOG_BETA) / DELTA
        first = part.sum() + over / DELTA
        last = over * self.middle / DELTA - (part * self.log_n).sum()
        return value + 0.5 * over * over, np.array([first, pull.sum() - part.sum(), last])


def _starts(curve: _Curve, bounds: list[tuple[float, float]]) -> list[Floats]:
    """Returns points near the best, and one further off: of a grid over alpha, and of a finer one in it."""
    width = MAX_ALPHA / NUM_ALPHAS
    coarse = _solved(curve, bounds, np.linspace(width, MAX_ALPHA, NUM_ALPHAS))
    middle = coarse[0][2]
    around = np.linspace(max(middle - width, width / NUM_ALPHAS), min(middle + width, MAX_ALPHA), NUM_ALPHAS)
    return [_solved(curve, bounds, around)[0], coarse[FURTHER]]


def _solved(curve: _Curve, bounds: list[tuple[float, float]], alphas: Floats) -> list[Floats]:
    """Returns a point for each alpha, the rest of it solved by least squares; the best first."""
    (low, high), (low_eps, high_eps), _ = bounds
    weight = np.exp(-curve.log_loss)  # residuals relative to the loss
    x = np.exp(-alphas[:, None] * curve.log_n) * weight  # (A, T)
    xx, x1, ones = (x * x).sum(1), (x * weight).sum(1), (weight * weight).sum()
    xy, y1 = x.sum(1), weight.sum()
    term = (xy * ones - x1 * y1) / np.maximum(xx * ones - x1 * x1, 1e-300)
    eps = np.clip((y1 - term * x1) / ones, math.exp(low_eps), math.exp(high_eps))
    level = np.clip(np.log(np.maximum((xy - eps * x1) / xx, 1e-8)), low, high)
    points = np.stack([level, np.log(eps), alphas], axis=1)
    values = np.array([curve.objective(point)[0] for point in points])
    return [points[i] for i in np.argsort(values, kind="stable")]
