"""A run that follows its log: verdicts, restarts, ranks, storage that fails, edited recipes, controllers."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import digests, open_small
from tests.log_cases import (
    INLINE,
    STAGES,
    Bus,
    Chase,
    final_table,
    propose,
    recipe,
    run,
    verdict,
    with_recipe,
)
from zephon import Loader, LoaderOptions, StateError
from zephon_curriculum.controllers import protocol
from zephon_curriculum.log.entries import Accepted, Decision, RecipeChange, Refused
from zephon_curriculum.log.folder import CurriculumLog
from zephon_curriculum.log.follow import Updates, open_updates
from zephon_curriculum.log.history import History

OPENED = open_small(recipe())


def kinds(folder: Path | str) -> list[str]:
    return [entry.body.kind for entry in CurriculumLog(folder).read()]


def fresh(folder: Path | str, num_steps: int) -> list[str]:
    """Returns the digests of a fresh run with the final log."""
    return digests(replace(OPENED, table=final_table(folder)), num_steps)


# Verdicts ---------------------------------------------------------------------------------------------------


def test_a_run_without_proposals_is_that_of_its_recipe(tmp_path: Path) -> None:
    with run(OPENED, tmp_path) as ranks:
        assert ranks.steps(9) == digests(OPENED, 9)
    assert kinds(tmp_path) == ["base"]


@pytest.mark.parametrize("options", [INLINE, LoaderOptions(workers=1, prefetch=5)], ids=["inline", "ahead"])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_an_amendment_begins_at_its_step_on_all_ranks(
    world: int, options: LoaderOptions, tmp_path: Path
) -> None:
    with run(OPENED, tmp_path, world=world, options=options) as ranks:
        found = ranks.steps(3)
        entry = propose(tmp_path, at_step=6, weights="web=0,code=0,math=1")
        found += ranks.steps(7)
    assert verdict(tmp_path, entry) == Accepted(proposal=entry.number, step=3, from_step=6)
    assert found == fresh(tmp_path, 10)
    assert found[:6] == digests(OPENED, 6)
    assert found[6] != digests(OPENED, 7)[6]


@pytest.mark.parametrize("lead", [0, 1, 2, 5])
def test_the_first_legal_step_is_behind_the_lead(lead: int, tmp_path: Path) -> None:
    with run(OPENED, tmp_path, lead_steps=lead) as ranks:
        ranks.steps(4)
        late = propose(tmp_path, at_step=4 + lead, retire=("web",))
        legal = propose(tmp_path, at_step=4 + lead + 1, retire=("web",))
        ranks.steps(lead + 3)
        refused = verdict(tmp_path, late)
        assert isinstance(refused, Refused)
        assert (refused.step, refused.first_legal) == (4, 4 + lead + 1)
        assert isinstance(verdict(tmp_path, legal), Accepted)


def test_what_was_late_stays_refused_at_a_replay(tmp_path: Path) -> None:
    with run(OPENED, tmp_path) as ranks:
        ranks.steps(5)
        late = propose(tmp_path, at_step=6, retire=("web",))
        first = ranks.steps(5)
    with run(OPENED, tmp_path) as ranks:  # from step 0, where it would be legal
        assert ranks.steps(10)[5:] == first
    assert isinstance(verdict(tmp_path, late), Refused)
    assert kinds(tmp_path) == ["base", "proposal", "refused"]


def test_a_proposal_that_makes_no_sense_is_refused_and_the_run_goes_on(tmp_path: Path) -> None:
    with run(OPENED, tmp_path) as ranks:
        ranks.steps(1)
        first = propose(tmp_path, at_step=8, points="web=+20")
        ranks.steps(1)
        again = propose(tmp_path, at_step=8, points="code=+20")
        CurriculumLog(tmp_path).read()
        gone = propose(tmp_path, withdraw=(first.number,))
        twice = propose(tmp_path, withdraw=(first.number,), again=True)  # the other waits for its verdict
        missing = propose(tmp_path, at_step=9, skip_documents=(("web", "nowhere", 3),))
        found = ranks.steps(9)
    assert [type(verdict(tmp_path, e)) for e in (first, again, gone, twice, missing)] == [
        Accepted, Accepted, Accepted, Refused, Refused,
    ]  # fmt: skip
    assert found == fresh(tmp_path, 11)[2:]
    assert "no such document" in verdict(tmp_path, missing).why  # type: ignore[union-attr]


def test_an_entry_that_has_begun_cannot_be_withdrawn_and_after_a_rollback_it_can(tmp_path: Path) -> None:
    with run(OPENED, tmp_path) as ranks:
        ranks.steps(1)
        entry = propose(tmp_path, at_step=6, retire=("web",))
        ranks.steps(1)
        state = ranks.state()
        ranks.steps(6)
        late = propose(tmp_path, withdraw=(entry.number,))
        ranks.steps(1)
    assert isinstance(verdict(tmp_path, late), Refused)
    with run(OPENED, tmp_path, state, world=2) as ranks:
        again = propose(tmp_path, withdraw=(entry.number,))
        found = ranks.steps(7)
    assert verdict(tmp_path, again) == Accepted(proposal=again.number, step=2, from_step=6)
    assert found == digests(OPENED, 9)[2:] == fresh(tmp_path, 9)[2:]


def test_steps_that_are_skipped_before_the_run_comes_to_them(tmp_path: Path) -> None:
    """The hunt of a bad step: back to a state before it, the step skipped, and on."""
    with run(OPENED, tmp_path) as ranks:
        ranks.steps(3)
        state = ranks.state()
        first = ranks.steps(7)
    with run(OPENED, tmp_path, state, world=4) as ranks:
        propose(tmp_path, skip_steps=(6, 8))
        second = ranks.steps(7)
    assert (second[:3], second[3] == first[3]) == (first[:3], False)
    assert second == fresh(tmp_path, 10)[3:]


def test_what_changes_the_weights_of_skipped_rows_is_late_once_they_may_be_drawn(tmp_path: Path) -> None:
    """The rows of steps [6, 10) are drawn before step 6, so a change of step 8 is one of step 6."""
    with run(OPENED, tmp_path) as ranks:
        found = ranks.steps(1)
        early = propose(tmp_path, at_step=8, scale="code=2")
        skip = propose(tmp_path, skip_steps=(6, 10))
        found += ranks.steps(3)
        late = propose(tmp_path, at_step=8, retire=("web",))
        gone = propose(tmp_path, withdraw=(early.number,))
        legal = propose(tmp_path, at_step=10, retire=("web",))
        found += ranks.steps(8)
    refused = verdict(tmp_path, late)
    assert isinstance(refused, Refused)
    assert (refused.step, refused.first_legal) == (4, 10)
    assert "it changes step 6" in refused.why
    assert [type(verdict(tmp_path, e)) for e in (early, skip, gone, legal)] == [
        Accepted, Accepted, Refused, Accepted,
    ]  # fmt: skip
    assert found == fresh(tmp_path, 12)


def test_a_recipe_edited_amid_skipped_rows_begins_behind_them(tmp_path: Path) -> None:
    with run(OPENED, tmp_path) as ranks:
        propose(tmp_path, skip_steps=(4, 9))
        ranks.steps(5)
        state = ranks.state()
    edited = with_recipe(OPENED, recipe({**STAGES, 9: {"web": 0, "code": 1, "math": 3}}))
    with run(edited, tmp_path, state) as ranks:
        found = ranks.steps(6)
    assert found == fresh(tmp_path, 11)[5:]
    assert CurriculumLog(tmp_path).read()[-1].body.step == 9  # type: ignore[union-attr]
    sooner = with_recipe(OPENED, recipe({**STAGES, 8: {"web": 0, "code": 1, "math": 3}}))
    says = "differs from the run's at step 8\n(.*\n)*  cure: .*or go on from a state of step 4 or earlier"
    with run(sooner, tmp_path, state) as ranks, pytest.raises(StateError, match=says):
        ranks.steps(1)
    with run(sooner, tmp_path) as ranks:
        found = ranks.steps(4)
        state = ranks.state()
    with run(sooner, tmp_path, state) as ranks:
        found += ranks.steps(6)
    assert found == fresh(tmp_path, 10)


# Storage and ranks ------------------------------------------------------------------------------------------


def test_a_log_on_other_storage(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/curriculum"
    with run(OPENED, url, world=2, poll_s=0.0) as ranks:
        ranks.steps(1)
        entry = propose(url, at_step=5, scale="code=3")
        found = ranks.steps(7)
    assert isinstance(verdict(url, entry), Accepted)
    assert found == digests(replace(OPENED, table=final_table(url)), 8)[1:]


def test_storage_that_fails_for_a_while_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "zephon")
    fails = [True]
    real = CurriculumLog.append

    def append(self: CurriculumLog, *given: Any) -> Any:
        if fails[0]:
            raise OSError("the share is away")
        return real(self, *given)

    with run(OPENED, tmp_path, world=2) as ranks:
        ranks.steps(1)
        entry = propose(tmp_path, at_step=9, retire=("web",))
        monkeypatch.setattr(CurriculumLog, "append", append)
        ranks.steps(3)
        assert verdict(tmp_path, entry) is None
        fails[0] = False
        found = ranks.steps(7)
    assert verdict(tmp_path, entry) == Accepted(proposal=entry.number, step=4, from_step=9)
    assert found == fresh(tmp_path, 11)[4:]
    assert [r.message for r in caplog.records].count(
        "the curriculum log cannot be used, tried again at the next step: the share is away"
    ) == 1


@pytest.mark.parametrize("poll_s", [0.0, 3600.0], ids=["looks-at-each-step", "looks-seldom"])
def test_a_write_that_failed_only_to_our_knowledge(
    poll_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that looks seldom looks at once after it: its own verdict is none of another run."""
    real, fails = CurriculumLog.append, [True]

    def append(self: CurriculumLog, *given: Any) -> Any:
        found = real(self, *given)
        if fails.pop() if fails else False:
            raise OSError("no answer")
        return found

    with run(OPENED, tmp_path):
        propose(tmp_path, at_step=9, retire=("web",))
    monkeypatch.setattr(CurriculumLog, "append", append)
    with run(OPENED, tmp_path, poll_s=poll_s) as ranks:
        found = ranks.steps(11)
    assert kinds(tmp_path) == ["base", "proposal", "accepted"]
    assert found == fresh(tmp_path, 11)


