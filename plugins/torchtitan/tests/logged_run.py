"""A run of several ranks that follows a curriculum log, without a model, and the same run made again.

Ranks are real processes over Gloo; `pauses` are where a run waits until somebody else has written to its log.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import distributed

from plugins.torchtitan.tests.corpus import Corpus
from plugins.torchtitan.tests.ranks import digests_of
from zephon import (
    Loader,
    LoaderOptions,
    Recipe,
    open_recipe,
    read_state_file,
    step_digest,
    write_state_file,
)
from zephon.batch import RowDigest
from zephon.batchlog import read_batches
from zephon_curriculum.log.entries import Accepted, Entry, Proposal, Refused
from zephon_curriculum.log.folder import CurriculumLog
from zephon_curriculum.log.follow import open_updates
from zephon_curriculum.log.ops import Op, Weights, numbers
from zephon_torchtitan.launch import gather
from zephon_torchtitan.rank import RankLoader
from zephon_torchtitan.recipes import TrainerValues, read_recipe

STEPS = 12
WAIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """Ranks that take steps, in the run folder `data` of `folder`."""

    corpus: Corpus
    folder: Path
    dp_world_size: int
    state: Path | None = None
    """Where the run goes on from."""
    saves: tuple[int, ...] = ()
    """Steps after which all lanes' states are written, to `state_STEP.json`."""
    pauses: tuple[int, ...] = ()
    """Steps before which the run waits for `go`."""
    kill_at: int | None = None
    """The step before which every rank kills itself."""
    prefetch: int = 0
    is_local: bool = False
    """Whether a rank's run folder is seen by no other rank."""

    @property
    def data(self) -> Path:
        """Returns the run folder."""
        return self.folder / ("data_0" if self.is_local else "data")

    @property
    def log(self) -> CurriculumLog:
        """Returns the curriculum log."""
        return CurriculumLog(self.data / "curriculum")

    def read_recipe(self) -> Recipe:
        """Returns the recipe in the shape of the trainer of these tests."""
        values = TrainerValues(seq_len=64, global_batch_size=8, tokenizer=str(self.corpus.tokenizer))
        return read_recipe(str(self.corpus.recipe), (), values)

    def take_steps(self) -> None:
        """Takes the steps of this rank; what a process of the job is started for."""
        logging.basicConfig(level=logging.INFO)
        distributed.init_process_group("gloo")
        loader = self._make()
        if self.state is not None:
            loader.load_state_dict(read_state_file(self.state))
            assert loader.refusal is None, loader.refusal
        batches = iter(loader)
        for step in range(loader.loader.num_steps, STEPS):
            self._before(step)
            while loader.loader.num_steps == step:
                next(batches)
            if step + 1 in self.saves:
                states = gather(loader.state_dict())
                union = {name: value for state in states for name, value in state.items()}
                if distributed.get_rank() == 0:
                    write_state_file(union, self.folder / f"state_{step + 1}.json")
        loader.loader.close()
        distributed.destroy_process_group()

    def _make(self) -> RankLoader:
        options = LoaderOptions(
            dp_rank=distributed.get_rank() % self.dp_world_size,
            dp_world_size=self.dp_world_size,
            micro_batch_size=2,
            executor="threads" if self.prefetch else "inline",
            prefetch=self.prefetch,
            run_folder=self.folder / f"data_{distributed.get_rank()}" if self.is_local else self.data,
        )
        return RankLoader(lambda: (self.read_recipe(), options))

    def _before(self, step: int) -> None:
        if step == self.kill_at:
            distributed.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
        if step in self.pauses and distributed.get_rank() == 0:
            (self.folder / f"at_{step}").touch()
            wait_for(self.folder / f"go_{step}")

    def wait_at(self, step: int) -> None:
        """Returns when the run waits before a step."""
        wait_for(self.folder / f"at_{step}")

    def go(self, step: int) -> None:
        """Lets the run go on."""
        (self.folder / f"go_{step}").touch()

    def digests(self) -> dict[int, str]:
        """Returns the digest of each step that the newest attempts delivered."""
        rows: dict[int, list[RowDigest]] = {}
        for data in sorted(self.folder.glob("data*")):
            for step, found in read_batches(data).items():
                rows.setdefault(step, []).extend(found)
        return {step: step_digest(found) for step, found in rows.items()}


def wait_for(path: Path) -> None:
    """Returns when a file is there."""
    deadline = time.monotonic() + WAIT_S
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path}"
        time.sleep(0.01)


def propose(log: CurriculumLog, at_step: int, weights: Mapping[str, object], *ops: Op) -> int:
    """Writes a proposal as anybody may, other ops of it before the weights, and returns its number."""
    entries = log.read()
    body = Proposal(
        at_step=at_step,
        until=None,
        ops=(*ops, Weights(weights=numbers(weights, "weights"))),
        reason="to see it come",
        author="somebody",
    )
    return log.append(body, len(entries), entries[-1].hash)[-1].number


def verdict(entries: list[Entry], number: int) -> Accepted | Refused | None:
    """Returns what the run said of a proposal."""
    found = [e.body for e in entries if isinstance(e.body, Accepted | Refused) and e.body.proposal == number]
    assert len(found) <= 1
    return found[0] if found else None


def made_again(recipe: Recipe, log: Path, folder: Path, steps: int = STEPS) -> dict[int, str]:
    """Returns the digests of a run of one process, from the first step on, with a copy of a log."""
    shutil.copytree(log, folder / "data" / "curriculum")
    before = sorted(os.listdir(log))
    with closing(open_recipe(recipe)) as opened:
        updates: Any = open_updates(opened, folder / "data" / "curriculum")
        options = LoaderOptions(executor="inline", run_folder=folder / "data", updates=updates)
        with Loader(opened, options) as loader:
            while loader.num_steps < steps:
                next(loader)
    assert sorted(os.listdir(folder / "data" / "curriculum")) == before  # nothing was decided anew
    return digests_of(folder / "data")
