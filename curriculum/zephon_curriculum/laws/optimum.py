"""The mixture of the lowest loss that a law foretells, how sure it is, and what it gains over a baseline.

Upstream: `fit.py`. Downstream: the weights of a recipe, as whole parts. The runs' noise is drawn anew from
the errors on runs left out, the law fitted again and the optimum sought again: how far it moves is shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zephon import PARTS
from zephon.cli.common import add_row, new_table
from zephon_curriculum.chance import generator
from zephon_curriculum.figures import Report
from zephon_curriculum.laws.fit import LOGLINEAR, LawFit, fit_one
from zephon_curriculum.laws.mixtures import Floats, ShareLimits, make_limits, parts_of, ratios_of
from zephon_curriculum.results import Readable, Shown, warned

NUM_BOOTSTRAP = 200
INTERVAL = (2.5, 97.5)
"""Percentiles of the 95% intervals."""
TRIFLE = 1e-6
"""Ratios below this are what the search leaves of zero."""
OUTSIDE = 0.01
"""An optimum this far beyond what any run read is told of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """How far the optimum moves when the noise of the runs is drawn anew."""

    num_draws: int
    sd: tuple[float, ...]
    """Of each weight."""
    low: tuple[float, ...]
    """Lower ends of the weights' 95% intervals."""
    high: tuple[float, ...]
    gain_low: float
    """Of the gain over the baseline, less what the choice of the optimum owes to noise: 95% interval."""
    gain_high: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Optimum(Readable):
    """The mixture of the lowest mean loss, beside the baseline."""

    names: tuple[str, ...]
    shares: tuple[int, ...]
    """Whole parts of 2^20, as schedules compile to."""
    baseline: tuple[int, ...]
    targets: tuple[str, ...]
    losses: tuple[float, ...]
    """Foretold at the optimum, for each target."""
    baseline_losses: tuple[float, ...]
    bootstrap: Bootstrap | None
    """None without a bootstrap."""
    warnings: tuple[str, ...]

    @property
    def weights(self) -> dict[str, int]:
        """Returns the weights of a schedule."""
        return dict(zip(self.names, self.shares, strict=True))

    @property
    def gain(self) -> float:
        """Returns how much lower the foretold mean loss is than at the baseline."""
        return float(np.mean(self.baseline_losses) - np.mean(self.losses))

    @property
    def is_within_noise(self) -> bool:
        """Returns whether the runs do not show that the optimum is better than the baseline."""
        return self.bootstrap is None or self.bootstrap.gain_low <= 0

    def to_json(self) -> dict[str, Any]:
        """Returns the optimum as JSON data."""
        bootstrap = self.bootstrap
        return {
            "weights": self.weights,
            "ratios": {name: share / PARTS for name, share in self.weights.items()},
            "baseline": dict(zip(self.names, (share / PARTS for share in self.baseline), strict=True)),
            "losses": dict(zip(self.targets, self.losses, strict=True)),
            "baseline_losses": dict(zip(self.targets, self.baseline_losses, strict=True)),
            "gain": self.gain,
            "gain_interval": None if bootstrap is None else [bootstrap.gain_low, bootstrap.gain_high],
            "within_noise": self.is_within_noise,
            "bootstrap": 0 if bootstrap is None else bootstrap.num_draws,
            "sd": None if bootstrap is None else dict(zip(self.names, bootstrap.sd, strict=True)),
            "warnings": list(self.warnings),
        }

    def to_toml(self) -> str:
        """Returns the `[schedule]` table of a recipe with these weights, whole parts of 2^20."""
        cells = ", ".join(f"{_key(name)} = {share}" for name, share in self.weights.items())
        return f'[schedule]\nkind = "constant"\nweights = {{ {cells} }}\n'

    def shown(self) -> Shown:
        """Returns the optimum beside the baseline, what it gains and what is doubtful."""
        gain = f"gain over the baseline: {self.gain:.4f}"
        weights = new_table("dataset", "#optimum", "#sd", "#95% interval", "#baseline")
        if (drawn := self.bootstrap) is not None:
            gain += f", 95% interval [{drawn.gain_low:.4f}, {drawn.gain_high:.4f}]"
            gain += f" from {drawn.num_draws} draws" + (" (within the noise)" if self.is_within_noise else "")
        for i, (name, share) in enumerate(self.weights.items()):
            moves = ("", "")
            if drawn is not None:
                moves = (f"{drawn.sd[i]:.2%}", f"{drawn.low[i]:.1%} to {drawn.high[i]:.1%}")
            add_row(weights, name, f"{share / PARTS:.2%}", *moves, f"{self.baseline[i] / PARTS:.2%}")
        losses = new_table("target", "#loss at the optimum", "#at the baseline")
        for target, best, base in zip(self.targets, self.losses, self.baseline_losses, strict=True):
            add_row(losses, target, f"{best:.4f}", f"{base:.4f}")
        return Shown(head=gain, tables=(weights, losses), notes=warned(self.warnings))


