"""How many tokens datasets have, from a small sample of each: `measure.py` first.

In the order of the data: `sampling.py` says which documents are looked at, `counting.py` reads them,
`intervals.py` and `weighing.py` make totals with intervals, `estimates.py` holds what was found.
"""

from __future__ import annotations

from zephon_curriculum.estimation.estimates import DatasetEstimate, Estimates
from zephon_curriculum.estimation.measure import TokenEstimation
from zephon_curriculum.estimation.weighing import Pinned

__all__ = ["DatasetEstimate", "Estimates", "Pinned", "TokenEstimation"]
