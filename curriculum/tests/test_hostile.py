"""Proposals of careless and hostile hands: what cannot be read, reckoned with or found never ends a run."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import digests, open_small
from tests.log_cases import propose, recipe, run, verdict
from zephon import PARTS, ScheduleTable
from zephon_curriculum.log.entries import Proposal, Refused
from zephon_curriculum.log.folder import CurriculumLog
from zephon_curriculum.log.history import History
from zephon_curriculum.log.ops import (
    Add,
    Op,
    Points,
    Replace,
    Retire,
    Scale,
    SkipDocuments,
    SkipSteps,
    Weights,
    Withdraw,
)

OPENED = open_small(recipe())
NAMES, HALF = OPENED.recipe.names, PARTS // 2


def table(starts: tuple[int, ...], *shares: tuple[int, ...], **more: Any) -> ScheduleTable:
    return ScheduleTable(NAMES, starts, shares, **more)


NUMBERS = st.sampled_from(["0", "1", "-1", "1/3", "+10", "-50", "1e15", "1e-15", "-0", "1/999999999999999"])
NUMBERED = st.lists(
    st.tuples(st.sampled_from([*NAMES, "x"]), NUMBERS), min_size=1, max_size=3, unique_by=lambda pair: pair[0]
).map(tuple)
STEPS = st.integers(0, 14) | st.sampled_from([1 << 31, (1 << 62) - 1, 1 << 62, 1 << 64])
ADDED: list[dict[str, Any]] = [{}, {"path": "x"}, {"path": 5}]


@st.composite
def proposals(draw: st.DrawFn) -> Proposal:
    """Returns a proposal that can be read, sensible or not; it skips few steps, which are drawn."""
    step = draw(STEPS)
    some = st.one_of(
        st.tuples(NUMBERS, NUMBERS, NUMBERS).map(
            lambda three: Weights(tuple(zip(NAMES, three, strict=True)))
        ),
        st.builds(Weights, NUMBERED),
        st.builds(Scale, NUMBERED),
        st.builds(Points, NUMBERED),
        st.builds(Retire, st.sampled_from([*NAMES, ""])),
        st.builds(Add, st.sampled_from(["web", "more"]), st.sampled_from(ADDED)),
        st.builds(SkipSteps, st.just(step) | STEPS, st.integers(0, 5).map(lambda more: step + more)),
        st.builds(SkipDocuments, st.sampled_from(["", "../../x"]), STEPS),
        st.builds(Replace, st.sampled_from(["", "x"])),
        st.builds(Withdraw, st.integers(0, 8) | STEPS),
    )
    ops = tuple(draw(st.lists(some, max_size=3)))
    return Proposal(at_step=step, until=draw(st.none() | STEPS), ops=ops, reason="x", author="")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"at_step": 9, "until": 12.5}, "until: it must be a whole number"),
        ({"at_step": 9, "author": 7}, "author: it must be a text"),
        ({"at_step": 9, "reason": None}, "reason: it must be a text"),
        ({"skip_steps": (9, 11.5)}, "stop: it must be a whole number"),
        ({"skip_steps": ("9", "11")}, "at_step: it must be a whole number"),
        ({"at_step": 9, "skip_documents": (("web", "web", 3.7),)}, "a document is"),
        ({"at_step": 9, "skip_documents": (("web", "web", -1),)}, "a document is"),
        ({"at_step": 9, "skip_documents": (("wob", "web", 1),)}, "documents to skip of 'wob'"),
        ({"at_step": 9, "schedule": table((5,), (HALF, HALF, 0))}, "must ascend from 0"),
        ({"at_step": 9, "schedule": table((0,), (1, 1, 1))}, "must sum to"),
        ({"at_step": 9, "schedule": table((0,), (2 * PARTS, -PARTS, 0))}, "whole numbers >= 0"),
        (
            {"at_step": 9, "schedule": table((0,), (HALF, HALF, 0), skips=((8, 9),))},
            "skips steps or documents",
        ),
    ],
)
def test_what_would_break_the_chain_or_the_mixture_is_never_written(
    given: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with run(OPENED, tmp_path) as ranks:
        ranks.steps(1)
        with pytest.raises(ValueError, match=says):
            propose(
                tmp_path, **({"retire": ("web",)} if "until" in given or "reason" in given else {}) | given
            )
        ranks.steps(1)
    assert [entry.body.kind for entry in CurriculumLog(tmp_path).read()] == ["base"]


@pytest.mark.parametrize(
    "op",
    [
        Weights((("web", "-1"), ("code", "1"), ("math", "0"))),
        Weights((("web", "-1"), ("code", "3"), ("math", "0"))),
        Scale((("web", "-1"),)),
    ],
)
def test_numbers_below_zero_written_by_hand_are_refused(op: Op, tmp_path: Path) -> None:
    log = CurriculumLog(tmp_path)
    with run(OPENED, tmp_path) as ranks:
        body = Proposal(at_step=9, until=None, ops=(op,), reason="x", author="")
        entry = log.append(body, 1, log.read()[0].hash)[-1]
        ranks.steps(1)
    said = verdict(tmp_path, entry)
    assert isinstance(said, Refused)
    assert said.why == "the number of 'web' must be >= 0, got -1"


def test_a_table_or_list_written_by_hand_is_refused_and_the_run_goes_on(tmp_path: Path) -> None:
    log = CurriculumLog(tmp_path)
    with run(OPENED, tmp_path, world=2) as ranks:
        ranks.steps(1)
        ops = [
            Replace(log.put_table(table((0,), (0, 0, 0)))),
            Replace(log._put("tables", "json", b"[1, 2]\n")),
            SkipDocuments(log._put("documents", "jsonl", b'["web"]\n'), 1),
            SkipDocuments(log._put("documents", "jsonl", b"\xff\n"), 1),
            SkipDocuments(log.put_documents([("web", "web", 1 << 70)]), 1),
        ]
        written = []
        for op in ops:
            body = Proposal(at_step=9, until=None, ops=(op,), reason="x", author="")
            entries = log.read()
            written.append(log.append(body, len(entries), entries[-1].hash)[-1])
        ranks.steps(12)
    assert [type(verdict(tmp_path, entry)) for entry in written] == [Refused] * 5


@given(st.lists(proposals(), min_size=1, max_size=5), st.sampled_from([1, 2]))
@settings(max_examples=25)
def test_entries_written_by_hand_never_end_a_run(bodies: list[Proposal], world: int) -> None:
    """Each gets its verdict, and the run is that of a fresh one with what was accepted."""
    with tempfile.TemporaryDirectory() as folder:
        log = CurriculumLog(f"{folder}/curriculum")
        with run(OPENED, log.url, world=world) as ranks:
            found = []
            for body in bodies:
                entries = log.read()
                log.append(body, len(entries), entries[-1].hash)
                found += ranks.steps(1)
            found += ranks.steps(6)
        history = History.read(log)
        final = history.composed.table()
        assert not history.pending
        assert all(sum(shares) == PARTS and min(shares) >= 0 for shares in final.shares)
        assert found == digests(replace(OPENED, table=final), len(found))


def test_a_folder_is_taken_by_its_name_whatever_is_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "a::b" / "curriculum"
    with run(OPENED, folder) as ranks:
        ranks.steps(1)
    assert (folder / "000000.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a::b"]


def test_a_listing_that_lacks_a_file_made_meanwhile_is_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run(OPENED, tmp_path) as ranks:
        ranks.steps(1)
        propose(tmp_path, at_step=9, retire=("web",))
        ranks.steps(1)
    log = CurriculumLog(tmp_path)
    names = [name for name in log._store.names() if name != "000001.json"]
    monkeypatch.setattr(log._store, "names", lambda: names)
    assert [entry.body.kind for entry in log.read()] == ["base", "proposal", "accepted"]
