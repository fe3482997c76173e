"""What a run will read, before it runs: `make.py` first, which plans; `planned.py` is what comes out.

`curve.py` sums a schedule up, `ends.py` says when datasets end by estimate and `exact_ends.py` by the loader
itself, `drawn.py` what that draws, `warnings.py` and `charts.py` tell people; `allocate.py` and `capping.py`
find weights.
"""

from __future__ import annotations

from zephon_curriculum.plan.allocate import temperature, unimax, water_fill
from zephon_curriculum.plan.capping import cap_schedule, steps_for_epochs
from zephon_curriculum.plan.charts import mixture_chart
from zephon_curriculum.plan.exact_ends import ExactEnds, census, exact_ends
from zephon_curriculum.plan.make import plan
from zephon_curriculum.plan.planned import Plan

__all__ = [
    "ExactEnds",
    "Plan",
    "cap_schedule",
    "census",
    "exact_ends",
    "mixture_chart",
    "plan",
    "steps_for_epochs",
    "temperature",
    "unimax",
    "water_fill",
]