def test_an_error_of_rank_0_ends_all_ranks(tmp_path: Path) -> None:
    with run(OPENED, tmp_path, world=2) as ranks:
        ranks.steps(2)
        propose(tmp_path, at_step=9, retire=("web",))
        path = tmp_path / "000001.json"
        path.write_text(path.read_text().replace("web", "code"))
        for loader in ranks.loaders:
            with pytest.raises(StateError, match=r"000001\.json breaks the chain"):
                next(loader)


def test_a_launch_that_rank_0_refuses_is_refused_on_all_ranks(tmp_path: Path) -> None:
    with run(OPENED, tmp_path):
        pass
    other, bus = open_small(recipe(seed=7)), Bus()
    for rank in range(2):
        with pytest.raises(StateError, match="the curriculum log is that of another recipe"):
            open_updates(other, tmp_path, is_first=rank == 0, share=bus.share(rank))


def test_of_two_runs_that_begin_a_log_at_once_one_of_another_recipe_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run(OPENED, tmp_path):
        pass
    monkeypatch.setattr(CurriculumLog, "read", lambda self: [])  # each saw an empty folder
    with pytest.raises(StateError, match="another run writes into this curriculum log: entry 0 is base"):
        open_updates(open_small(recipe(seed=7)), tmp_path)
    open_updates(OPENED, tmp_path)
    monkeypatch.undo()
    assert kinds(tmp_path) == ["base"]


