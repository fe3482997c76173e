"""A run whose mixture a controller sets by the losses of its datasets; and what refuses one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from plugins.torchtitan.tests.corpus import STEPS, Corpus
from plugins.torchtitan.tests.fixtures import Titan
from plugins.torchtitan.tests.logged_run import made_again
from plugins.torchtitan.tests.ranks import Job
from plugins.torchtitan.tests.test_refusals import check_refused
from zephon_curriculum.log.entries import Decision
from zephon_curriculum.log.folder import CurriculumLog
from zephon_torchtitan.recipes import TrainerValues, read_recipe

CONTROLLER = '[controller]\nkind = "exp3"\nevery = 2\nwarmup = 0\n'
PLAIN = ("--config", "plain")


@pytest.fixture(scope="module", autouse=True)
def _curriculum() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZEPHON_PLUGINS", "zephon-curriculum")
        yield


@pytest.fixture(scope="module")
def steered(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a recipe with a controller."""
    path = corpus.write(
        tmp_path_factory.mktemp("steered") / "recipe.toml", weights={0: {"short": 1, "long": 1}}
    )
    path.write_text(path.read_text() + CONTROLLER)
    return path


@pytest.fixture(scope="module")
def controlled(titan: Titan, seeded: list[str], steered: Path) -> Job:
    """Returns a run of two ranks with it."""
    recipe = ("--dataloader.recipe", str(steered))
    return titan.run(2, "controlled", *PLAIN, *seeded, "--checkpoint.interval", "4", *recipe).ok()


def decisions(dump: Path) -> list[Decision]:
    """Returns the decisions in the log of a job."""
    entries = CurriculumLog(dump / "data" / "curriculum").read()
    return [entry.body for entry in entries if isinstance(entry.body, Decision)]


def test_decisions_are_made_of_the_losses_that_were_measured(controlled: Job) -> None:
    made = decisions(controlled.dump)
    assert [(d.step, d.from_step) for d in made] == [(2, 5), (4, 7), (6, 9)]
    losses = {name: controlled.scalars[f"data/loss/{name}"] for name in ("short", "long")}
    assert [list(column) for column in losses.values()] == [[2, 4, 6, 8]] * 2
    for decision in made:
        (seen,) = decision.inputs
        for name, loss in losses.items():
            assert seen["losses"][name] == pytest.approx(loss[decision.step], rel=1e-6)
            assert seen["num_tokens"][name] == controlled.scalars[f"data/tokens/{name}"][decision.step]
    assert made[0].weights is not None
    planned = controlled.scalars["data/planned_share/long"]
    assert planned[5] == 0.5
    assert planned[6] == pytest.approx(made[0].weights["long"] / (1 << 20), abs=1e-6)
    assert planned[6] != 0.5
    assert controlled.logs[0].count("the controller decides at step") == len(made)
    assert "the controller decides" not in controlled.logs[1]


def test_a_replay_needs_no_model(controlled: Job, steered: Path, corpus: Corpus, tmp_path: Path) -> None:
    values = TrainerValues(seq_len=64, global_batch_size=8, tokenizer=str(corpus.tokenizer))
    recipe = read_recipe(str(steered), (), values)
    log = controlled.dump / "data" / "curriculum"
    assert made_again(recipe, log, tmp_path, STEPS) == controlled.digests


def test_a_run_that_goes_back_keeps_the_decisions_that_were_made(
    titan: Titan, seeded: list[str], controlled: Job, steered: Path
) -> None:
    dump = titan.folder / "controlled_again"
    shutil.copytree(controlled.dump, dump)
    shutil.rmtree(dump / "checkpoint" / f"step-{STEPS}")
    job = titan.run(1, dump, *PLAIN, *seeded, "--dataloader.recipe", str(steered)).ok()
    assert list(job.losses) == [5, 6, 7, 8]
    assert job.digests == controlled.digests
    assert decisions(dump) == decisions(controlled.dump)


REFUSALS = {
    "chunked": ((), ("ChunkedLossWrapper", "config.loss = CrossEntropyLoss.Config()")),
    "no_amendments": ((*PLAIN, "--dataloader.no-amendments"), ("--dataloader.no-amendments out",)),
    "unknown": ((*PLAIN, "--dataloader.set", "controller.kind=exp"), ("exp3", "did you mean")),
}


@pytest.mark.parametrize("name", list(REFUSALS))
def test_a_controller_that_would_wait_in_vain_is_refused(
    titan: Titan, steered: Path, tmp_path: Path, name: str
) -> None:
    arguments, parts = REFUSALS[name]
    check_refused(titan.run(2, tmp_path, "--dataloader.recipe", str(steered), *arguments), *parts)


def test_without_its_package_a_controller_and_a_log_are_refused(
    titan: Titan, steered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEPHON_PLUGINS", "none")
    job = titan.run(1, tmp_path / "controller", *PLAIN, "--dataloader.recipe", str(steered))
    check_refused(job, "'exp3'", "ZEPHON_PLUGINS='none'", "zephon-curriculum")
    (tmp_path / "log" / "data" / "curriculum").mkdir(parents=True)
    check_refused(titan.run(1, tmp_path / "log"), "has a curriculum log", "--dataloader.no-amendments")


def test_a_log_of_another_recipe_is_refused_with_one_report(titan: Titan, tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    titan.run(1, dump, "--training.steps", "1").ok()
    job = titan.run(2, dump, "--dataloader.set", "seed=8", grace_s=1)
    assert set(job.codes) == {5}, job.tail()
    assert job.log.count("the run is refused") == 1
    assert "the curriculum log is that of another recipe" in job.log
