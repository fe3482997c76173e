"""A run that follows its curriculum log: real ranks over Gloo, amended while they run by another process."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import distributed

from plugins.torchtitan.tests.corpus import Corpus, words, write_jsonl
from plugins.torchtitan.tests.fixtures import Titan
from plugins.torchtitan.tests.logged_run import STEPS, LoggedRun, made_again, propose, verdict, wait_for
from plugins.torchtitan.tests.ranks import Job
from plugins.torchtitan.tests.test_ranks import left_over
from plugins.torchtitan.tests.test_verify import zephon
from zephon_curriculum.log.added import recipe_of_run
from zephon_curriculum.log.entries import Accepted, Refused
from zephon_curriculum.log.ops import Add
from zephon_torchtitan.updates import EndsTogether

WEIGHTS = {"short": 1, "long": 9}
AT_STEP, LATE_STEP, PAUSE = 8, 5, 3
"""The schedule of the corpus changes at step 5; a change accepted before step 3 comes at step 6 at best."""


@pytest.fixture(scope="module", autouse=True)
def _curriculum() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZEPHON_PLUGINS", "zephon-curriculum")
        yield


def while_it_runs(run: LoggedRun, work: Callable[[], None]) -> threading.Thread:
    """Does `work` while the run waits before step `PAUSE`."""

    def wait_and_work() -> None:
        run.wait_at(PAUSE)
        work()
        run.go(PAUSE)

    thread = threading.Thread(target=wait_and_work)
    thread.start()
    return thread


def amend_twice(run: LoggedRun) -> None:
    """Proposes what comes in time, and what comes too late."""
    assert propose(run.log, AT_STEP, WEIGHTS) == 1
    assert propose(run.log, LATE_STEP, {"short": 9, "long": 1}) == 2


def test_a_loader_that_is_closed_lets_another_run_follow_the_log() -> None:
    closed = list[str]()
    updates = SimpleNamespace(lead_steps=2, head="", close=lambda: closed.append("log"))
    EndsTogether(updates).close()
    assert closed == ["log"]
    EndsTogether(SimpleNamespace(lead_steps=2, head="")).close()  # of updates that hold nothing


@pytest.fixture(scope="module")
def amended(titan: Titan, corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> LoggedRun:
    """Returns a run of four ranks that was amended before step 3 of it, for step 8."""
    run = LoggedRun(
        corpus=corpus,
        folder=tmp_path_factory.mktemp("amended"),
        dp_world_size=4,
        saves=(2, 10),
        pauses=(PAUSE,),
        prefetch=4,
    )
    thread = while_it_runs(run, lambda: amend_twice(run))
    job = titan.call(4, run.folder, run.take_steps).ok()
    thread.join()
    assert told(job) == [
        "curriculum log: entry 3, proposal 1 is accepted at step 3, from step 8 on",
        "curriculum log: entry 4, proposal 2 is refused at step 3",
    ]
    return run


def told(job: Job) -> list[str]:
    """Returns what ranks said of the log; only rank 0 says something."""
    assert "log: entry" not in "".join(job.logs[1:])
    lines = [line for line in job.logs[0].splitlines() if "curriculum log: entry" in line]
    return [line[line.index("curriculum log") :].partition(": it changes")[0] for line in lines]


@pytest.fixture(scope="module")
def fresh(amended: LoggedRun, tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Returns the digests of a run of one process with the final log."""
    log = amended.data / "curriculum"
    return made_again(amended.read_recipe(), log, tmp_path_factory.mktemp("fresh"))


def test_an_amendment_reaches_all_ranks_at_its_step(
    amended: LoggedRun, fresh: dict[int, str], tmp_path: Path
) -> None:
    assert list(fresh) == list(range(STEPS))
    assert amended.digests() == fresh
    without = tmp_path / "without"
    shutil.copytree(amended.data / "curriculum", without)
    for number in range(1, 5):
        (without / f"{number:06d}.json").unlink()
    unamended = made_again(amended.read_recipe(), without, tmp_path)
    assert [step for step in fresh if fresh[step] != unamended[step]] == list(range(AT_STEP, STEPS))