@pytest.mark.parametrize("storage", ["local", "memory"])
def test_two_runs_of_which_no_lock_tells_are_told_so_at_a_verdict(storage: str, tmp_path: Path) -> None:
    """As in one process, or on storage that has no locks."""
    url = str(tmp_path) if storage == "local" else f"memory://{tmp_path.name}/curriculum"
    with run(OPENED, url, poll_s=0.0) as one, run(OPENED, url, poll_s=0.0) as two:
        one.steps(1)
        two.steps(1)
        propose(url, at_step=9, retire=("web",))
        one.steps(1)
        with pytest.raises(StateError, match="another run writes into this curriculum log"):
            two.steps(1)


def test_a_rank_that_is_not_the_first_needs_a_broadcast(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`share` must be given"):
        open_updates(OPENED, tmp_path, is_first=False)


def test_a_look_with_nothing_new_is_cheap_and_a_byte_long(tmp_path: Path) -> None:
    bus = Bus()
    updates = open_updates(OPENED, tmp_path, share=bus.share(0))
    began = time.process_time()
    for step in range(500):
        updates.exchange(step)
    assert (time.process_time() - began) / 500 < 0.002  # 27 us on a local disk
    assert {len(message) for message in bus.messages[1:]} == {1}


def test_looks_are_apart_where_that_is_asked(tmp_path: Path) -> None:
    updates = open_updates(OPENED, tmp_path, poll_s=3600.0)
    updates.exchange(0)
    entry = propose(tmp_path, at_step=50, retire=("web",))
    updates.exchange(1)
    assert verdict(tmp_path, entry) is None


# Recipes ----------------------------------------------------------------------------------------------------


def test_an_edited_recipe_replaces_the_base_from_where_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "zephon")
    with run(OPENED, tmp_path) as ranks:
        ranks.steps(1)
        entry = propose(tmp_path, at_step=4, scale="code=3")
        ranks.steps(4)
        state = ranks.state()
    edited = with_recipe(OPENED, recipe({**STAGES, 5: {"web": 0, "code": 1, "math": 3}}))
    with run(edited, tmp_path, state, world=2, options=LoaderOptions(workers=1, prefetch=3)) as ranks:
        found = ranks.steps(5)
    body = CurriculumLog(tmp_path).read()[-1].body
    assert isinstance(body, RecipeChange)
    assert body.step == 5
    assert found == fresh(tmp_path, 10)[5:]
    table = final_table(tmp_path)
    assert table.at(5)[1] == table.at(5)[2]  # 1 * 3 to 3: the amendment stays on it
    assert f"amendments {entry.number} stay on it" in caplog.text
    with run(edited, tmp_path) as ranks:
        ranks.steps(2)
    assert kinds(tmp_path).count("recipe") == 1


