"""Tests of `zephon.demo`: it runs for real, it can fail, and it leaves no process behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import zephon
from tests.waiting import SLACK_S, wait_until
from zephon.batchlog import log_files, read_batches, read_lines
from zephon.demo import KNOBS, QUICK, RESUMED, Jobs, run_demo
from zephon.demo.corpora import CODE, build_corpora
from zephon.demo.ranks import RankJob, newest_state, run_ranks, save_state, steps_taken
from zephon.demo.report import MISSING, Findings, Restore, compare, tell_verdict
from zephon.errors import StateError, WorkerError

COMMAND = [sys.executable, "-m", "zephon", "demo", "--quick", "--folder"]
ENV = {**os.environ, "PYTHONPATH": str(Path(zephon.__file__).parents[1]), "COLUMNS": "120"}
SPEED = {"tokens_per_s": 1.0, "tokens_per_cpu_s": 1.0}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("demo") / "zephon-demo"
    run = subprocess.run([*COMMAND, str(folder)], capture_output=True, text=True, timeout=250, env=ENV)
    return folder, run


@pytest.fixture
def copied(demo: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path) -> Jobs:
    """A copy of the demo's folder that a test may alter."""
    shutil.copytree(demo[0], tmp_path / "copy")
    return Jobs(tmp_path / "copy", QUICK)


def processes_of(folder: Path) -> list[str]:
    shown = subprocess.run(["ps", "-axww", "-o", "args="], capture_output=True, text=True, check=True).stdout
    return [line for line in shown.splitlines() if str(folder) in line and "zephon.demo.ranks" in line]


