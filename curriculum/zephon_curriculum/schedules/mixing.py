"""Mixtures as whole numbers, and the blend of two of them: exact, so that every machine gets the same shares.

Upstream: the weights that a user writes. Downstream: every schedule. A blend is a convex combination of two
mixtures after each is brought to the sum 1, so no share is negative and the shares sum to 1, always.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from zephon import check_weights
from zephon_curriculum.schedules.fields import Weights


@dataclass(frozen=True, slots=True)
class Knots:
    """Mixtures over the same datasets, in whole numbers without a common divisor."""

    names: tuple[str, ...]
    mixtures: tuple[tuple[int, ...], ...]
    sums: tuple[int, ...]

    @classmethod
    def of(cls, mixtures: Sequence[Weights], where: str) -> Knots:
        """Returns the knots of `mixtures`; what only some of them name has weight 0 in the others."""
        exact = [check_weights(weights, where) for weights in mixtures]
        names = tuple(dict.fromkeys(name for weights in exact for name in weights))
        whole = tuple(_whole([weights.get(name, Fraction(0)) for name in names]) for weights in exact)
        return cls(names, whole, tuple(map(sum, whole)))

    def at(self, index: int) -> dict[str, int]:
        """Returns the mixture of one knot."""
        return dict(zip(self.names, self.mixtures[index], strict=True))

    def blend(self, first: int, last: int, eased: tuple[int, int]) -> dict[str, int]:
        """Returns (1 - e) of the mixture `first` and e of the mixture `last`, for e = eased[0] / eased[1]."""
        to_last = eased[0] * self.sums[first]
        to_first = (eased[1] - eased[0]) * self.sums[last]
        pairs = zip(self.mixtures[first], self.mixtures[last], strict=True)
        return {n: a * to_first + b * to_last for n, (a, b) in zip(self.names, pairs, strict=True)}


def written(weights: Weights) -> dict[str, int | float]:
    """Returns a mixture as a recipe can hold it: as given, or in whole numbers where it has fractions."""
    if all(isinstance(weight, int | float) for weight in weights.values()):
        return dict(weights)
    return dict(Knots.of([weights], "schedule").at(0))


def _whole(weights: Sequence[Fraction]) -> tuple[int, ...]:
    """Returns the smallest whole numbers with the ratios of `weights`."""
    factor = math.lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * factor) for weight in weights]
    common = math.gcd(*whole)
    return tuple(weight // common for weight in whole)
