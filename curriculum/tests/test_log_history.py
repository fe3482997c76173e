"""What a history says of entries that stand on others: withdrawals, forks, proposals sent twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curriculum.tests.test_amend import BLOBS, NAMES, TABLE, amendments, layers
from tests.helpers import open_small
from tests.log_cases import propose, recipe, run, verdict
from zephon import PARTS, ScheduleTable
from zephon_curriculum.log.amend import Amendment, Blobs, Composed, Layer, begin
from zephon_curriculum.log.entries import Accepted, Fork, Refused
from zephon_curriculum.log.folder import CurriculumLog, log_of
from zephon_curriculum.log.fork import fork_run
from zephon_curriculum.log.history import History
from zephon_curriculum.log.ops import Op, Points, Scale, SkipSteps, Weights
from zephon_curriculum.log.steps import AmendError

OPENED = open_small(recipe())


def amended(composed: Composed, at_step: int, op: Op, until: int | None = None) -> Composed:
    number = 1 + len(composed.amendments) + len(composed.layers)
    return composed.with_amendment(Amendment(number=number, at_step=at_step, until=until, ops=(op,)))


def weights(web: int, code: int, math: int) -> Weights:
    return Weights((("web", str(web)), ("code", str(code)), ("math", str(math))))


def same_before(step: int, one: Composed, other: Composed) -> bool:
    return all(one.steps.at(s) == other.steps.at(s) for s in range(step))


# Forks ------------------------------------------------------------------------------------------------------


def test_an_amendment_that_stood_on_what_a_fork_drops_ends_where_it_leaves_no_mixture() -> None:
    """At step 20 there is only web, so that +50 points fit in only by the weights of step 20."""
    parent = amended(begin(0, TABLE, "base", BLOBS), 20, weights(1, 1, 1))
    parent = amended(parent, 5, Points((("web", "+50"),)))
    fork = parent.before(8)
    assert same_before(20, fork, parent)
    assert fork.steps.at(20) == TABLE.at(20)
    assert [(a.at_step, a.until) for a in fork.amendments] == [(5, 20)]
    assert amended(fork, 30, Scale((("web", "2"),))).steps.at(30) == TABLE.at(30)


def test_an_amendment_that_later_weights_hide_does_not_count_where_they_hold() -> None:
    """The recipe of steps [9, 15) leaves no room for the points, which the weights of [8, 15) hide."""
    full = ScheduleTable(NAMES, (0, 9, 15), (TABLE.shares[0], (0, PARTS, 0), TABLE.shares[0]))
    parent = begin(0, TABLE, "base", BLOBS | Blobs({"full": full}))
    parent = amended(parent, 5, Points((("code", "+20"),)), until=18)
    parent = amended(parent, 8, weights(1, 0, 1), until=15)
    parent = parent.with_layer(Layer(number=9, from_step=9, table="full"))
    assert parent.steps.at(16)[1] > full.at(16)[1]
    for step in range(25):
        assert same_before(step, parent.before(step), parent), step
    assert parent.before(25).steps == parent.steps
    with pytest.raises(AmendError, match="amendment 2, at step 9: the share of code leaves"):
        parent.without(3)


@given(st.lists(layers | amendments, max_size=8), st.data())
def test_a_fork_at_any_step_keeps_its_past(events: list[dict[str, Any]], data: st.DataObject) -> None:
    composed = begin(0, TABLE, "base", BLOBS)
    for number, event in enumerate(events, 1):
        made: Callable[..., Any] = Amendment if "ops" in event else Layer
        try:
            change = made(number=number, **event)
            composed = composed.with_amendment(change) if "ops" in event else composed.with_layer(change)
        except AmendError:
            continue
    if data.draw(st.booleans()):
        a = data.draw(st.integers(0, 25))
        skip = SkipSteps(a, a + data.draw(st.integers(1, 6)))
        composed = composed.with_amendment(Amendment(number=99, at_step=a, until=None, ops=(skip,)))
    step = data.draw(st.integers(0, 35))
    table, fork = composed.table(), composed.before(step).table()
    assert fork.first_difference(table, step) is None
    assert all(sum(shares) == PARTS and min(shares) >= 0 for shares in fork.shares)
    assert fork.past(step) == table.past(step)


def test_a_fork_names_all_that_does_not_count_in_it(tmp_path: Path) -> None:
    """The withdrawal began before the fork, what was asked for with it did not; one had no verdict."""
    with run(OPENED, tmp_path / "run" / "curriculum") as ranks:
        log = tmp_path / "run" / "curriculum"
        ranks.steps(1)
        first = propose(log, at_step=10, retire=("web",))
        ranks.steps(1)
        both = propose(log, withdraw=(first.number,), at_step=20, scale="code=2")
        ranks.steps(1)
        waits = propose(log, at_step=8, scale="web=2")
    made = fork_run(tmp_path / "run", 15, tmp_path / "fork")
    assert (made.dropped, made.waiting) == ((both.number,), (waits.number,))
    fork = History.read(log_of(made.folder))
    assert fork.composed.table() == OPENED.table
    assert fork.withdrawn == {first.number, both.number, waits.number}
    assert fork.begins() == {}


def test_a_fork_of_a_log_on_other_storage_names_it(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/run"
    with run(OPENED, f"{url}/curriculum", poll_s=0.0) as ranks:
        ranks.steps(1)
        kept = propose(url + "/curriculum", at_step=5, retire=("web",))
        ranks.steps(1)
    made = fork_run(url, 9, tmp_path / "fork")
    assert made.entry.body == Fork(at_step=9, parent=url)
    assert History.read(log_of(made.folder)).begins() == {kept.number: 5}


# Withdrawals ------------------------------------------------------------------------------------------------


def test_an_entry_can_be_withdrawn_up_to_its_own_step_once_the_skip_that_moved_it_is_gone(
    tmp_path: Path,
) -> None:
    with run(OPENED, tmp_path) as ranks:
        ranks.steps(1)
        skip = propose(tmp_path, skip_steps=(6, 12))
        ranks.steps(1)
        moved = propose(tmp_path, at_step=11, retire=("web",))
        ranks.steps(1)
        assert verdict(tmp_path, moved) == Accepted(proposal=moved.number, step=2, from_step=6)
        assert History.read(CurriculumLog(tmp_path)).begins() == {skip.number: 6, moved.number: 6}
        propose(tmp_path, withdraw=(skip.number,))
        ranks.steps(4)
        assert History.read(CurriculumLog(tmp_path)).begins()[moved.number] == 11
        gone = propose(tmp_path, withdraw=(moved.number,))
        found = ranks.steps(6)
    assert verdict(tmp_path, gone) == Accepted(proposal=gone.number, step=7, from_step=11)
    with run(OPENED, tmp_path / "plain") as ranks:
        assert found == ranks.steps(13)[7:]


# Proposals sent twice ---------------------------------------------------------------------------------------


def factor(folder: Path) -> float:
    table = History.read(CurriculumLog(folder)).composed.table()
    web, code, _ = table.at(9)
    return round(code / web, 3)


def test_what_is_sent_again_counts_once_and_more_often_where_that_is_asked(tmp_path: Path) -> None:
    double = {"at_step": 9, "scale": "code=2"}
    with run(OPENED, tmp_path) as ranks:
        ranks.steps(1)
        first = propose(tmp_path, **double)
        assert propose(tmp_path, **double) == first  # it waits
        ranks.steps(1)
        assert propose(tmp_path, **double) == first  # it is accepted
        ranks.steps(1)
        assert factor(tmp_path) == 2
        assert propose(tmp_path, **double, reason="another") != first
        again = propose(tmp_path, **double, again=True)
        assert again.number > first.number
        ranks.steps(1)
    assert factor(tmp_path) == 8


def test_one_change_in_two_spellings_is_one_entry(tmp_path: Path) -> None:
    with run(OPENED, tmp_path):
        pass
    first = propose(tmp_path, at_step=9, until=15, points={"code": 5, "math": "-1"})
    assert propose(tmp_path, at_step=9, until=15, points="math=-1.0,code=+5") == first
    assert propose(tmp_path, at_step=9, until=15, points="math=-1,code=10/2") == first
    assert propose(tmp_path, at_step=9, until=15, points="math=-1,code=+5.1") != first
    whole = propose(tmp_path, at_step=9, weights="web=6,code=4,math=0.50")
    assert propose(tmp_path, at_step=9, weights={"web": 6.0, "code": "4", "math": "1/2"}) == whole
    scaled = propose(tmp_path, at_step=9, scale="web=1.10")
    assert propose(tmp_path, at_step=9, scale={"web": 1.1}) == scaled


def test_a_proposal_that_waits_too_long_and_its_withdrawal_are_no_fault_of_time(tmp_path: Path) -> None:
    """The run comes to the proposal when it is late for it; the withdrawal changes no step, and counts."""
    with run(OPENED, tmp_path) as ranks:
        ranks.steps(5)
        late = propose(tmp_path, at_step=6, retire=("web",))
        gone = propose(tmp_path, withdraw=(late.number,))
        both = propose(tmp_path, withdraw=(late.number,), at_step=9, scale="code=2")
        ranks.steps(1)
    assert verdict(tmp_path, late) == Refused(
        proposal=1, step=5, why="withdrawn by 2 before it was decided", first_legal=None
    )
    assert verdict(tmp_path, gone) == Accepted(proposal=2, step=5, from_step=8)
    assert verdict(tmp_path, both) == Accepted(proposal=3, step=5, from_step=9)


def test_what_was_refused_or_withdrawn_can_be_asked_for_again(tmp_path: Path) -> None:
    with run(OPENED, tmp_path) as ranks:
        ranks.steps(6)
        late = propose(tmp_path, at_step=8, retire=("web",))
        ranks.steps(1)
        assert isinstance(verdict(tmp_path, late), Refused)
        later = propose(tmp_path, at_step=8, retire=("web",))
        assert later.number > late.number
        early = propose(tmp_path, at_step=14, retire=("web",))
        propose(tmp_path, withdraw=(early.number,))
        anew = propose(tmp_path, at_step=14, retire=("web",))  # the withdrawal waits
        assert anew.number > early.number
        ranks.steps(1)
        gone = propose(tmp_path, withdraw=(anew.number,))
        assert propose(tmp_path, withdraw=(anew.number,)) == gone
        ranks.steps(1)
        assert propose(tmp_path, withdraw=(anew.number,)) == gone
        assert propose(tmp_path, at_step=14, retire=("web",)).number > gone.number


def test_what_a_waiting_proposal_withdraws_can_be_asked_for_again(tmp_path: Path) -> None:
    """Else the withdrawal would be accepted, and what was asked for after it be lost."""
    with run(OPENED, tmp_path) as ranks:
        ranks.steps(1)
        first = propose(tmp_path, at_step=9, retire=("web",))
        ranks.steps(1)
        propose(tmp_path, withdraw=(first.number,))
        anew = propose(tmp_path, at_step=9, retire=("web",))
        assert propose(tmp_path, at_step=9, retire=("web",)) == anew != first
        ranks.steps(1)
    history = History.read(CurriculumLog(tmp_path))
    assert isinstance(history.verdicts[anew.number], Accepted)
    assert history.composed.table().at(9)[0] == 0


@pytest.mark.parametrize("number", [0, 1, 99])
def test_an_entry_that_cannot_be_withdrawn_is_named(number: int, tmp_path: Path) -> None:
    with run(OPENED, tmp_path) as ranks:
        ranks.steps(6)
        propose(tmp_path, at_step=7, retire=("web",))  # late
        ranks.steps(1)
    with pytest.raises(AmendError, match=f"entry {number} cannot be withdrawn: it is none that was accepted"):
        propose(tmp_path, withdraw=(number,))


def test_a_retry_at_the_same_moment_as_the_first_writes_one_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have read the log before either writes; another proposal comes in between."""
    with run(OPENED, tmp_path) as ranks:
        ranks.steps(1)
        real = CurriculumLog.append

        def append(self: CurriculumLog, *given: Any) -> Any:
            monkeypatch.setattr(CurriculumLog, "append", real)
            propose(tmp_path, at_step=12, retire=("math",))
            first.append(propose(tmp_path, at_step=9, scale="code=2"))
            return real(self, *given)

        first: list[Any] = []
        monkeypatch.setattr(CurriculumLog, "append", append)
        assert [propose(tmp_path, at_step=9, scale="code=2")] == first
    assert [entry.body.kind for entry in CurriculumLog(tmp_path).read()] == ["base", "proposal", "proposal"]
