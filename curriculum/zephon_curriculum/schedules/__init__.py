"""Schedules: how the weights of a mixture change over the steps of a run, as plugins and in Python.

Shapes (`Ramp`, `Wsd`, `CrossFade`, `Sawtooth`, CSV tables), easings of time, and what is made of other
schedules (`Then`, `Repeat`, `Bounds`). All compute with whole numbers, so they compile
to the same table everywhere.
"""

from __future__ import annotations

from zephon_curriculum.schedules.bounds import Bounds
from zephon_curriculum.schedules.compose import Repeat, Then
from zephon_curriculum.schedules.csv_table import table
from zephon_curriculum.schedules.cycles import CrossFade, Sawtooth
from zephon_curriculum.schedules.easing import Easing
from zephon_curriculum.schedules.nested import build
from zephon_curriculum.schedules.ramp import Ramp, Wsd, cosine, exponential, linear, smoothstep
from zephon_curriculum.schedules.units import to_steps

__all__ = [
    "Bounds",
    "CrossFade",
    "Easing",
    "Ramp",
    "Repeat",
    "Sawtooth",
    "Then",
    "Wsd",
    "build",
    "cosine",
    "exponential",
    "linear",
    "smoothstep",
    "table",
    "to_steps",
]
