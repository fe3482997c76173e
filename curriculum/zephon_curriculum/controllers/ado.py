"""ADO: more of the datasets whose loss falls fastest, by power laws fitted in the run (2410.11820).

    L_i(n)   = eps_i + beta_i n^-alpha_i, fitted to the smoothed losses of dataset i
    slope_i  = alpha_i (L_i(n) - eps_i) / n
    credit_i = h_i^power, h the realised fraction of the tokens, an exponential average over steps
    rho_i    = prior_i * slope_i * credit_i, normalised, raised to `floor`
    w_i      = momentum * average_i + (1 - momentum) * rho_i

n counts steps of the tokens of all datasets, as in the published code. The prior is what the schedule says
at the step. `average` is the prior scaled by the mean over time of share / prior, of the shares in force (the
published code: of its preferences, under a prior that stands): amendments count, the pace does not depend on
how often a decision is taken, and a stage of the schedule still begins where it should. Every decision fits
again, since nothing is kept: 50 to 200 ms for ten datasets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zephon import PARTS
from zephon_curriculum.controllers.config import check_floor, check_number, check_whole, fields_of
from zephon_curriculum.controllers.power_law import PowerLaw, fit_power_law, smoothed
from zephon_curriculum.controllers.protocol import ControllerContext, Observation, waits
from zephon_curriculum.controllers.rounds import Floats, Rounds, by_name, rounds_of, with_floor

MIN_ALPHA = 0.05
"""The least exponent that a slope is computed with, as in the published code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ado:
    """Shares by the forecast speed of learning; a pure function of the history."""

    context: ControllerContext
    every: int = 100
    """Steps between decisions."""
    warmup: int = 1000
    """Steps without a decision."""
    skip: int = 500
    """The first steps, which no fit looks at."""
    refit: int = 1000
    """Steps between fits, the first at `warmup`; a decision uses what was observed up to the last."""
    smoothing: int = 101
    """Observations under the window that smooths the losses."""
    floor: float = 0.01
    """The least share of each dataset that has one in the schedule."""
    power: float = 0.5
    """The power of the credit; 0: a dataset gets no credit for its tokens."""
    history: float = 0.9
    """How much of the credit's average is kept from step to step."""
    momentum: float = 0.9
    """How much of the average of all shares until here is in the weights."""

    def __post_init__(self) -> None:
        check_whole("ado", self, every=1, warmup=1, skip=0, refit=1, smoothing=1)
        if self.skip >= self.warmup:
            raise ValueError(
                f"controller ado: `skip` must be < `warmup`, got {self.skip} and {self.warmup}; "
                "the fit looks at the steps between them"
            )
        check_floor("ado", self.floor, len(self.context.names))
        check_number("ado", "power", self.power, 0.0)
        check_number("ado", "history", self.history, 0.0, 1.0)
        check_number("ado", "momentum", self.momentum, 0.0, 1.0)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], context: ControllerContext) -> Ado:
        """Returns the controller of a table `kind = "ado"`."""
        return cls(context=context, **fields_of("ado", config, cls))

    def decide(self, history: Sequence[Observation]) -> Mapping[str, float] | None:
        """Returns the weights after the newest observation; None in the warm-up and without a fit.

        A dataset without a fit of its own gets what the schedule says; the others divide the rest.
        """
        if waits(history, self.warmup):
            return None
        names, newest = self.context.names, history[-1]
        rounds = rounds_of(history, names)
        laws = self.fit(rounds)
        prior = np.array(self.context.base.at(newest.step), dtype=np.float64)
        active = np.flatnonzero(prior)
        fitted = np.array([i for i in active if laws[i] is not None], dtype=np.int64)
        wanted = preference(
            prior[fitted], [laws[i] for i in fitted], self._counts(rounds)[-1, fitted],
            self._credit(rounds)[fitted],
        )  # fmt: skip
        if wanted is None:
            return None
        target = prior / prior.sum()
        target[fitted] = wanted * max(0.0, 1.0 - np.delete(target, fitted).sum())
        target = with_floor(target[active], self.floor)
        blended = self.momentum * self._average(rounds)[active] + (1.0 - self.momentum) * target
        return by_name(names, active, with_floor(blended, self.floor))

    def reason(self, history: Sequence[Observation]) -> str:
        """Returns why `decide` gave None on `history`."""
        return waits(history, self.warmup) or "held: no dataset has 8 losses between `skip` and the last fit"

    def fit(self, rounds: Rounds) -> list[PowerLaw | None]:
        """Returns the law of each dataset, as of the last fit that was due; None: too few losses."""
        since_first = int(rounds.steps[-1]) - self.warmup
        last = self.warmup + since_first // self.refit * self.refit
        rows = (rounds.steps > self.skip) & (rounds.steps <= last)
        counts, laws = self._counts(rounds), []
        for k in range(len(self.context.names)):
            seen = rows & ~np.isnan(rounds.losses[:, k]) & (counts[:, k] > 0)
            n, first_seen = np.unique(counts[seen, k], return_index=True)
            losses = smoothed(rounds.losses[seen, k], self.smoothing)[first_seen]
            laws.append(fit_power_law(n, losses))
        return laws

    def _counts(self, rounds: Rounds) -> Floats:
        """Returns n of each observation and dataset, in steps of tokens."""
        own = rounds.num_tokens / self.context.tokens_per_step
        result: Floats = np.broadcast_to(own.sum(1, keepdims=True), own.shape)
        return result

    def _credit(self, rounds: Rounds) -> Floats:
        """Returns h^power after the newest observation; h starts as the shares of the first."""
        kept = self.history ** rounds.intervals()  # (T,)
        later = np.append(np.cumprod(kept[::-1])[::-1][1:], 1.0)  # what is kept of each round until the end
        recent = ((1.0 - kept) * later)[:, None] * rounds.realised()
        average = rounds.shares[0] * kept.prod() + recent.sum(axis=0)
        result: Floats = average**self.power
        return result

    def _average(self, rounds: Rounds) -> Floats:
        """Returns the prior after the newest observation, scaled by the mean of share / prior until here."""
        prior = np.array([self.context.base.at(step) for step in rounds.steps], dtype=np.float64) / PARTS
        steps = np.diff(rounds.steps, append=rounds.steps[-1]).astype(np.float64)
        steps[0] += rounds.steps[0]
        held = np.where(prior > 0, steps[:, None], 0.0)  # (T, K) steps from here on, in the schedule
        ratio = np.divide(rounds.shares, prior, out=np.zeros_like(prior), where=prior > 0)
        seen = held.sum(axis=0)
        scale = np.divide((held * ratio).sum(axis=0), seen, out=np.ones_like(seen), where=seen > 0)
        scaled = prior[-1] * scale
        result: Floats = scaled / scaled.sum() if scaled.any() else prior[-1]
        return result


def preference(prior: Floats, laws: Sequence[PowerLaw | None], n: Floats, credit: Floats) -> Floats | None:
    """Returns prior * slope * credit, normalised; None where that is nothing, or no number."""
    slopes = np.array(
        [0.0 if law is None else law.slope(float(m), MIN_ALPHA) for law, m in zip(laws, n, strict=True)]
    )
    wanted = prior * slopes * credit
    total = wanted.sum()
    if not np.isfinite(total) or total <= 0:
        return None
    result: Floats = wanted / total
    return result