def job(folder: Path, **changes: object) -> RankJob:
    plain = RankJob(
        recipe=str(folder / "recipe.toml"),
        run_folder=str(folder / "runs" / "try"),
        cache=str(folder / "cache"),
        dp_rank=0,
        dp_world_size=1,
        micro_batch_size=16,
        executor="inline",
        workers=1,
        seed=0,
        attempt=0,
        first_step=0,
        num_steps=4,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


# The demo as a whole --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_runs_of_the_demo_are_equal(demo: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, run = demo
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stderr == ""
    assert run.stdout.splitlines()[-1].startswith("PASSED: all 16 steps equal in 5 runs")
    assert "control with another seed: 0 of 16 steps equal" in run.stdout
    assert f"zephon check {folder / 'recipe.toml'} --dp 1,2,4,8" in run.stdout
    assert processes_of(folder) == []
    logs = [path.read_text() for path in sorted((folder / "runs").glob("*/ranks/*.log"))]
    assert logs != []
    assert not [log for log in logs if "RuntimeWarning" in log]


@pytest.mark.slow
def test_the_demo_logs_what_the_recipe_gives_here(
    demo: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    jobs = Jobs(demo[0], QUICK)
    logged = read_batches(jobs.runs[RESUMED])
    assert sorted(logged) == list(range(16))
    recipe = zephon.Recipe.from_toml(jobs.recipe_path)
    with recipe.loader(executor="inline", cache=demo[0] / "cache") as loader:
        for step in range(16):
            assert sorted(zephon.digest(next(loader))) == sorted(logged[step])


@pytest.mark.slow
def test_the_killed_run_went_on_from_the_newest_step_that_all_ranks_had_saved(
    demo: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    logs = log_files(Jobs(demo[0], QUICK).runs[RESUMED] / "batches")
    heads = [json.loads(path.read_text().splitlines()[0]) for path in logs if "rank_00000" in path.name]
    firsts = [next(read_lines(path))["step"] for path in logs if "rank_00000" in path.name]
    starts = [(h["attempt"], s, h["dp_world_size"]) for h, s in zip(heads, firsts, strict=True)]
    assert starts == [(0, 0, 4), (1, 8, 2), (2, 12, 8)]


@pytest.mark.slow
def test_realised_shares_follow_the_plan(demo: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    findings = Jobs(demo[0], QUICK).findings(SPEED, [])
    assert findings.is_good
    assert findings.table.starts == (0, 10)
    assert findings.shares[0] == pytest.approx([0.6, 0.3, 0.1], abs=0.03)
    assert findings.shares[1] == pytest.approx([0.2, 0.7, 0.1], abs=0.06)


# It can fail ----------------------------------------------------------------------------------------------


def verdict(findings: Findings) -> str:
    console = Console(width=120)
    with console.capture() as captured:
        tell_verdict(console, findings, 1.0)
    return captured.get()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dp 1", "dp 8", RESUMED])
def test_one_other_digit_in_one_log_fails(copied: Jobs, name: str) -> None:
    path = sorted((copied.runs[name] / "batches").glob("rank_*.jsonl"))[-1]
    lines = path.read_text().splitlines()
    entry = json.loads(lines[-1])
    digits = entry["rows"][-1][2]
    entry["rows"][-1][2] = ("1" if digits[0] == "0" else "0") + digits[1:]
    path.write_text("\n".join([*lines[:-1], json.dumps(entry)]) + "\n")
    findings = copied.findings(SPEED, [])
    assert findings.comparison.differing == [15]
    assert not findings.is_good
    assert "FAILED: 1 of 16 steps differ between runs, first step 15" in verdict(findings)


@pytest.mark.slow
def test_a_row_that_nobody_logged_fails(copied: Jobs) -> None:
    for run_folder in copied.runs.values():  # missing everywhere is not equal either
        for path in (run_folder / "batches").glob("rank_*.jsonl"):
            kept = [line for line in path.read_text().splitlines() if '"step":3,' not in line]
            path.write_text("\n".join(kept) + "\n")
    comparison = compare(copied.runs, num_steps=16, rows_per_step=16)
    assert comparison.differing == [3]
    assert comparison.digests[3] == (MISSING,) * 5


@pytest.mark.slow
def test_a_control_that_is_equal_fails(copied: Jobs) -> None:
    shutil.rmtree(copied.control)
    shutil.copytree(copied.runs["dp 1"], copied.control)
    findings = copied.findings(SPEED, [])
    assert findings.comparison.differing == []
    assert not findings.is_good
    assert "the control with another seed has equal steps too" in verdict(findings)


@pytest.mark.slow
def test_the_exit_status_is_the_verdict(
    copied: Jobs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_killed(self: Jobs, bar: object) -> list[Restore]:
        run_folder = self.runs[RESUMED]
        other = job(self.folder, run_folder=str(run_folder), seed=7, num_steps=QUICK.num_steps)
        run_ranks([other], timeout_s=60, report=lambda step: None)
        return []

    monkeypatch.setattr(Jobs, "run_killed", run_killed)
    monkeypatch.setattr("zephon.demo.KNOBS", {1: KNOBS[1]})
    assert run_demo(copied.folder, quick=True) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("FAILED: 16 of 16 steps differ between runs")


# Data and folder ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_corpora_are_made_once_and_again_when_a_file_is_lost(copied: Jobs) -> None:
    def build() -> bool:
        return build_corpora(copied.folder, QUICK.corpora, lambda what, done, total: None)

    before = (copied.folder / CODE).read_bytes()
    assert not build()
    (copied.folder / CODE).unlink()
    assert build()
    assert (copied.folder / CODE).read_bytes() == before


@pytest.mark.parametrize("name", ["thesis.txt", "demo.json"])
def test_a_folder_with_other_things_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match="must be empty, absent or an earlier demo's"):
        run_demo(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="got the file"):
        run_demo(tmp_path / "file")


# States ---------------------------------------------------------------------------------------------------


def save(folder: Path, step: int, attempt: int, world_size: int, ranks: Sequence[int]) -> None:
    for rank in ranks:
        saved = job(folder, run_folder=str(folder), dp_rank=rank, dp_world_size=world_size, attempt=attempt)
        save_state(saved, step, {"version": 1, f"lane_{rank}": f"attempt {attempt}".encode()})


def test_the_newest_state_is_of_a_step_that_all_ranks_have_saved(tmp_path: Path) -> None:
    save(tmp_path, 5, 0, 2, [0, 1])
    save(tmp_path, 10, 0, 2, [1])
    assert newest_state(tmp_path) == (5, {"version": 1, "lane_0": b"attempt 0", "lane_1": b"attempt 0"})


def test_ranks_of_two_attempts_do_not_make_one_state(tmp_path: Path) -> None:
    save(tmp_path, 5, 0, 4, [0, 1, 2, 3])
    save(tmp_path, 10, 0, 4, [2, 3])
    save(tmp_path, 10, 1, 4, [0, 1])
    assert newest_state(tmp_path)[0] == 5
    save(tmp_path, 10, 1, 4, [2, 3])
    assert newest_state(tmp_path) == (
        10,
        {"version": 1} | {f"lane_{rank}": b"attempt 1" for rank in range(4)},
    )


def test_a_run_without_a_whole_state_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 5, 0, 2, [1])
    with pytest.raises(StateError, match="has no whole state"):
        newest_state(tmp_path)


# Processes ------------------------------------------------------------------------------------------------


def test_a_rank_that_fails_is_named_with_what_it_printed(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"(?s)rank 0 of 1 failed.*recipe.toml' does not exist"):
        run_ranks([job(tmp_path)], timeout_s=60, report=lambda step: None)
    assert processes_of(tmp_path) == []


@pytest.mark.slow
def test_a_rank_that_takes_too_long_is_ended(copied: Jobs) -> None:
    slow = job(copied.folder, num_steps=10_000_000)
    with pytest.raises(WorkerError, match="no end within 2 s"):
        run_ranks([slow], timeout_s=2, report=lambda step: None)
    assert processes_of(copied.folder) == []


@pytest.mark.slow
def test_a_rank_that_holds_is_killed_after_its_step(copied: Jobs) -> None:
    held = job(copied.folder, hold_after=3, save_every=2)
    run_ranks([held], timeout_s=60, report=lambda step: None)
    assert steps_taken(held) == 2  # the newest step in the log; 3 are complete
    assert newest_state(Path(held.run_folder))[0] == 2
    assert processes_of(copied.folder) == []


@pytest.mark.slow
def test_ctrl_c_ends_every_process_within_two_seconds(copied: Jobs) -> None:
    run = subprocess.Popen([*COMMAND, str(copied.folder)], stdout=subprocess.DEVNULL, env=ENV)
    try:
        wait_until(lambda: processes_of(copied.folder) or run.poll() is not None)
        assert processes_of(copied.folder)
        run.send_signal(signal.SIGINT)
        assert run.wait(timeout=2 + SLACK_S) == 130
        wait_until(lambda: not processes_of(copied.folder), SLACK_S)
    finally:
        run.kill()
        run.wait()
