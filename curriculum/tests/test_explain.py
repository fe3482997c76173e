"""Explanations: every choice derived again from the credits shown, and what was drawn added up."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import INLINE, make_recipe, open_small, sized, words
from zephon import PARTS, Dataset, Loader, Opened, ScheduleTable, Stages
from zephon_curriculum.explain import Draw, Explanation, entries_in_force, explain
from zephon_curriculum.log.entries import Accepted, Base, Body, Decision, Proposal
from zephon_curriculum.log.folder import log_of
from zephon_curriculum.log.ops import (
    Op,
    Points,
    Replace,
    Retire,
    Scale,
    SkipDocuments,
    SkipSteps,
    Weights,
    numbers,
)
from zephon_curriculum.preview import preview

DOCUMENTS = {"web": words("web", 40), "code": words("code", 9, (1, 7)), "math": sized(12, (3, 50))}
RAMP = Stages({0: {"web": 3, "code": 1, "math": 0}, 4: {"web": 1, "code": 1, "math": 2}})
MANY = {f"d{i:02}": words(f"d{i:02}", 5, (1, 2, 5)) for i in range(18)}


def choose(draw: Draw, names: Sequence[str]) -> str:
    """Returns the dataset that is owed most among those with a share, the first of equals."""
    owed = {n: c for n, c, share in zip(names, draw.credits, draw.shares, strict=True) if share}
    return next(name for name in names if name in owed and owed[name] == max(owed.values()))


def small(**fields: Any) -> Opened:
    return open_small(make_recipe(DOCUMENTS, RAMP, global_batch_size=8, lanes=4, **fields))


def check(found: Explanation) -> None:
    """Holds an explanation to what C4 says of choices, run lengths and credits."""
    for row in found.rows:
        for draw in row.draws:
            assert draw.dataset == choose(draw, found.names)
            assert sum(draw.credits) == 0
            at = found.names.index(draw.dataset)
            run = min(
                [draw.rest]
                + [
                    (draw.credits[at] - credit) // (PARTS - draw.shares[at] + share)
                    for i, (credit, share) in enumerate(zip(draw.credits, draw.shares, strict=True))
                    if share and i != at
                ]
            )
            assert draw.at_least == run
        for draw, after in zip(row.draws, row.draws[1:], strict=False):
            at = found.names.index(draw.dataset)
            charged = [
                c + share * draw.num_tokens for c, share in zip(draw.credits, draw.shares, strict=True)
            ]
            charged[at] -= draw.num_tokens * PARTS
            assert after.credits == tuple(charged)


@settings(max_examples=12, deadline=None)
@given(step=st.integers(0, 8), lane=st.integers(0, 3))
def test_every_choice_follows_from_the_credits_shown(step: int, lane: int) -> None:
    opened = small()
    found = explain(opened, step=step, lane=lane)
    check(found)
    assert [row.row for row in found.rows] == list(preview(opened, [step], [lane]).rows)
    for row in found.rows:
        drawn, held = Counter[str](), Counter[str]()
        for draw in row.draws:
            drawn[draw.dataset] += draw.num_tokens
        for piece in row.row.pieces:
            held[piece.dataset] += piece.num_tokens
        assert drawn == held
        begins = {row.begin_of(draw): draw.dataset for draw in row.draws}
        assert begins == {p.begin: p.dataset for p in row.row.pieces if p.begin in begins}
    assert found.planned == opened.table.at(step)
    assert found.in_force_since == (4 if step >= 4 else 0)


@pytest.mark.parametrize("flush_every", [None, 3])
def test_of_a_pool_each_piece_names_the_row_it_was_drawn_for(flush_every: int | None) -> None:
    opened = small(kind="best_fit", seq_len=24, flush_every=flush_every)
    drawn, delivered = dict[tuple[int, str], Counter[int]](), dict[tuple[int, str], Counter[int]]()
    for step in range(12):
        found = explain(opened, step=step, lane=1)
        assert found.pool
        for row in found.rows:
            for draw in row.draws:
                assert draw.dataset == choose(draw, found.names)
                drawn.setdefault((draw.row, draw.dataset), Counter())[draw.num_tokens] += 1
            for piece, number in zip(row.row.pieces, row.drawn_for, strict=True):
                assert number is not None
                assert number <= row.row.row
                delivered.setdefault((number, piece.dataset), Counter())[piece.num_tokens] += 1
    assert drawn[0, "web"].total() > 3  # the pool is filled ahead of the first row
    for at, lengths in delivered.items():
        assert lengths <= drawn[at]
    early = [(at, lengths) for at, lengths in drawn.items() if at[0] == 0]
    assert [delivered[at] for at, _ in early] == [lengths for _, lengths in early]


def test_what_a_pool_held_at_the_state_was_drawn_before_it() -> None:
    opened = small(kind="best_fit", seq_len=24)
    with Loader(opened, INLINE) as loader:
        while loader.num_steps < 3:
            next(loader)
        state = loader.state_dict()
    whole, later = explain(opened, step=5, lane=1), explain(opened, step=5, lane=1, state=state)
    assert [row.row for row in later.rows] == [row.row for row in whole.rows]
    for ours, theirs in zip(whole.rows, later.rows, strict=True):
        assert ours.draws == theirs.draws
        assert theirs.drawn_for == tuple(n if n is not None and n >= 6 else None for n in ours.drawn_for)
    assert None in later.rows[0].drawn_for


def test_of_many_datasets_too() -> None:
    opened = open_small(make_recipe(MANY, None))
    found = explain(opened, step=5, lane=2)
    check(found)
    assert len(found.names) == 18


def test_a_lane_of_a_recipe_that_ends_has_the_shares_of_those_left() -> None:
    datasets = [Dataset.from_documents(name, texts) for name, texts in DOCUMENTS.items()]
    datasets[1] = replace(datasets[1], max_epochs=2)
    fields: dict[str, Any] = {"datasets": tuple(datasets), "when_exhausted": "redistribute"}
    found = explain(open_small(make_recipe(None, RAMP, **fields)), step=60, lane=0)
    check(found)
    third = PARTS // 3
    assert {draw.shares for row in found.rows for draw in row.draws} == {(third, 0, PARTS - third)}
    assert found.planned == (PARTS // 4, PARTS // 4, PARTS // 2)


@pytest.mark.parametrize("when_exhausted", ["stop", "redistribute"])
def test_a_step_behind_the_end_of_the_run_is_refused(when_exhausted: str) -> None:
    datasets = [replace(Dataset.from_documents(n, t), max_epochs=2) for n, t in DOCUMENTS.items()]
    recipe = make_recipe(None, RAMP, datasets=tuple(datasets), when_exhausted=when_exhausted)
    opened = open_small(recipe)
    end = preview(opened, [500], [0]).ends
    assert end is not None
    alone = [preview(opened, [500], [lane], check_end=False).ends for lane in range(4)]
    lane = alone.index(max(alone, key=lambda its_end: its_end or 0))
    assert alone[lane] != end  # this lane alone goes on behind the end of the run
    for step in (end, 500):
        with pytest.raises(ValueError, match=f"step of the run, got {step}; the data end before step {end}"):
            explain(opened, step=step, lane=lane)
    last = explain(opened, step=end - 1, lane=lane)
    assert [row.row for row in last.rows] == list(preview(opened, [end - 1], [lane]).rows)
    assert last.notes == ()
    check(last)
    behind = explain(opened, step=end, lane=lane, check_end=False)
    assert behind.notes == ("the run may have ended before: the other lanes are not asked",)
    with pytest.raises(ValueError, match=f"the data of lane {lane} alone end before step {alone[lane]}"):
        explain(opened, step=500, lane=lane, check_end=False)


@pytest.mark.parametrize("kind", ["wrap", "best_fit"])
def test_a_lane_is_explained_alike_alone_and_among_all(kind: str) -> None:
    datasets = [replace(Dataset.from_documents(n, t), max_epochs=9) for n, t in DOCUMENTS.items()]
    recipe = make_recipe(None, RAMP, kind=kind, seq_len=24, datasets=tuple(datasets))
    opened = open_small(recipe)
    for lane in range(4):
        among, alone = (
            explain(opened, step=2, lane=lane, check_end=check_end) for check_end in (True, False)
        )
        assert among.rows == alone.rows
        assert (among.cost.num_lanes, alone.cost.num_lanes) == (4, 1)


def test_a_step_past_the_length_of_the_run_is_said() -> None:
    opened = small(total_steps=6)
    assert explain(opened, step=5, lane=0).notes == ()
    found = explain(opened, step=6, lane=0)
    assert found.notes == ("steps from 6 on are past the recipe's `total_steps` of 6",)
    assert found.to_json()["notes"] == list(found.notes)
    assert preview(opened, range(4, 7), [0]).notes == found.notes


def test_what_is_known_of_pieces_that_wait_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = small(kind="best_fit", seq_len=24)
    whole = explain(opened, step=5, lane=1)
    monkeypatch.setattr(sys.modules[explain.__module__], "MAX_WAITING", 2)
    forgotten = explain(opened, step=5, lane=1)
    assert [row.draws for row in forgotten.rows] == [row.draws for row in whole.rows]
    pairs = [
        zip(a.drawn_for, b.drawn_for, strict=True) for a, b in zip(forgotten.rows, whole.rows, strict=True)
    ]
    assert {short in (None, full) for each in pairs for short, full in each} == {True}


def test_one_row_is_chosen_by_its_number_in_the_lane() -> None:
    opened = small()
    whole = explain(opened, step=3, lane=1)
    assert explain(opened, step=3, lane=1, row=7).rows == whole.rows[1:]
    with pytest.raises(ValueError, match=r"`row` must be in \[6, 8\), the rows of a lane in step 3, got 8"):
        explain(opened, step=3, lane=1, row=8)


def test_an_explanation_is_json() -> None:
    found = explain(small(), step=4, lane=0)
    data = json.loads(json.dumps(found.to_json()))
    assert data["planned"] == {"web": 0.25, "code": 0.25, "math": 0.5}
    first = data["rows"][0]["draws"][0]
    assert (
        max(first["credits_in_tokens"], key=lambda name: first["credits_in_tokens"][name]) == first["dataset"]
    )


def test_draws_of_skipped_rows_come_before_those_of_the_first_row_after() -> None:
    opened = small()
    amended = replace(opened, table=replace(opened.table, skips=((2, 3),)))
    found = explain(amended, step=2, lane=0)
    assert sum(draw.num_tokens for draw in found.rows[0].draws) == 3 * 16
    assert sum(draw.num_tokens for draw in found.rows[1].draws) == 16
    row = found.rows[0]
    dropped = row.num_dropped()
    assert sum(draw.num_tokens for draw in row.draws[:dropped]) == 2 * 16
    assert row.begin_of(row.draws[dropped]) == 0
    assert found.rows[1].num_dropped() == 0
    data = found.to_json()["rows"][0]["draws"]
    assert [draw["is_dropped"] for draw in data] == [i < dropped for i in range(len(data))]
    shown = str(found)
    assert f"pieces; ahead of them {dropped} draws of rows skipped" in shown
    assert [i for i in range(len(data)) if f"skipped {i} " in shown] == [*range(dropped)]
    assert "at least: for so many tokens the dataset stays the one owed most; a document" in shown


def test_only_entries_that_act_on_the_shares_of_a_step_are_named(tmp_path: Path) -> None:
    log, half = log_of(tmp_path), PARTS // 2
    first = ScheduleTable(("web", "code"), (0,), ((PARTS - PARTS // 4, PARTS // 4),))
    later = ScheduleTable(("web", "code"), (0, 13), ((half, half), (PARTS, 0)))
    asked: list[tuple[int, int | None, Op]] = [
        (3, None, Scale(numbers({"code": 2}, "scale"))),
        (4, None, SkipSteps(4, 5)),
        (4, None, SkipDocuments(log.put_documents([("web", "web.jsonl", 3)]), 1)),
        (5, None, Scale(numbers({"code": 3, "web": 3}, "scale"))),  # of all alike: no share changes
        (6, 11, Weights(numbers({"web": 1, "code": 1}, "weights"))),
        (7, 9, Points(numbers({"web": "+10"}, "points", signed=True))),
        (8, 10, Retire("code")),
        (12, None, Replace(log.put_table(later))),
        (13, None, Retire("code")),  # which has no share there
    ]
    bodies: list[Body] = [
        Base(
            names=first.names, lead_steps=0, table=log.put_table(first), fingerprint="", version="0"
        )  # the entries of `asked` are 1, 3, 5, ...
    ]
    for step, until, op in asked:
        number = len(bodies)
        bodies.append(Proposal(at_step=step, until=until, ops=(op,), reason="", author=""))
        bodies.append(Accepted(proposal=number, step=0, from_step=step))
    decided = {"web": 1, "code": 3}
    bodies.append(Decision(step=0, from_step=2, weights=decided, inputs=(), controller="", reason=""))
    head = ""
    for number, body in enumerate(bodies):
        (entry,) = log.append(body, number, head)
        head = entry.hash
    named = [[e.number for e in entries_in_force(tmp_path, step)] for step in range(15)]
    base, decision, scale, weights, points, retire, schedule = 0, 19, 1, 9, 11, 13, 15
    assert named[:6] == [[base], [base], [decision], *[[decision, scale]] * 3]
    assert named[6:9] == [[weights], [weights, points], [weights, points, retire]]
    assert named[9:12] == [[weights, retire], [weights], [decision, scale]]
    assert named[12:] == [[schedule]] * 3