def test_a_recipe_that_changes_the_past_is_refused(tmp_path: Path) -> None:
    with run(OPENED, tmp_path) as ranks:
        ranks.steps(5)
        state = ranks.state()
    edited = with_recipe(OPENED, recipe({**STAGES, 3: {"web": 0, "code": 1, "math": 3}}))
    with (
        run(edited, tmp_path, state, world=2) as ranks,
        pytest.raises(StateError, match="differs from the run's at step 3") as refused,
    ):
        ranks.steps(1)
    assert "web 0.0000%, code 25.0000%, math 75.0000% in place of web " in str(refused.value)
    assert kinds(tmp_path) == ["base"]


def test_a_recipe_restored_inside_a_step_changes_what_is_behind_the_lead(tmp_path: Path) -> None:
    two = open_small(recipe(global_batch_size=8, lanes=4))
    options = replace(INLINE, micro_batch_size=4)
    with run(two, tmp_path, options=options) as ranks:
        for _ in range(5):
            next(ranks.loaders[0])
        state = ranks.state()
    stages = {**STAGES, 3: {"web": 0, "code": 1, "math": 3}}
    edited = with_recipe(two, recipe(stages, global_batch_size=8, lanes=4))
    with run(edited, tmp_path, state, options=options) as ranks:
        next(ranks.loaders[0])
        with pytest.raises(StateError, match="differs from the run's at step 3"):
            next(ranks.loaders[0])


# Controllers ------------------------------------------------------------------------------------------------


def steered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(protocol, "find_plugin", lambda role, kind: lambda config, context: Chase())
    return replace(OPENED, recipe=replace(OPENED.recipe, controller={"kind": "chase"}))


def observe(updates: Updates, step: int) -> None:
    losses = {"web": 3.0 + step % 4, "code": 2.0, "math": 1.5 + step % 7}
    updates.observe(step, losses, dict.fromkeys(losses, 10 * step))


def test_decisions_are_entries_that_a_replay_applies_without_a_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, found, state = steered(tmp_path, monkeypatch), [], {}
    with run(opened, tmp_path, world=2) as ranks:
        for step in range(20):
            observe(ranks.updates[0], step)
            found += ranks.steps(1)
            if step == 9:
                state = ranks.state()
    decisions = [e.body for e in CurriculumLog(tmp_path).read() if isinstance(e.body, Decision)]
    assert [d.step for d in decisions] == [3, 6, 9, 12, 15, 18]
    assert [d.from_step for d in decisions] == [6, 9, 12, 15, 18, 21]
    assert [len(d.inputs) for d in decisions] == [4, 3, 3, 3, 3, 3]
    assert [d.step for d in decisions if d.weights is None] == [3, 15]
    assert found == fresh(tmp_path, 20) != digests(OPENED, 20)
    with run(opened, tmp_path, state) as ranks:  # back behind decisions: the logged ones count
        again = []
        for step in range(10, 20):
            observe(ranks.updates[0], step + 1000)
            again += ranks.steps(1)
    assert again == found[10:]
    assert len(History.read(CurriculumLog(tmp_path)).decisions()) == 6


