"""When datasets with `max_epochs` end: in the first lane and in the last, by estimate.

Upstream: estimates of lengths and the curve of what is drawn. Downstream: `make.py`; `exact_ends.py` says the
same exactly where every length is known. A lane has a sample of the documents, so lanes differ by chance: the
first of many is earlier than the mean, the last later, both by quantiles of the extremes of normal variables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from zephon import Opened, Recipe
from zephon_curriculum.estimation.estimates import DatasetEstimate
from zephon_curriculum.plan.curve import Curve
from zephon_curriculum.quantity import CONFIDENCE, Quantity

UNKNOWN_CV = 1.0
"""How much lengths of documents are taken to differ, over their mean, where nobody measured it: as waiting
times do."""


def held_rows(num_lanes: int) -> float:
    """Returns the rows that a lane may owe at the start, at most, which makes the first steps even."""
    return 0.5 + min(24, num_lanes) / 16


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The steps in which lanes read the last document of a dataset; None: not in this run."""

    first: Quantity | None
    """Of the lane that is first."""
    last: Quantity | None
    """Of the lane that is last."""
    middle: int | None
    """Of a lane between them."""
    after: Quantity | None
    """Steps that are whole before the first lane lacks a document."""


@dataclass(frozen=True, slots=True)
class KnownEnd:
    """An end that nobody has to compute."""

    known: End

    def end(self, curve: Curve, dataset: int, num_steps: int) -> End:
        """Returns when the lanes end."""
        return self.known


@dataclass(frozen=True, slots=True, kw_only=True)
class EndModel:
    """What the ends of one dataset are computed from."""

    tokens: Quantity
    """Of an epoch."""
    mean_tokens: float
    """Of a document, those without any included."""
    std_tokens: float
    """Standard deviation of a document's tokens."""
    ends: tuple[int, ...]
    """Documents of each lane, in all epochs."""
    group_lanes: int
    """Lanes that share one order."""
    seq_len: int
    earlier_tokens: int
    """Tokens that earlier phases have drawn of it."""

    @classmethod
    def of(
        cls, recipe: Recipe, index: int, estimate: DatasetEstimate | None, opened: Opened | None
    ) -> EndModel | None:
        """Returns the model of a dataset; None where it has no end, or its size is unknown.

        Without opened data the documents are taken to be dealt as one group of all lanes.
        """
        epochs, tokens = recipe.datasets[index].max_epochs, size_of(estimate)
        if epochs is None or tokens is None or estimate is None or not estimate.documents:
            return None
        documents, lanes = estimate.documents, range(recipe.lanes)
        order = None if opened is None else opened.orders[index]
        mean = tokens.value / documents
        return cls(
            tokens=tokens,
            mean_tokens=mean,
            std_tokens=_sampled_cv(estimate, documents) * mean,
            ends=tuple(
                -((lane - epochs * documents) // len(lanes)) if order is None else order.end(lane)
                for lane in lanes
            ),
            group_lanes=len(lanes) if order is None else len(order.group(0)[0]),
            seq_len=recipe.packing.seq_len,
            earlier_tokens=earlier_tokens(recipe, index),
        )

    def lane_tokens(self) -> tuple[Quantity, Quantity]:
        """Returns the tokens of the lane that has the fewest, and of the one that has the most."""
        mean, tokens, num_lanes = self.mean_tokens, self.tokens, len(self.ends)
        low, high = ((1.0 if e is None else e / tokens.value) for e in (tokens.low, tokens.high))
        spread = self.std_tokens * math.sqrt(1 - 1 / self.group_lanes)
        earlier = self.earlier_tokens / num_lanes
        normal, tail = NormalDist(), (1 - CONFIDENCE) / 4
        far = normal.inv_cdf(1 - tail / num_lanes)
        found = []
        for count, sign in ((min(self.ends), -1), (max(self.ends), 1)):
            near, middle = (normal.inv_cdf(p ** (1 / self.ends.count(count))) for p in (tail, 0.5))
            std = sign * spread * math.sqrt(count)
            order = (far, near) if sign < 0 else (near, far)
            value = count * mean + middle * std
            below, above = (
                math.hypot(count * mean * (factor - 1), (z - middle) * std)
                for factor, z in zip((low, high), order, strict=True)
            )
            found.append(
                Quantity(value=value - earlier, low=value - below - earlier, high=value + above - earlier)
            )
        return found[0], found[1]

    def end(self, curve: Curve, dataset: int, num_steps: int) -> End:
        """Returns when the lanes end; a step of None is after `num_steps`."""
        first, last = self.lane_tokens()
        piece = min(self.seq_len, self.mean_tokens + 3 * self.std_tokens)
        lanes, has_interval = len(self.ends), self.tokens.low is not None
        there = sum(self.ends) * self.mean_tokens - self.earlier_tokens
        share = curve.drawn(dataset, num_steps) / max(1, curve.all_drawn(num_steps))
        held = held_rows(lanes) * self.seq_len
        ahead, behind = piece + held * (1 - share), piece + held * share

        def steps(tokens: Quantity, later: float = 0) -> Quantity | None:
            value = lanes * (tokens.value + later / 2)
            if not has_interval or tokens.low is None or tokens.high is None:
                return curve.when(dataset, Quantity(value=value), num_steps)
            low, high = lanes * (tokens.low - ahead), lanes * (tokens.high + behind + later)
            return curve.when(dataset, Quantity(value=value, low=low, high=high), num_steps)

        return End(
            first=steps(first),
            last=steps(last),
            middle=curve.step_of(dataset, min(there, lanes * (first.value + last.value) / 2), num_steps),
            after=steps(first, self.mean_tokens),
        )


def size_of(estimate: DatasetEstimate | None) -> Quantity | None:
    """Returns the tokens of an epoch; None where unknown, as of a stream, which has no end."""
    if estimate is None or estimate.tokens is None or not estimate.documents or not estimate.tokens.value:
        return None
    return estimate.tokens


def earlier_tokens(recipe: Recipe, index: int) -> int:
    """Returns the tokens that earlier phases have drawn of a dataset."""
    if recipe.continues is None:
        return 0
    return sum(lane.tokens[index] for lane in recipe.continues.lanes if index < len(lane.tokens))


def _sampled_cv(estimate: DatasetEstimate, documents: int) -> float:
    """Returns how much documents differ, from the standard error of their mean; chunks' differences count."""
    mean, count = estimate.tokens_per_document, estimate.sampled_documents
    if mean is None or not mean.std_error or not 0 < count < documents or not mean.value:
        return UNKNOWN_CV
    return mean.std_error * math.sqrt(count / (1 - count / documents)) / mean.value
