"""Controllers: weights that follow the losses of the run.

`protocol.py` says what a controller is; `exp3.py`, `ado.py` and `threshold.py` are built in; `simulate.py`
runs one against losses that are known; `conformance.py` checks one of a plugin.
"""

from __future__ import annotations

from zephon_curriculum.controllers.ado import Ado
from zephon_curriculum.controllers.conformance import check_controller
from zephon_curriculum.controllers.exp3 import Exp3
from zephon_curriculum.controllers.power_law import PowerLaw, fit_power_law
from zephon_curriculum.controllers.protocol import (
    Advice,
    Controller,
    ControllerContext,
    Observation,
    consult,
    fault_of,
    is_due,
    make_controller,
    quantise,
)
from zephon_curriculum.controllers.simulate import Learner, Simulated, simulate
from zephon_curriculum.controllers.threshold import Threshold

__all__ = [
    "Ado",
    "Advice",
    "Controller",
    "ControllerContext",
    "Exp3",
    "Learner",
    "Observation",
    "PowerLaw",
    "Simulated",
    "Threshold",
    "check_controller",
    "consult",
    "fault_of",
    "fit_power_law",
    "is_due",
    "make_controller",
    "quantise",
    "simulate",
]