def find_optimum(
    fit: LawFit,
    *,
    baseline: Mapping[str, float] | None = None,
    max_shares: Mapping[str, float] | None = None,
    min_shares: Mapping[str, float] | None = None,
    num_bootstrap: int = NUM_BOOTSTRAP,
    seed: int = 0,
    report: Report | None = None,
) -> Optimum:
    """Returns the mixture of the lowest mean loss over the targets, within limits of the shares.

    `baseline` is what it is compared with, the proportional mixture for instance; default: the mean of the
    runs. Raises `ValueError` for limits that no mixture keeps. Each bootstrap draw costs a fit for each
    target and a search.
    """
    if num_bootstrap < 0:
        raise ValueError(f"`num_bootstrap` must be >= 0, got {num_bootstrap}; 0 leaves the bootstrap out")
    names = fit.swarm.names
    base = fit.swarm.ratios.mean(axis=0) if baseline is None else ratios_of(baseline, names, "`baseline`")
    limits = make_limits(names, max_shares or {}, min_shares or {})
    shares = parts_of(minimize_law(fit, limits), names, TRIFLE)
    best, base_shares = np.array(shares) / PARTS, parts_of(base, names, TRIFLE)
    found = Optimum(
        names=names,
        shares=shares,
        baseline=base_shares,
        targets=fit.swarm.targets,
        losses=tuple(float(f.law.predict(best)) for f in fit.fits),
        baseline_losses=tuple(float(f.law.predict(np.array(base_shares) / PARTS)) for f in fit.fits),
        bootstrap=_bootstrap(fit, limits, base, best, num_bootstrap, seed, report) if num_bootstrap else None,
        warnings=(),
    )
    return replace(found, warnings=(*fit.warnings(), *_doubts(found, fit)))


def minimize_law(fit: LawFit, limits: ShareLimits, starts: Sequence[Floats] | None = None) -> Floats:
    """Returns the mixture of the lowest mean loss, by SLSQP with exact gradients.

    A log-linear law is convex, so one start finds the lowest; others take the corners as starts too.
    """
    ratios = fit.swarm.ratios
    if starts is None:
        starts = [ratios.mean(axis=0)]
        if fit.kind != LOGLINEAR:
            starts = [*starts, ratios[int(np.argmin(fit.mean_loss(ratios)))], *np.eye(ratios.shape[1])]
    best, lowest = starts[0], np.inf
    for start in starts:
        found = _search(fit, limits, limits.project(start))
        value = _objective(found, fit)[0]
        if value < lowest - 1e-12:  # a tie keeps the earlier start
            best, lowest = found, value
    return best


