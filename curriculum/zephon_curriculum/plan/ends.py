"""When datasets with `max_epochs` end: in the first lane and in the last, by estimate.

Upstream: estimates of lengths and the curve of what is drawn. Downstream: `plan.py`; `exact_ends.py` says the
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
class Lengths:
    """The documents of one dataset, as far as the lanes' ends ask for them."""

    tokens: Quantity
    """Of an epoch."""
    documents: int
    std_tokens: float
    """Standard deviation of a document's tokens."""

    @property
    def mean_tokens(self) -> float:
        """Returns the tokens of a document on average, those without any included."""
        return self.tokens.value / self.documents

    @classmethod
    def of(cls, estimate: DatasetEstimate) -> Lengths | None:
        """Returns the lengths that an estimate stands for; None of a stream, which has no end."""
        tokens, documents = estimate.tokens, estimate.documents
        if tokens is None or not documents or not tokens.value:
            return None
        mean = tokens.value / documents
        cv = _sampled_cv(estimate, documents)
        return cls(tokens=tokens, documents=documents, std_tokens=cv * mean)


def _sampled_cv(estimate: DatasetEstimate, documents: int) -> float:
    """Returns how much documents differ, from the standard error of their mean; chunks' differences count."""
    mean, count = estimate.tokens_per_document, estimate.sampled_documents
    if mean is None or not mean.std_error or not 0 < count < documents or not mean.value:
        return UNKNOWN_CV
    return mean.std_error * math.sqrt(count / (1 - count / documents)) / mean.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How the documents of a dataset are dealt to the lanes, in all epochs."""

    fewest: int
    """Positions of the lanes that have the fewest."""
    num_fewest: int
    most: int
    num_most: int
    num_lanes: int
    group_lanes: int
    positions: int
    """Of all lanes."""


def shape_of(recipe: Recipe, index: int, documents: int, opened: Opened | None) -> Shape | None:
    """Returns how the lanes' ends are spread; without opened data, as one group of all lanes."""
    epochs, lanes = recipe.datasets[index].max_epochs, recipe.lanes
    if epochs is None:
        return None
    if opened is None:
        ends = [-((lane - epochs * documents) // lanes) for lane in range(lanes)]
        group_lanes = lanes
    else:
        order = opened.orders[index]
        ends = [order.end(lane) for lane in range(lanes)]
        group_lanes = len(order.group(0)[0])
    fewest, most = min(ends), max(ends)
    return Shape(
        fewest=fewest, num_fewest=ends.count(fewest), most=most, num_most=ends.count(most), num_lanes=lanes,
        group_lanes=group_lanes, positions=sum(ends),
    )  # fmt: skip


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EndModel:
    """What the ends of one dataset are computed from."""

    lengths: Lengths
    shape: Shape
    seq_len: int
    earlier_tokens: int = 0
    """Tokens that earlier phases have drawn of it."""

    def lane_tokens(self) -> tuple[Quantity, Quantity]:
        """Returns the tokens of the lane that has the fewest, and of the one that has the most."""
        lengths, shape = self.lengths, self.shape
        mean, tokens = lengths.mean_tokens, lengths.tokens
        low, high = ((1.0 if e is None else e / tokens.value) for e in (tokens.low, tokens.high))
        spread = lengths.std_tokens * math.sqrt(1 - 1 / shape.group_lanes)
        earlier = self.earlier_tokens / shape.num_lanes
        normal, tail = NormalDist(), (1 - CONFIDENCE) / 4
        far = normal.inv_cdf(1 - tail / shape.num_lanes)
        found = []
        for count, num, sign in ((shape.fewest, shape.num_fewest, -1), (shape.most, shape.num_most, 1)):
            near, middle = (normal.inv_cdf(p ** (1 / num)) for p in (tail, 0.5))
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
        piece = min(self.seq_len, self.lengths.mean_tokens + 3 * self.lengths.std_tokens)
        lanes, has_interval = self.shape.num_lanes, self.lengths.tokens.low is not None
        there = self.shape.positions * self.lengths.mean_tokens - self.earlier_tokens
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
            after=steps(first, self.lengths.mean_tokens),
        )
