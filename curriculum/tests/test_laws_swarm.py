"""Swarms: two CSV files joined, and what no law can be fitted to refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from zephon_curriculum.chance import generator
from zephon_curriculum.laws.mixtures import unmixed
from zephon_curriculum.laws.swarm import Swarm, read_swarm

RATIOS = "run,web,code\na,0.5,0.5\nb,1,0\nc,0.25,0.75\nd,0,1\n"
LOSSES = "val,run,aime\n2.5,d,1\n2.4,a,2\n2.3,b,3\n2.6,c,4\n"


def write(folder: Path, ratios: str = RATIOS, losses: str = LOSSES) -> tuple[Path, Path]:
    (folder / "r.csv").write_text(ratios)
    (folder / "l.csv").write_text(losses)
    return folder / "r.csv", folder / "l.csv"


def test_two_files_are_joined_by_run_in_the_order_of_the_ratios(tmp_path: Path) -> None:
    swarm = read_swarm(*write(tmp_path))
    assert (swarm.names, swarm.runs, swarm.targets) == (("web", "code"), tuple("abcd"), ("val", "aime"))
    assert swarm.losses.tolist() == [[2.4, 2], [2.3, 3], [2.6, 4], [2.5, 1]]
    assert read_swarm(*write(tmp_path), ["aime"]).losses.tolist() == swarm.only(["aime"]).losses.tolist()


@pytest.mark.parametrize(
    ("ratios", "losses", "message"),
    [
        (RATIOS + "e,1,0\n", LOSSES, r"l.csv lacks run 'e'"),
        (RATIOS, LOSSES + "1,e,1\n", r"r.csv lacks run 'e'"),
        (RATIOS + "a,1,0\n", LOSSES, r"has run 'a' twice"),
        (RATIOS, LOSSES.replace("2.4", "nan"), r"run 'a', column 'val' must be a finite number, got 'nan'"),
        (RATIOS, LOSSES.replace("2.4", ""), r"must be a finite number, got ''"),
        (RATIOS.replace("a,0.5", "a,0.6"), LOSSES, r"r.csv, line 2, run 'a': the ratios .* got 1.1"),
        (RATIOS.replace("a,0.5,0.5", "a,-0.5,1.5"), LOSSES, r"'a': 'web' must be >= 0 and finite, got -0.5"),
        ("name,web\n", LOSSES, r"must begin with the line `run,NAME"),
        ("run,web,web\n", LOSSES, r"column 'web' is given twice"),
        ("", LOSSES, r"must begin with the line"),
        (RATIOS.replace("d,0,1\n", ""), LOSSES.replace("2.5,d,1\n", ""), r"at least 4 runs.* got 3; 9"),
        (
            "run,web,code\na,0.5,0.5\nb,0.5,0.5\nc,0.5,0.5\nd,0.5,0.5\n",
            LOSSES,
            r"cannot tell the datasets apart: all have the same share of web, code",
        ),
    ],
)  # fmt: skip
def test_what_no_law_can_be_fitted_to_is_refused(
    tmp_path: Path, ratios: str, losses: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read_swarm(*write(tmp_path, ratios, losses))


def test_an_unknown_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`targets` names 'mmlu', which is none of val, aime"):
        read_swarm(*write(tmp_path), ["mmlu"])


def test_rounded_ratios_are_divided_by_their_sum() -> None:
    ratios = np.array([[0.333, 0.667], [0.3334, 0.6669], [1, 0], [0, 1]])
    swarm = Swarm(
        names=("web", "code"), runs=tuple("abcd"), ratios=ratios, targets=("val",), losses=np.ones((4, 1))
    )
    assert swarm.ratios.sum(axis=1).tolist() == pytest.approx([1] * 4, abs=1e-15)


def test_datasets_that_always_move_together_are_found() -> None:
    half = np.linspace(0, 0.5, 9)
    together = np.column_stack([half, half, 1 - 2 * half])
    assert unmixed(together, "abc") == "their mixtures vary in 1 ways, and 3 datasets take 2"
    assert unmixed(together[:, [0, 2]] / together[:, [0, 2]].sum(axis=1, keepdims=True), "ab") == ""


def test_random_numbers_are_named() -> None:
    assert generator("a", 1).integers(1 << 20, size=3).tolist() == [512478, 72550, 104422]
    assert generator("a", 2).integers(1 << 20) != generator("a", 1).integers(1 << 20)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"run,w\xe9b\na,1\n", "ratios.csv must be a CSV file in UTF-8: 'utf-8' codec"),
        (b"run,web\na," + b"1" * 200_000, "ratios.csv must be a CSV file in UTF-8: field larger"),
        (b'run,web,code\na,"1,0\n' + b"b,1,0\n" * 1000, "line 2 has 2 cells, its header 3"),
    ],
)
def test_a_file_that_is_no_csv_is_named_in_short(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "ratios.csv").write_bytes(content)
    with pytest.raises(ValueError, match=message) as refused:
        read_swarm(tmp_path / "ratios.csv", tmp_path / "ratios.csv")
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("loss", [1e300, -1e300, np.inf, np.nan])
def test_a_run_that_diverged_is_named(loss: float) -> None:
    ratios = np.array([[0, 1], [0.5, 0.5], [0.3, 0.7], [1, 0]])
    losses = np.array([[1.0], [2.0], [loss], [3.0]])
    message = re.escape(f"losses of run 'c': 'val' must be at most 1e+06, got {loss:g}")
    with pytest.raises(ValueError, match=message):
        Swarm(names=("web", "code"), runs=tuple("abcd"), ratios=ratios, targets=("val",), losses=losses)