def test_what_comes_too_late_is_refused_with_the_first_legal_step(amended: LoggedRun) -> None:
    entries = amended.log.read()
    assert [entry.body.kind for entry in entries] == ["base", "proposal", "proposal", "accepted", "refused"]
    said = verdict(entries, 1), verdict(entries, 2)
    assert said[0] == Accepted(proposal=1, step=PAUSE, from_step=AT_STEP)
    assert isinstance(said[1], Refused)
    assert (said[1].step, said[1].first_legal) == (PAUSE, PAUSE + 3)


@pytest.mark.parametrize(("ranks", "step"), [(2, 2), (1, 10)], ids=["before", "behind"])
def test_a_run_that_goes_back_reads_the_same_and_decides_nothing_anew(
    titan: Titan, amended: LoggedRun, fresh: dict[int, str], tmp_path: Path, ranks: int, step: int
) -> None:
    shutil.copytree(amended.data, tmp_path / "data")
    state = amended.folder / f"state_{step}.json"
    run = LoggedRun(corpus=amended.corpus, folder=tmp_path, dp_world_size=ranks, state=state)
    titan.call(ranks, tmp_path, run.take_steps).ok()
    assert run.digests() == fresh
    assert run.log.read() == amended.log.read()
    newest = [line for line in (run.data / "batches").glob("*.jsonl") if '"attempt": 1' in line.read_text()]
    assert len(newest) == ranks  # the digests are of this attempt from the state's step on


def test_all_ranks_are_killed_between_an_amendment_and_its_step(
    titan: Titan, corpus: Corpus, fresh: dict[int, str], tmp_path: Path
) -> None:
    run = LoggedRun(corpus=corpus, folder=tmp_path, dp_world_size=4, saves=(5,), pauses=(PAUSE,), kill_at=6)
    thread = while_it_runs(run, lambda: amend_twice(run))
    assert titan.call(4, tmp_path, run.take_steps).codes == (-9,) * 4
    thread.join()
    assert max(run.digests()) == 5
    again = LoggedRun(corpus=corpus, folder=tmp_path, dp_world_size=2, state=tmp_path / "state_5.json")
    titan.call(2, tmp_path, again.take_steps).ok()
    assert run.digests() == fresh
    assert [entry.body.kind for entry in run.log.read()][3:] == ["accepted", "refused"]


def unreadable(log: Path) -> None:
    (log / "000001.json").write_text("no entry\n")


def gone(log: Path) -> None:
    shutil.rmtree(log)


@pytest.mark.parametrize(
    ("spoil", "file"), [(unreadable, "000001.json"), (gone, "000000.json")], ids=["unreadable", "gone"]
)
def test_a_log_that_is_spoilt_in_mid_run_ends_all_ranks_with_one_report(
    titan: Titan, corpus: Corpus, tmp_path: Path, spoil: Callable[[Path], None], file: str
) -> None:
    run = LoggedRun(corpus=corpus, folder=tmp_path, dp_world_size=2, pauses=(PAUSE,), prefetch=4)
    thread = while_it_runs(run, lambda: spoil(run.data / "curriculum"))
    job = titan.call(2, tmp_path, run.take_steps)
    thread.join()
    assert job.codes == (5, 5), job.tail()
    assert "Traceback" not in job.log
    assert job.log.count("breaks the chain") == 1
    report = job.logs[0].partition(
        "the run ends before step 3 (a trainer that counts from 1 logs it as 4)\n"
    )[2]
    assert report.startswith(f"curriculum log: {run.data}/curriculum/{file} breaks the chain\n  got:  ")
    assert [line[:7] for line in report.splitlines()[1:]] == ["  got: ", "  rule:", "  cure:", "  on:  "]
    assert not left_over(str(tmp_path))


def test_a_second_launch_while_the_first_lives_ends_with_one_report_and_writes_nothing(
    titan: Titan, corpus: Corpus, tmp_path: Path
) -> None:
    run = LoggedRun(corpus=corpus, folder=tmp_path, dp_world_size=2, pauses=(PAUSE,))
    jobs, files = list[Job](), list[dict[Path, bytes]]()

    def launch() -> None:
        for _ in range(2):
            files.append({path: path.read_bytes() for path in run.data.rglob("*") if path.is_file()})
            if not jobs:
                jobs.append(titan.call(4, tmp_path / "second", replace(run, dp_world_size=4).take_steps))

    thread = while_it_runs(run, launch)
    titan.call(2, tmp_path, run.take_steps).ok()
    thread.join()
    assert jobs[0].codes == (5,) * 4, jobs[0].tail()
    assert "Traceback" not in jobs[0].log
    assert jobs[0].log.count("another run follows this curriculum log") == 1
    assert "\n  got:  it is held by process " in jobs[0].logs[0]
    assert files[0] == files[1]
    assert list(run.digests()) == list(range(STEPS))


