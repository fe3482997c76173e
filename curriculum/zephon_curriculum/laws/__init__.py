"""Which mixture is best, from a swarm of small runs: what they read, what they reached, the law, its optimum.

`designs.py` chooses the mixtures of the runs, `swarm.py` reads what they reached, `fit.py` fits a mixing law
to it and `optimum.py` looks for the mixture of the lowest loss.
"""

from __future__ import annotations

from zephon_curriculum.laws.designs import Design, dirichlet_design, sobol_design, write_design
from zephon_curriculum.laws.fit import LawFit, fit_law
from zephon_curriculum.laws.optimum import Optimum, find_optimum
from zephon_curriculum.laws.swarm import Swarm, read_swarm

__all__ = [
    "Design",
    "LawFit",
    "Optimum",
    "Swarm",
    "dirichlet_design",
    "find_optimum",
    "fit_law",
    "read_swarm",
    "sobol_design",
    "write_design",
]