def _search(fit: LawFit, limits: ShareLimits, start: Floats) -> Floats:
    from scipy.optimize import minimize

    found = minimize(
        _objective, start, args=(fit,), jac=True, method="SLSQP",
        bounds=list(zip(limits.low, limits.high, strict=True)),
        constraints={"type": "eq", "fun": lambda r: r.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-12, "maxiter": 500},
    )  # fmt: skip
    kept = limits.project(np.asarray(found.x) if np.isfinite(found.x).all() else start)
    return kept if _objective(kept, fit)[0] <= _objective(start, fit)[0] else start


def _objective(ratios: Floats, fit: LawFit) -> tuple[float, Floats]:
    """Returns (mean loss, its gradient)."""
    return float(fit.mean_loss(ratios)), np.mean([f.law.gradient(ratios) for f in fit.fits], axis=0)


def _bootstrap(
    fit: LawFit,
    limits: ShareLimits,
    base: Floats,
    best: Floats,
    num_draws: int,
    seed: int,
    report: Report | None,
) -> Bootstrap:
    """Returns how the optimum moves over laws fitted to losses foretold plus errors of runs left out.

    A choice made on noise looks better than it is. By how much is seen in each draw, where the fitted law
    stands for the truth; the interval of the gain takes that off.
    """
    draws = generator("zephon_curriculum.optimum", fit.kind, seed)
    num_runs = len(fit.swarm.runs)
    chosen, flattery = np.empty((num_draws, len(base))), np.empty(num_draws)
    for draw in range(num_draws):
        again = _redrawn(fit, draws.integers(num_runs, size=num_runs))
        chosen[draw] = minimize_law(again, limits)
        pair = np.stack([base, chosen[draw]])
        seen, real = again.mean_loss(pair), fit.mean_loss(pair)
        flattery[draw] = (seen[0] - seen[1]) - (real[0] - real[1])
        if report is not None:
            report("bootstrap", draw + 1, num_draws)
    at = fit.mean_loss(np.stack([base, best]))
    low, high = np.percentile(chosen, INTERVAL, axis=0)
    least, most = np.percentile(flattery, INTERVAL)
    return Bootstrap(
        num_draws=num_draws,
        sd=tuple(chosen.std(axis=0).tolist()),
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
        gain_low=float(at[0] - at[1] - most),
        gain_high=float(at[0] - at[1] - least),
    )


def _redrawn(fit: LawFit, runs: Any) -> LawFit:
    """Returns the laws of losses foretold plus the errors of `runs`, the same runs for every target."""
    ratios = fit.swarm.ratios
    fits = []
    for f in fit.fits:
        errors = f.left_out - f.left_out.mean()
        losses = f.law.predict(ratios) + errors[runs]
        fits.append(replace(f, law=fit_one(fit.kind, ratios, losses, near=f.law)))
    return replace(fit, fits=tuple(fits))


def _doubts(found: Optimum, fit: LawFit) -> list[str]:
    """Returns what is doubtful about the optimum, as sentences."""
    told = []
    if found.bootstrap is None:
        told.append("without a bootstrap nothing says whether the gain is more than noise")
    elif found.is_within_noise:
        told.append(
            f"the gain over the baseline, {found.gain:.4g}, is within the noise: its 95% interval is "
            f"[{found.bootstrap.gain_low:.4g}, {found.bootstrap.gain_high:.4g}]; keep the baseline, or run "
            "more"
        )
    most, least = fit.swarm.ratios.max(axis=0), fit.swarm.ratios.min(axis=0)
    for i, (name, share) in enumerate(found.weights.items()):
        if not least[i] - OUTSIDE <= share / PARTS <= most[i] + OUTSIDE:
            told.append(
                f"the optimum has {share / PARTS:.1%} of {name!r}, and the runs had "
                f"{least[i]:.1%} to {most[i]:.1%}; add runs there, or a max share"
            )
    return told


def _key(name: str) -> str:
    """Returns a name as a key of TOML."""
    bare = name.replace("-", "").replace("_", "")
    if bare.isascii() and bare.isalnum():
        return name
    return json.dumps(name, ensure_ascii=False).replace("\x7f", "\\u007f")
