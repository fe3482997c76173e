"""What goes wrong on one rank in mid-run ends all ranks: one report, one exit code, no traceback."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from plugins.torchtitan.tests.corpus import write_jsonl
from plugins.torchtitan.tests.fixtures import Titan
from plugins.torchtitan.tests.ranks import Job
from plugins.torchtitan.tests.test_ranks import left_over

ENDS, LOGS = "the run ends before step", "the trainer logs it as"
DATA, STATE = 4, 5
NUM_RECORDS, FIRST_BAD = 800, 240
"""Lane l of 8 owns record `FIRST_BAD` + l, which no launch check samples."""


def with_a_bad_record(titan: Titan, folder: Path, lane: int, more: str = "") -> str:
    """Returns the path of a recipe that reads a file in file order; a record of `lane` is no text."""
    texts: list[Any] = [f"word{i} " for i in range(NUM_RECORDS)]
    texts[FIRST_BAD + lane] = None
    path = write_jsonl(folder / "bad.jsonl", texts)
    recipe = titan.corpus.write(
        folder / "bad.toml",
        weights={0: {"bad": 1}},
        paths={"bad": str(path)},
        more={"bad": f'order = "identity"\n{more}'},
    )
    return str(recipe)


def check_ended(job: Job, code: int, *parts: str) -> str:
    """Returns the one report of a job; fails unless every rank ended with `code` and without a traceback."""
    assert set(job.codes) == {code}, f"exit codes {job.codes}\n{job.tail()}"
    assert "Traceback" not in job.log, job.tail()
    assert job.log.count(ENDS) == 1, job.tail()
    report = job.log.partition(ENDS)[2]
    for part in parts:
        assert part in report, f"{part!r} is not in the report:\n{report}"
    assert job.wall_s < 100
    assert not left_over(str(job.dump))
    return report


@pytest.mark.parametrize(
    ("lane", "more", "plugins"),
    [
        (1, "max_epochs = 1", "none"),
        (5, "max_epochs = 1", "none"),
        (5, "", "none"),
        (5, "", "zephon-curriculum"),
    ],
    ids=["finite on rank 0", "finite", "endless", "with a log"],
)
def test_a_document_that_cannot_be_read(
    titan: Titan, tmp_path: Path, lane: int, more: str, plugins: str
) -> None:
    recipe = ("--dataloader.recipe", with_a_bad_record(titan, tmp_path, lane, more))
    steps = ("--training.steps", "40")
    job = titan.run(2, tmp_path / "dump", *recipe, *steps, environment=lambda _: {"ZEPHON_PLUGINS": plugins})
    check_ended(job, DATA, "bad.jsonl", f"{FIRST_BAD + lane}", f"\n  on:   ranks {lane // 4}\n")
    assert list(job.losses) == list(range(1, max(job.losses) + 1))


def fill_the_disk() -> None:
    """Trains; the batch logs of the ranks in $FULL lie on a full disk from the third step on."""
    from zephon_torchtitan import cpu
    from zephon_torchtitan.trainer import ZephonTrainer

    take = ZephonTrainer.train_step

    def train_step(self: Any, batches: Any) -> None:
        if self.step == 3 and os.environ["RANK"] in os.environ["FULL"]:
            log = self.data.rank.loader._log.log
            os.dup2(os.open("/dev/full", os.O_WRONLY), log._stream.fileno())
        take(self, batches)

    ZephonTrainer.train_step = train_step  # type: ignore[assignment, method-assign]
    cpu.main()


@pytest.mark.parametrize(
    ("world_size", "full"), [(1, "0"), (2, "1"), (2, "01"), pytest.param(4, "2", marks=pytest.mark.full)]
)
def test_a_run_folder_on_a_full_disk(titan: Titan, tmp_path: Path, world_size: int, full: str) -> None:
    job = titan.run(world_size, tmp_path, call=fill_the_disk, environment=lambda _: {"FULL": full})
    report = check_ended(job, STATE, f" 2 ({LOGS} 3)", "run folder", "No space left on device")
    assert list(job.losses) == [1, 2]
    said = [f"\n  on:   ranks {rank}\n" in report for rank in range(world_size)]
    assert said.count(True) == (world_size > 1)
    assert world_size == 1 or str(said.index(True)) in full


def fail_in_a_checkpoint() -> None:
    """Trains; rank 1 cannot say its state when the checkpoint of step 2 is saved."""
    from zephon import Loader, StateError
    from zephon_torchtitan import cpu

    take = Loader.state_dict

    def state_dict(self: Any) -> Any:
        if os.environ["RANK"] == "1" and self.num_steps == 2:
            raise StateError("no state")
        return take(self)

    Loader.state_dict = state_dict  # type: ignore[method-assign]
    cpu.main()


@pytest.mark.parametrize("mode", ["disabled", pytest.param("async", marks=pytest.mark.full)])
def test_while_a_checkpoint_is_saved(titan: Titan, tmp_path: Path, mode: str) -> None:
    saving = ("--checkpoint.enable", "--checkpoint.interval", "2", "--checkpoint.async-mode", mode)
    job = titan.run(2, tmp_path, *saving, call=fail_in_a_checkpoint)
    check_ended(job, STATE, f" 2 ({LOGS} 3)", "no state", "ranks 1")


def fail_in_two_ways() -> None:
    """Trains; in the third step the data of rank 0 end it, and after that an error in its code rank 1."""
    from zephon import DataError, Loader
    from zephon_torchtitan import cpu
    from zephon_torchtitan.ending import KEY, _store

    take = Loader.__next__

    def take_or_fail(self: Any) -> Any:
        if self.num_steps == 2:
            if os.environ["RANK"] == "0":
                raise DataError("no data")
            _store().wait([KEY])
            raise RuntimeError("an error of its own")
        return take(self)

    Loader.__next__ = take_or_fail  # type: ignore[method-assign]
    cpu.main()


def test_an_error_in_the_code_of_another_rank_is_not_hidden(titan: Titan, tmp_path: Path) -> None:
    job = titan.run(2, tmp_path, call=fail_in_two_ways)
    assert job.codes == (DATA, 1)
    assert f"{ENDS} 2" in job.logs[0]
    assert "Traceback" in job.logs[1]
    assert "RuntimeError: an error of its own" in job.logs[1]


def fail_on_both_ranks() -> None:
    """Trains; in the third step neither rank can go on, each for its own reason."""
    from zephon import DataError, Loader, StateError
    from zephon_torchtitan import cpu

    take = Loader.__next__

    def take_or_fail(self: Any) -> Any:
        if self.num_steps == 2:
            kind, rank = (DataError, 0) if os.environ["RANK"] == "0" else (StateError, 1)
            raise kind.explained(f"fault of rank {rank}", got="g", rule="r", cure="c")
        return take(self)

    Loader.__next__ = take_or_fail  # type: ignore[method-assign]
    cpu.main()


def test_two_ranks_that_cannot_go_on_end_with_the_code_of_the_first(titan: Titan, tmp_path: Path) -> None:
    job = titan.run(2, tmp_path, call=fail_on_both_ranks)
    first = next(rank for rank in range(2) if ENDS in job.logs[rank])
    check_ended(job, (DATA, STATE)[first], f"fault of rank {first}\n  got:  g", f"ranks {first}")
    assert job.log.count(f"rank {1 - first} cannot go on either: fault of rank {1 - first}\n") == 1


def try_again() -> None:
    """Trains; the store has the word of a try that ended, as torchrun keeps it where it starts ranks anew."""
    from zephon_torchtitan import cpu, ending
    from zephon_torchtitan.trainer import ZephonTrainer

    init = ZephonTrainer.init_distributed

    def init_distributed(self: Any) -> Any:
        dims = init(self)
        ending._leave(ending.Word(rank=1, exit_code=DATA, fault="of the first try"))
        return dims

    ZephonTrainer.init_distributed = init_distributed  # type: ignore[method-assign]
    cpu.main()


def test_the_word_of_an_earlier_try_ends_no_rank(titan: Titan, tmp_path: Path) -> None:
    job = titan.run(2, tmp_path, kill=(1, 3), call=try_again)
    assert job.codes == (1, -9)
    assert "Traceback" in job.logs[0]


def test_a_document_of_a_validation_set(titan: Titan, tmp_path: Path) -> None:
    sets = ("--validator.dataloader.recipes", "bad", with_a_bad_record(titan, tmp_path, 5))
    job = titan.run(2, tmp_path / "dump", "--validator.enable", "--validator.steps", "-1", *sets)
    check_ended(job, DATA, f" 1 ({LOGS} 2)", "bad.jsonl", f"{FIRST_BAD + 5}", "ranks 1")
    assert list(job.losses) == [1]  # after which TorchTitan validates
