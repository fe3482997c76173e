"""Data that ends: all ranks stop after the same step, with a checkpoint after which nothing is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plugins.torchtitan.tests.corpus import GLOBAL_BATCH_SIZE, SEQ_LEN, write_jsonl
from plugins.torchtitan.tests.fixtures import Titan
from plugins.torchtitan.tests.ranks import Job

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")  # a checkpoint is read without it
ENDED = "The data ended"
LONG_RUN = ("--training.steps", "50", "--checkpoint.enable")


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Returns documents of which every other lane has the long ones, so the first ranks have more."""
    return [f"word{i} " * (60 if i % 8 < 4 else 12) for i in range(43)]


def finite(titan: Titan, folder: Path, texts: list[str], when_exhausted: str) -> str:
    """Returns the path of a recipe in which every document is read once, in file order."""
    path = write_jsonl(folder / "once.jsonl", texts)
    recipe = titan.corpus.write(
        folder / "recipe.toml",
        top=f'when_exhausted = "{when_exhausted}"',
        weights={0: {"once": 1}},
        paths={"once": str(path)},
        more={"once": 'max_epochs = 1\norder = "identity"'},
    )
    return str(recipe)


def saved_rows(job: Job, step: int) -> set[int]:
    """Returns the rows that the lanes of a checkpoint stand after."""
    from torch.distributed.checkpoint import FileSystemReader, load

    reader = FileSystemReader(job.dump / "checkpoint" / f"step-{step}")
    names = [n for n in reader.read_metadata().state_dict_metadata if n.startswith("dataloader.lane_")]
    state = dict.fromkeys(names, b"")
    load(state, storage_reader=reader, no_dist=True)
    return {json.loads(value)["rows"] for value in state.values()}


def test_ranks_with_uneven_lanes_end_together(titan: Titan, uneven: list[str], tmp_path: Path) -> None:
    recipe = ("--dataloader.recipe", finite(titan, tmp_path, uneven, "stop"))
    job = titan.run(2, tmp_path / "dump", *LONG_RUN, *recipe).ok()
    last_step = max(job.losses)
    assert list(job.losses) == list(range(1, last_step + 1))
    assert 1 < last_step < 10
    assert set(job.digests) == set(range(last_step))
    assert all(ENDED in log for log in job.logs)
    assert saved_rows(job, last_step) == {last_step}
    checkpoint = tmp_path / "dump" / "checkpoint" / f"step-{last_step}"
    written = {path.name: path.stat().st_mtime_ns for path in checkpoint.iterdir()}
    for ranks in (1, 2):
        again = titan.run(ranks, tmp_path / "dump", *LONG_RUN, *recipe).ok()
        assert not again.losses
        assert again.digests == job.digests
        assert ENDED in again.log
    assert list(checkpoint.parent.iterdir()) == [checkpoint]
    assert {path.name: path.stat().st_mtime_ns for path in checkpoint.iterdir()} == written


def test_data_that_end_on_a_checkpoints_interval_leave_a_whole_checkpoint(
    titan: Titan, tmp_path: Path
) -> None:
    texts = [f"word{i} " * 50 for i in range(16)]  # the first lanes have 602 tokens, 9 rows
    recipe = ("--dataloader.recipe", finite(titan, tmp_path, texts, "stop"))
    saving = (*LONG_RUN, *recipe, "--checkpoint.async-mode", "async", "--checkpoint.interval", "3")
    job = titan.run(1, tmp_path / "dump", *saving).ok()
    last_step = max(job.losses)
    assert last_step % 3 == 0
    assert (job.dump / "checkpoint" / f"step-{last_step}" / ".metadata").is_file()
    assert saved_rows(job, last_step) == {last_step}
    again = titan.run(2, tmp_path / "dump", *saving).ok()
    assert not again.losses
    assert ENDED in again.log
    loading, waits = job.scalars["time_metrics/data_loading(s)"], job.scalars["data/wait(s)"]
    num_times = 1 + GLOBAL_BATCH_SIZE // 2  # whether there is a step, and each of its micro-batches
    assert all(loading[step] * num_times * 1.001 > waits[step] > 0 for step in job.losses)


@pytest.mark.full
@pytest.mark.parametrize("when_exhausted", ["stop", "redistribute"])
def test_any_ranks_end_after_the_same_step(
    titan: Titan, uneven: list[str], tmp_path: Path, when_exhausted: str
) -> None:
    recipe = ("--dataloader.recipe", finite(titan, tmp_path, uneven, when_exhausted))
    jobs = [titan.run(ranks, tmp_path / f"dump_{ranks}", *LONG_RUN, *recipe).ok() for ranks in (1, 2, 4)]
    assert len(jobs[0].losses) == len(jobs[0].digests) > 1
    for job in jobs[1:]:
        assert job.digests == jobs[0].digests
        assert list(job.losses) == list(jobs[0].losses)


@pytest.mark.full
def test_a_resume_in_the_middle_ends_where_the_unbroken_run_does(
    titan: Titan, uneven: list[str], tmp_path: Path
) -> None:
    recipe = ("--dataloader.recipe", finite(titan, tmp_path, uneven, "stop"))
    whole = titan.run(1, tmp_path / "whole", *LONG_RUN, *recipe).ok()
    for ranks, last_step in ((2, "2"), (4, "50")):
        job = titan.run(ranks, tmp_path / "broken", *LONG_RUN, *recipe, "--training.steps", last_step).ok()
    assert job.digests == whole.digests
    assert max(job.losses) == max(whole.losses)


@pytest.mark.full
def test_one_pass_reads_what_there_is(titan: Titan, tmp_path: Path) -> None:
    texts = [f"{i} " * 40 for i in range(80)]
    recipe = ("--dataloader.recipe", finite(titan, tmp_path, texts, "stop"))
    job = titan.run(1, tmp_path / "dump", *LONG_RUN, *recipe).ok()
    num_tokens = sum(len(text) + 1 for text in texts)  # and </s>
    delivered = len(job.losses) * GLOBAL_BATCH_SIZE * SEQ_LEN
    assert 0 <= num_tokens - delivered < 2 * GLOBAL_BATCH_SIZE * SEQ_LEN


def test_data_that_do_not_fill_one_step_are_refused(titan: Titan, tmp_path: Path) -> None:
    recipe = finite(titan, tmp_path, ["word " * 60, "word " * 60], "stop")
    job = titan.run(2, tmp_path / "dump", *LONG_RUN, "--dataloader.recipe", recipe)
    assert set(job.codes) == {3}
    assert job.log.count("the data end before the first step") == 1
    assert not job.losses
