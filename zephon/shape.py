"""Which lane counts and global batches fit the data-parallel sizes of a run: arithmetic alone.

Upstream: numbers of a recipe and of a launch. Downstream: the cures of `options.py` and of the launch check.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

NEAREST = 3
"""How many numbers a cure lists."""


def cure_shape(global_batch_size: int, lanes: int, sizes: Sequence[int]) -> str:
    """Returns the nearest lane counts and global batches that fit every size, as advice in one line."""
    common = math.lcm(*sizes)
    fits = nearest([d for d in divisors(global_batch_size) if d % common == 0], lanes)
    below = global_batch_size // common * common
    batches = [batch for batch in (below, below + common, below + 2 * common) if batch][:2]
    other = f"global_batch_size = {listed(batches, 'or')} with lanes = {common} or a multiple that divides it"
    if fits:
        return f"set lanes = {listed(fits, 'or')}; or {other}"
    asked = f"{sizes[0]} ranks" if len(sizes) == 1 else "every size asked"
    return f"no lane count fits {global_batch_size} rows and {asked}: set {other}"


def divisors(number: int) -> list[int]:
    """Returns the divisors of `number`, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def nearest(numbers: Sequence[int], wanted: int) -> list[int]:
    """Returns the `NEAREST` numbers that are nearest to `wanted`, ascending."""
    return sorted(sorted(numbers, key=lambda n: (abs(n - wanted), n))[:NEAREST])


def listed(numbers: Sequence[int], last: str = "") -> str:
    """Returns `1, 2, 3`, or `1, 2 or 3` with `last`."""
    texts = [str(number) for number in numbers]
    return ", ".join(texts) if not last or len(texts) < 2 else f"{', '.join(texts[:-1])} {last} {texts[-1]}"
