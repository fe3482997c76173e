"""Designs: which mixtures a swarm of small runs should read, so that a law can be fitted to their losses.

Upstream: a recipe and limits of its shares. Downstream: a recipe for each run and `ratios.csv`, which
`swarm.py` reads back. The same arguments give the same design with the same numpy and scipy; what is written
is what counts.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from zephon import PARTS, Constant, Recipe
from zephon_curriculum.chance import generator
from zephon_curriculum.figures import plural
from zephon_curriculum.laws.mixtures import Floats, make_limits, parts_of, ratios_of, spread_table, unmixed
from zephon_curriculum.laws.swarm import RUN, advised_runs
from zephon_curriculum.results import Readable, Shown, warned

DIRICHLET, SOBOL = "dirichlet", "sobol"
DESIGN_KINDS = (DIRICHLET, SOBOL)
STRENGTH = (0.1, 5.0)
"""Weakest and strongest pull towards the prior: from runs of nearly one dataset to mixtures (RegMix)."""
LEAST_SHARE = 2e-4
"""Smaller shares become 0: a small run would hardly draw such a dataset."""
MAX_TRIES = 20_000
"""Mixtures drawn for one run before limits count as too narrow to be met by chance."""
RATIOS = "ratios.csv"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Design(Readable):
    """The mixtures of a swarm, as whole parts of 2^20."""

    kind: str
    seed: int
    names: tuple[str, ...]
    """The datasets that the runs mix; others of the recipe get 0."""
    shares: tuple[tuple[int, ...], ...]
    """Of each run, in the order of `names`; no two runs are the same."""

    @property
    def runs(self) -> tuple[str, ...]:
        """Returns the names of the runs, `run_000` on."""
        return tuple(f"run_{i:03d}" for i in range(len(self.shares)))

    @property
    def ratios(self) -> Floats:
        """Returns the shares as ratios: (runs, datasets)."""
        return np.array(self.shares, np.float64) / PARTS

    def to_csv(self) -> str:
        """Returns `ratios.csv`: a line for each run, with its exact ratios."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([RUN, *self.names])
        for run, shares in zip(self.runs, self.shares, strict=True):
            writer.writerow([run, *(share / PARTS for share in shares)])
        return text.getvalue()

    def recipe_of(self, run: int, recipe: Recipe) -> Recipe:
        """Returns the recipe with the weights of a run, from step 0 to the end."""
        weights = dict.fromkeys(recipe.names, 0) | dict(zip(self.names, self.shares[run], strict=True))
        return replace(recipe, schedule=Constant(weights))

    def warnings(self) -> list[str]:
        """Returns what is doubtful about the design, as sentences."""
        told, num_datasets = [], len(self.names)
        if len(self.shares) < (advised := advised_runs(num_datasets)):
            told.append(f"{len(self.shares)} runs are few for {num_datasets} datasets; take {advised}")
        if why := unmixed(self.ratios, self.names):
            told.append(f"no law can be fitted to these runs: {why}")
        return told

    def shown(self) -> Shown:
        """Returns how the shares of the runs spread."""
        head = f"{plural(len(self.shares), 'run')}, {self.kind}, seed {self.seed}"
        return Shown(
            head=head, tables=(spread_table(self.names, self.ratios),), notes=warned(self.warnings())
        )


def dirichlet_design(
    prior: Mapping[str, float],
    num_runs: int,
    *,
    strength: tuple[float, float] = STRENGTH,
    max_shares: Mapping[str, float] | None = None,
    min_shares: Mapping[str, float] | None = None,
    seed: int = 0,
) -> Design:
    """Returns runs drawn from Dirichlet distributions around `prior`, weights of any sum.

    Their strengths, the sums of their parameters, ascend from run to run in equal ratios. Datasets of weight
    0 are left out. Mixtures beyond a limit are drawn again.
    """
    names = tuple(name for name, weight in prior.items() if weight)
    ratios = ratios_of(prior, tuple(prior), "`prior`")
    centre = ratios[ratios > 0]
    low, high = strength
    if not 0 < low <= high < np.inf:
        raise ValueError(f"`strength` must be 0 < weakest <= strongest, got {strength}")
    strengths = np.geomspace(low, high, max(num_runs, 1))

    def draw(run: int) -> Iterator[Floats]:
        draws = generator("zephon_curriculum.designs", DIRICHLET, seed, run)
        for _ in range(MAX_TRIES):
            yield draws.dirichlet(centre * strengths[run])

    return _designed(DIRICHLET, names, num_runs, (max_shares or {}, min_shares or {}), seed, draw)


def sobol_design(
    names: Sequence[str],
    num_runs: int,
    *,
    max_shares: Mapping[str, float] | None = None,
    min_shares: Mapping[str, float] | None = None,
    seed: int = 0,
) -> Design:
    """Returns runs spread evenly over all mixtures: gaps between the sorted coordinates of Sobol's points.

    The points are shifted as a whole by `seed`. Mixtures beyond a limit are passed over.
    """
    from scipy.stats import qmc

    def points() -> Iterator[Floats]:
        shift = generator("zephon_curriculum.designs", SOBOL, seed).random(len(names) - 1)
        sequence = qmc.Sobol(len(names) - 1, scramble=False)
        for _ in range(MAX_TRIES // 64):
            for point in np.sort((sequence.random(64) + shift) % 1, axis=1):
                yield np.diff(point, prepend=0.0, append=1.0)

    rest = points()
    return _designed(
        SOBOL, tuple(names), num_runs, (max_shares or {}, min_shares or {}), seed, lambda _: rest
    )


def _designed(
    kind: str,
    names: tuple[str, ...],
    num_runs: int,
    given: tuple[Mapping[str, float], Mapping[str, float]],
    seed: int,
    draw: Callable[[int], Iterator[Floats]],
) -> Design:
    """Returns the design of the first mixture of each run's draws that keeps the limits and is new."""
    if len(names) < 2:
        raise ValueError(f"a design mixes 2 datasets or more, got {names}; name more, or give more a weight")
    if num_runs < 1:
        raise ValueError(f"`num_runs` must be >= 1, got {num_runs}")
    limits = make_limits(names, *given)
    low, high = np.ceil(limits.low * PARTS), np.floor(limits.high * PARTS)
    shares: list[tuple[int, ...]] = []
    for run in range(num_runs):
        tried = (parts_of(ratios, names, LEAST_SHARE) for ratios in draw(run))
        kept = (s for s in tried if s not in shares and (low <= s).all() and (s <= high).all())
        found = next(kept, None)
        if found is None:
            raise ValueError(
                f"run {run}: none of {MAX_TRIES} mixtures drawn keeps the max shares {dict(given[0])} and "
                f"min shares {dict(given[1])} and is new; widen them, or take fewer runs"
            )
        shares.append(found)
    return Design(kind=kind, seed=seed, names=names, shares=tuple(shares))


def write_design(design: Design, recipe: Recipe, folder: str | os.PathLike[str]) -> list[Path]:
    """Returns the files written: a recipe for each run, with absolute paths, then `ratios.csv`.

    Refuses a folder that holds anything, and a recipe that has no TOML form.
    """
    folder = Path(folder)
    if folder.exists() and any(sorted(folder.iterdir())):
        raise ValueError(f"{folder} must be empty or new, and holds files; give another folder")
    anchored = recipe.anchored()
    texts = {f"{run}.toml": design.recipe_of(i, anchored).to_toml() for i, run in enumerate(design.runs)} | {
        RATIOS: design.to_csv()
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]
