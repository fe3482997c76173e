"""Curricula on top of zephon: mixture weights that change at exact optimizer steps, planned and amended.

The table of contents; each name's module says more. Describe (schedules and templates), measure
(`TokenEstimation`), plan (`plan`, `cap_schedule`, `exact_ends`), look (`preview`, `explain`, `compare`,
`mixture_chart`), run and amend (`Run`, `open_updates`, `CurriculumLog`), steer (controllers), and find a
mixture (`fit_law`, `find_optimum`, designs).
"""

from __future__ import annotations

from zephon_curriculum.compare import Comparison, compare
from zephon_curriculum.controllers.ado import Ado
from zephon_curriculum.controllers.conformance import check_controller
from zephon_curriculum.controllers.exp3 import Exp3
from zephon_curriculum.controllers.power_law import PowerLaw
from zephon_curriculum.controllers.protocol import (
    Controller,
    ControllerContext,
    Observation,
    consult,
    make_controller,
    quantise,
)
from zephon_curriculum.controllers.simulate import Learner, Simulated, simulate
from zephon_curriculum.controllers.threshold import Threshold
from zephon_curriculum.estimation import DatasetEstimate, Estimates, Pinned, TokenEstimation
from zephon_curriculum.explain import Explanation, explain
from zephon_curriculum.laws.designs import Design, dirichlet_design, sobol_design, write_design
from zephon_curriculum.laws.fit import LawFit, fit_law
from zephon_curriculum.laws.optimum import Optimum, find_optimum
from zephon_curriculum.laws.swarm import Swarm, read_swarm
from zephon_curriculum.log import CurriculumLog, Updates, fork_run, open_updates, recipe_of_run
from zephon_curriculum.opening import Opening
from zephon_curriculum.plan import (
    ExactEnds,
    Plan,
    cap_schedule,
    census,
    exact_ends,
    mixture_chart,
    plan,
    steps_for_epochs,
    temperature,
    unimax,
    water_fill,
)
from zephon_curriculum.preview import Preview, preview, preview_cost
from zephon_curriculum.preview_estimated import EstimatedPreview, preview_estimated
from zephon_curriculum.quantity import Quantity
from zephon_curriculum.run import Run
from zephon_curriculum.schedules.bounds import Bounds
from zephon_curriculum.schedules.compose import Repeat, Then
from zephon_curriculum.schedules.cycles import CrossFade, Sawtooth
from zephon_curriculum.schedules.easing import Easing
from zephon_curriculum.schedules.ramp import Ramp, Wsd
from zephon_curriculum.schedules.units import to_steps
from zephon_curriculum.templates import Template, template, templates

__all__ = [
    "Ado",
    "Bounds",
    "Comparison",
    "Controller",
    "ControllerContext",
    "CrossFade",
    "CurriculumLog",
    "DatasetEstimate",
    "Design",
    "Easing",
    "EstimatedPreview",
    "Estimates",
    "ExactEnds",
    "Exp3",
    "Explanation",
    "LawFit",
    "Learner",
    "Observation",
    "Opening",
    "Optimum",
    "Pinned",
    "Plan",
    "PowerLaw",
    "Preview",
    "Quantity",
    "Ramp",
    "Repeat",
    "Run",
    "Sawtooth",
    "Simulated",
    "Swarm",
    "Template",
    "Then",
    "Threshold",
    "TokenEstimation",
    "Updates",
    "Wsd",
    "cap_schedule",
    "census",
    "check_controller",
    "compare",
    "consult",
    "dirichlet_design",
    "exact_ends",
    "explain",
    "find_optimum",
    "fit_law",
    "fork_run",
    "make_controller",
    "mixture_chart",
    "open_updates",
    "plan",
    "preview",
    "preview_cost",
    "preview_estimated",
    "quantise",
    "read_swarm",
    "recipe_of_run",
    "simulate",
    "sobol_design",
    "steps_for_epochs",
    "temperature",
    "template",
    "templates",
    "to_steps",
    "unimax",
    "water_fill",
    "write_design",
]

__version__ = "0.1.0"