def test_peers_with_the_same_batches_follow_too(
    titan: Titan, corpus: Corpus, fresh: dict[int, str], tmp_path: Path
) -> None:
    run = LoggedRun(corpus=corpus, folder=tmp_path, dp_world_size=1, pauses=(PAUSE,))
    thread = while_it_runs(run, lambda: amend_twice(run))
    titan.call(2, tmp_path, run.take_steps).ok()
    thread.join()
    assert run.digests() == fresh


def test_a_dataset_that_an_amendment_adds_is_opened_by_all_ranks_at_the_next_start(
    titan: Titan, corpus: Corpus, tmp_path: Path
) -> None:
    path = str(write_jsonl(tmp_path / "more.jsonl", words("more", 90, (1, 3))))
    add = Add(dataset="more", config={"path": path})
    weights = {"short": 0, "long": 1, "more": 1}
    first = LoggedRun(
        corpus=corpus, folder=tmp_path, dp_world_size=2, is_local=True, saves=(5,), pauses=(PAUSE,), kill_at=6
    )
    thread = while_it_runs(first, lambda: (propose(first.log, AT_STEP, weights, add), None)[1])
    titan.call(2, tmp_path, first.take_steps)
    thread.join()
    refused = verdict(first.log.read(), 1)
    assert isinstance(refused, Refused)
    assert "opens its datasets when it starts" in refused.why
    propose(first.log, AT_STEP, weights, add)
    run = replace(first, state=tmp_path / "state_5.json", saves=(), pauses=(), kill_at=None)
    titan.call(2, tmp_path, run.take_steps).ok()
    assert verdict(run.log.read(), 3) == Accepted(proposal=3, step=5, from_step=AT_STEP)
    recipe = recipe_of_run(run.read_recipe(), run.data)
    assert recipe.names == ("short", "long", "more")
    again = made_again(recipe, run.data / "curriculum", tmp_path / "again")
    assert run.digests() == again


def paced() -> None:
    """Trains; rank 0 waits ahead of its third step."""
    from zephon_torchtitan import cpu
    from zephon_torchtitan.trainer import ZephonTrainer

    take = ZephonTrainer.train_step
    folder = Path(sys.argv[sys.argv.index("--dump-folder") + 1])

    def train_step(self: Any, batches: Any) -> None:
        if self.step == PAUSE + 1 and distributed.get_rank() == 0:
            (folder / f"at_{PAUSE}").touch()
            wait_for(folder / f"go_{PAUSE}")
        take(self, batches)

    ZephonTrainer.train_step = train_step
    cpu.main()


@pytest.mark.slow
def test_the_command_line_amends_a_training(titan: Titan, seeded: list[str], tmp_path: Path) -> None:
    run = LoggedRun(corpus=titan.corpus, folder=tmp_path, dp_world_size=2)
    done: list[subprocess.CompletedProcess[str]] = []
    amend = ("amend", str(run.data), "--at-step", "6", "--weights", "short=0,long=1", "--reason", "try it")
    thread = while_it_runs(run, lambda: done.append(zephon(*amend)))
    job = titan.run(2, tmp_path, *seeded, call=paced).ok()
    thread.join()
    assert done[0].returncode == 0, done[0].stdout + done[0].stderr
    assert "curriculum log of 1 entries, 0 of them to decide" in job.logs[0]
    assert told(job) == ["curriculum log: entry 2, proposal 1 is accepted at step 3, from step 6 on"]
    assert list(job.scalars["data/planned_share/long"].values()) == [0.25] * 5 + [0.75, 1.0, 1.0]
    assert job.scalars["data/share/long"][8] == 1.0
    again = zephon("verify", str(run.data), "--dp", "4")
    assert again.returncode == 0, again.stdout + again.stderr
