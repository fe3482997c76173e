"""EXP3: more of the datasets whose loss stays high, by exponential weights (online data mixing, 2312.02406).

The paper draws one dataset a batch and divides its reward, the loss, by the chance of that draw. Here every
dataset is drawn in exact proportion to its share of tokens, so the reward of a round is

    g_i = min(loss_i / max_loss, 1) * f_i / p_i

with f_i the fraction of the round's tokens that were of dataset i and p_i its share in force: the same mean,
hardly any variance, and nothing for a dataset that was not drawn. The weights are

    G_i = sum over rounds of memory^age * g_i
    w_i = (1 - gamma) * start_i exp(eta G_i) / sum + gamma / K

The paper's moving average is G (1 - memory), which only rescales eta; its rates for learning and exploration,
min(1/K, sqrt(ln K / (K t))) in round t, are `eta = "decay"` and `gamma = "decay"`. The numbers .3 and .1 that
stand here without are those of online mixing in fms-acceleration. Cost: below 20 ms for 1,000 observations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zephon_curriculum.controllers.config import check_floor, check_number, check_whole, fields_of
from zephon_curriculum.controllers.protocol import ControllerContext, Observation, waits
from zephon_curriculum.controllers.rounds import (
    Floats,
    Rounds,
    by_name,
    forward_filled,
    rounds_of,
    with_floor,
)

DECAY = "decay"
FORGOTTEN = 1e-9
MAX_RATIO = 10.0
"""Bound on f_i / p_i: one long document of a dataset with a tiny share is no evidence of its loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exp3:
    """Exponential weights by loss; a pure function of the history."""

    context: ControllerContext
    every: int = 20
    """Steps between decisions."""
    warmup: int = 100
    """Steps without a decision; their observations count later."""
    eta: float | str = 0.3
    """The learning rate, or "decay"."""
    gamma: float | str = 0.1
    """The part that is shared out evenly, to explore; or "decay"."""
    memory: float = 0.9
    """How much of the sum of rewards is kept from round to round; 1 for losses that do not move."""
    max_loss: float = 10.0
    """The loss of reward 1."""
    floor: float = 0.0
    """The least share of each dataset that has one in the schedule."""

    def __post_init__(self) -> None:
        check_whole("exp3", self, every=1, warmup=0)
        for name, value, most in (("eta", self.eta, math.inf), ("gamma", self.gamma, 1.0)):
            if value != DECAY:
                check_number("exp3", name, value, 0.0, most)
        check_number("exp3", "memory", self.memory, 0.0, 1.0)
        check_number("exp3", "max_loss", self.max_loss, 1e-6)
        check_floor("exp3", self.floor, len(self.context.names))

    @classmethod
    def from_config(cls, config: Mapping[str, Any], context: ControllerContext) -> Exp3:
        """Returns the controller of a table `kind = "exp3"`."""
        return cls(context=context, **fields_of("exp3", config, cls))

    def decide(self, history: Sequence[Observation]) -> Mapping[str, float] | None:
        """Returns the weights after the newest observation; None in the warm-up."""
        if self.reason(history):
            return None
        names = self.context.names
        prior = np.array(self.context.base.at(history[-1].step), dtype=np.float64)
        active = np.flatnonzero(prior)
        num_arms = len(active)
        total = self._total(history)[active]  # (K,)
        rate = decayed(num_arms, len(history))
        eta = rate if isinstance(self.eta, str) else self.eta
        gamma = rate * num_arms if isinstance(self.gamma, str) else self.gamma
        powers = np.log(prior[active]) + eta * total
        weights = np.exp(powers - powers.max())
        shares = (1.0 - gamma) * weights / weights.sum() + gamma / num_arms
        return by_name(names, active, with_floor(shares, self.floor))

    def _total(self, history: Sequence[Observation]) -> Floats:
        """Returns G of each dataset; rounds so old that they weigh less than FORGOTTEN are not looked at."""
        horizon = len(history)
        if self.memory < 1.0:
            horizon = 1 if self.memory == 0.0 else math.ceil(math.log(FORGOTTEN) / math.log(self.memory))
        gains = rewards(rounds_of(history[-horizon - 1 :], self.context.names), self.max_loss)
        gains = gains[-horizon:]  # without the round that only says what was drawn before
        ages = np.arange(len(gains) - 1, -1, -1, dtype=np.float64)
        total: Floats = ((self.memory**ages)[:, None] * gains).sum(axis=0)
        return total

    def reason(self, history: Sequence[Observation]) -> str:
        """Returns why nothing is decided on `history`; empty where something is."""
        return waits(history, self.warmup)


def rewards(rounds: Rounds, max_loss: float) -> Floats:
    """Returns g of each round and dataset; before its first loss a dataset has the mean of the others."""
    losses = forward_filled(rounds.losses)
    unseen = np.isnan(losses)
    known = np.clip(np.where(unseen, 0.0, losses) / max_loss, 0.0, 1.0)
    drawn, shares = rounds.realised(), rounds.shares
    before = np.vstack([shares[:1], shares[:-1]])
    # Shares may change within a round: any value between those at its two ends is as planned.
    planned = np.clip(drawn, np.minimum(before, shares), np.maximum(before, shares))
    ratio = np.divide(drawn, planned, out=np.zeros_like(drawn), where=planned > 0)
    gains = known * np.minimum(ratio, MAX_RATIO)
    num_known = np.maximum((~unseen).sum(axis=1, keepdims=True), 1)
    mean = np.where(unseen, 0.0, gains).sum(axis=1, keepdims=True) / num_known
    result: Floats = np.where(unseen, mean, gains)
    return result


def decayed(num_arms: int, num_rounds: int) -> float:
    """Returns the paper's rate in round `num_rounds`, counted from 1."""
    return min(1.0 / num_arms, math.sqrt(math.log(num_arms) / (num_arms * num_rounds)))
