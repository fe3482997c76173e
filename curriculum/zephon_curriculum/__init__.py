"""Curricula on top of zephon: mixture weights that change at exact optimizer steps, planned and amended.

The table of contents; each name's module says more. Describe (schedules and templates), measure
(`TokenEstimation`), plan (`plan`, `cap_schedule`, `exact_ends`), look (`preview`, `explain`, `compare`,
`mixture_chart`), run and amend (`Run`, `open_updates`, `CurriculumLog`), steer (controllers), and find a
mixture (`fit_law`, `find_optimum`, designs).
"""

from __future__ import annotations

from zephon_curriculum.compare import Comparison, compare
from zephon_curriculum.controllers import (
    Ado,
    Controller,
    ControllerContext,
    Exp3,
    Learner,
    Observation,
    PowerLaw,
    Simulated,
    Threshold,
    check_controller,
    consult,
    make_controller,
    quantise,
    simulate,
)
from zephon_curriculum.estimation import DatasetEstimate, Estimates, Pinned, TokenEstimation
from zephon_curriculum.explain import Explanation, explain
from zephon_curriculum.laws import (
    Design,
    LawFit,
    Optimum,
    Swarm,
    dirichlet_design,
    find_optimum,
    fit_law,
    read_swarm,
    sobol_design,
    write_design,
)
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
from zephon_curriculum.schedules import (
    Bounds,
    CrossFade,
    Easing,
    Ramp,
    Repeat,
    Sawtooth,
    Then,
    Wsd,
    to_steps,
)
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
