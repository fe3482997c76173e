"""A number that is known, or estimated with its interval: what estimates are made of and plans computed with.

Upstream: `estimation/` measures some, or the user says them. Downstream: plans, their tables and JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A number with the ends of its interval."""

    value: float
    low: float | None = None
    high: float | None = None
    """Both are `value` where it is exact, None where there is no interval."""
    std_error: float | None = None
    """Of `value`; None where nobody can say, or asked."""
    freedom: float | None = None
    """Degrees of freedom of `std_error`; None where it is exact, they have no end, or nobody can say."""
    reason: str = ""
    """Why there is no interval, and the cure; empty where there is one."""

    def __repr__(self) -> str:
        ends = "" if self.low is None or self.high is None else f", {self.low:.6g} to {self.high:.6g}"
        return f"Quantity({self.value:.6g}{ends})"

    @classmethod
    def exactly(cls, value: float) -> Quantity:
        """Returns a value that is known."""
        return cls(value=value, low=value, high=value, std_error=0.0)

    @property
    def exact(self) -> bool:
        """Returns whether the value is known."""
        return self.low is not None and self.low == self.high

    def map(self, change: Callable[[float], float]) -> Quantity:
        """Returns the quantity that `change`, which rises, makes of this one."""
        low, high = (None if end is None else change(end) for end in (self.low, self.high))
        return Quantity(value=change(self.value), low=low, high=high, reason=self.reason)

    def over(self, count: float) -> Quantity:
        """Returns the quantity of each of `count`."""
        error = None if self.std_error is None else self.std_error / count
        return replace(self.map(lambda value: value / count), std_error=error, freedom=self.freedom)

    def under(self, amount: float) -> Quantity:
        """Returns `amount` over the number: a larger size makes fewer epochs."""
        if not self.low or not self.high:
            return Quantity(value=amount / self.value, reason=self.reason)
        return Quantity(value=amount / self.value, low=amount / self.high, high=amount / self.low)