def test_a_controller_goes_on_where_the_log_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = steered(tmp_path, monkeypatch)
    with run(opened, tmp_path) as ranks:
        for step in range(8):
            observe(ranks.updates[0], step)
            ranks.steps(1)
    with run(opened, tmp_path) as ranks:
        for step in range(13):
            observe(ranks.updates[0], step)
            ranks.steps(1)
    decisions = History.read(CurriculumLog(tmp_path)).decisions()
    assert [d.step for d in decisions] == [3, 6, 9, 12]
    seen = [observation["step"] for d in decisions for observation in d.inputs]
    assert seen == list(range(13))


def test_amendments_stay_on_what_a_controller_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = steered(tmp_path, monkeypatch)
    with run(opened, tmp_path) as ranks:
        found = []
        for step in range(12):
            if step == 1:
                propose(tmp_path, at_step=5, retire=("web",))
            observe(ranks.updates[0], step)
            found += ranks.steps(1)
    assert found == fresh(tmp_path, 12)
    assert all(final_table(tmp_path).at(step)[0] == 0 for step in range(5, 12))


def test_a_run_without_its_controller_ends_what_it_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = steered(tmp_path, monkeypatch)
    with run(opened, tmp_path) as ranks:
        for step in range(10):
            observe(ranks.updates[0], step)
            ranks.steps(1)
        state = ranks.state()
    with run(OPENED, tmp_path, state) as ranks:
        ranks.steps(1)
    assert kinds(tmp_path)[-1] == "recipe"
    assert final_table(tmp_path).at(10) == OPENED.table.at(10)


# Processes --------------------------------------------------------------------------------------------------

WORLD = 4


def rank_process(rank: int, folder: str, pipes: list[Connection], ask: Connection) -> None:
    """One rank; rank 0 sends its bytes through a pipe to each of the others."""

    def share(message: bytes | None) -> bytes:
        if rank:
            return pipes[rank].recv_bytes()
        assert message is not None
        for pipe in pipes[1:]:
            pipe.send_bytes(message)
        return message

    opened = open_small(recipe())
    updates = open_updates(opened, folder, is_first=rank == 0, share=share)
    options = LoaderOptions(workers=1, prefetch=2, dp_rank=rank, dp_world_size=WORLD, updates=updates)
    from zephon import digest

    with Loader(opened, options) as loader:
        while (number := ask.recv()) is not None:
            ask.send([(b.step, digest(b)) for b in (next(loader) for _ in range(number))])


def test_processes_take_an_amendment_that_another_process_wrote(tmp_path: Path) -> None:
    context = get_context("spawn")
    ends = [context.Pipe() for _ in range(WORLD)]
    asks = [context.Pipe() for _ in range(WORLD)]
    folder, processes = tmp_path / "curriculum", []
    for rank in range(WORLD):
        pipes = [end[0] for end in ends] if rank == 0 else [end[1] for end in ends]
        processes.append(
            context.Process(target=rank_process, args=(rank, str(folder), pipes, asks[rank][1]), daemon=True)
        )
        processes[-1].start()
    rows: dict[int, list[Any]] = {}

    def go_on(number: int) -> None:
        for ask, _ in asks:
            ask.send(number)
        for ask, _ in asks:
            assert ask.poll(60)
            for step, found in ask.recv():
                rows.setdefault(step, []).extend(found)

    go_on(3)
    code = (
        "from tests.log_cases import propose; import sys; "
        "propose(sys.argv[1], at_step=7, weights='web=0,code=1,math=1')"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, cwd=Path(__file__).parents[2])
    go_on(7)
    for ask, _ in asks:
        ask.send(None)
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    from zephon import step_digest

    assert kinds(folder) == ["base", "proposal", "accepted"]
    assert [step_digest(rows[step]) for step in range(10)] == fresh(folder, 10)
