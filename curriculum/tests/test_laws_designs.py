"""Designs: mixtures within their limits, the same by seed, written as recipes that read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import make_recipe
from zephon import PARTS, Dataset, Recipe
from zephon_curriculum.laws.designs import (
    LEAST_SHARE,
    Design,
    dirichlet_design,
    sobol_design,
    write_design,
)
from zephon_curriculum.laws.mixtures import unmixed

NAMES = ("web", "code", "math")
PRIOR = {"web": 6, "code": 3, "math": 1}


def on_files() -> Recipe:
    """Returns a recipe of files that nobody reads here."""
    datasets = tuple(Dataset.from_path(name, f"data/{name}.jsonl") for name in (*NAMES, "rest"))
    return make_recipe(datasets=datasets, base=Path("/corpus"), total_steps=10)


def both(seed: int, num_runs: int, **limits: dict[str, float]) -> list[Design]:
    """Returns a design of each kind."""
    return [
        dirichlet_design(PRIOR, num_runs, seed=seed, **limits),  # type: ignore[arg-type]
        sobol_design(NAMES, num_runs, seed=seed, **limits),
    ]


@given(st.integers(0, 2**32), st.integers(3, 20))
def test_runs_are_mixtures_within_the_limits_and_no_two_alike(seed: int, num_runs: int) -> None:
    for design in both(seed, num_runs, max_shares={"web": 0.8}, min_shares={"code": 0.05}):
        assert len(set(design.shares)) == num_runs
        for web, code, math in design.shares:
            assert web + code + math == PARTS
            assert web <= 0.8 * PARTS
            assert code >= 0.05 * PARTS
            assert math == 0 or math > 0.99 * LEAST_SHARE * PARTS


def test_the_seed_decides() -> None:
    for ours, same, other in zip(both(1, 5), both(1, 5), both(2, 5), strict=True):
        assert ours == same
        assert ours.shares != other.shares


def test_more_runs_begin_with_the_same_points() -> None:
    assert sobol_design(NAMES, 20).shares[:7] == sobol_design(NAMES, 7).shares


def test_sobol_runs_are_spread_over_all_mixtures() -> None:
    ratios = sobol_design(NAMES, 256).ratios
    assert ratios.mean(axis=0).tolist() == pytest.approx([1 / 3] * 3, abs=0.01)
    # Of a triangle's points a quarter has half or more of one dataset, for each of the three.
    assert (ratios >= 0.5).mean(axis=0).tolist() == pytest.approx([0.25] * 3, abs=0.03)


def test_dirichlet_runs_lie_around_the_prior_from_single_datasets_to_mixtures() -> None:
    ratios = dirichlet_design(PRIOR, 400, strength=(0.1, 50)).ratios
    assert ratios.mean(axis=0).tolist() == pytest.approx([0.6, 0.3, 0.1], abs=0.05)
    assert ratios[:40].max(axis=1).mean() > 0.8 > 0.7 > ratios[-40:].max(axis=1).mean()


def test_the_runs_can_tell_the_datasets_apart() -> None:
    for design in both(0, 12):
        assert unmixed(design.ratios, NAMES) == ""
        assert design.warnings() == []
        assert both(0, 3)[0].warnings()[0] == "3 runs are few for 3 datasets; take 12"
    half = PARTS // 2
    still = Design(
        kind="sobol",
        seed=0,
        names=NAMES,
        shares=tuple((half, i * half // 12, half - i * half // 12) for i in range(12)),
    )
    assert still.warnings() == ["no law can be fitted to these runs: all have the same share of web"]


def test_limits_are_refused_where_no_mixture_or_hardly_one_keeps_them() -> None:
    with pytest.raises(ValueError, match=r"`max_shares` must sum to 1 or more, got 0.9: 0.1 short"):
        sobol_design(NAMES, 3, max_shares=dict.fromkeys(NAMES, 0.3))
    with pytest.raises(ValueError, match=r"run 0: none of 20000 mixtures drawn keeps the max shares"):
        sobol_design(NAMES, 3, max_shares=dict.fromkeys(NAMES, 0.33334))
    with pytest.raises(ValueError, match=r"`max_shares` names 'pdf', which is no dataset of web"):
        dirichlet_design(PRIOR, 3, max_shares={"pdf": 0.5})
    with pytest.raises(ValueError, match=r"mixes 2 datasets or more, got \('web',\)"):
        dirichlet_design({"web": 1, "code": 0}, 3)
    with pytest.raises(ValueError, match=r"`strength` must be 0 < weakest <= strongest"):
        dirichlet_design(PRIOR, 3, strength=(0, 1))


def test_the_recipes_read_back_with_the_weights_of_their_runs(tmp_path: Path) -> None:
    design = dirichlet_design(PRIOR, 4)
    files = write_design(design, on_files(), str(tmp_path / "swarm"))
    assert [file.name for file in files] == [*(f"run_00{i}.toml" for i in range(4)), "ratios.csv"]
    for run, file in enumerate(files[:4]):
        recipe = Recipe.from_toml(file)
        assert recipe.compile_schedule().shares == ((*design.shares[run], 0),)
        assert recipe.datasets[0].paths == ("/corpus/data/web.jsonl",)
        assert recipe.tokenize.tokenizer == "/corpus/letters"
        assert recipe.total_steps == 10
    lines = [line.split(",") for line in files[4].read_text().splitlines()]
    assert lines[0] == ["run", *NAMES]
    assert [line[0] for line in lines[1:]] == list(design.runs)
    assert np.array_equal(np.array([line[1:] for line in lines[1:]], np.float64), design.ratios)


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"must be empty or new"):
        write_design(dirichlet_design(PRIOR, 2), on_files(), tmp_path)
    with pytest.raises(ValueError, match=r"is in memory and has no TOML form"):
        write_design(dirichlet_design({"web": 1, "code": 1}, 2), make_recipe(), tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt"]
