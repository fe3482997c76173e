"""Attempts that meet on one log: whoever comes first or wakes late, one goes on and the others end."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import open_small
from tests.log_cases import STAGES, propose, recipe, run, with_recipe
from zephon import StateError
from zephon_curriculum.log import attempts
from zephon_curriculum.log.attempts import Attempt
from zephon_curriculum.log.store import LocalStore

OPENED = open_small(recipe())
OVERTAKEN = "a newer run follows this curriculum log"
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.just(0)),
        st.tuples(st.sampled_from(["meet", "settle"]), st.integers(0, 4)),
    ),
    max_size=40,
)


class Memory(LocalStore):
    """Files without a disk, for many tries."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def read(self, name: str) -> bytes | None:
        return self.files.get(name)

    def create(self, name: str, data: bytes) -> bool:
        is_new = name not in self.files
        self.files.setdefault(name, data)
        return is_new

    def names(self) -> list[str]:
        return sorted(self.files)


@given(acts=ACTS)
def test_of_attempts_that_live_exactly_one_goes_on(acts: list[tuple[str, int]]) -> None:
    """In whatever order they begin, look and write."""
    store, living = Memory(), list[Attempt]()

    def act(attempt: Attempt, does: str) -> None:
        try:
            attempt.meet() if does == "meet" else attempt.settle()
        except StateError:
            living.remove(attempt)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempts, "open_store", lambda url: store)
        for does, who in [("begin", 0), *acts]:
            if does == "begin":
                living.append(Attempt(""))
            elif who < len(living):
                act(living[who], does)
        for _ in range(2):  # to answer, and to be answered
            for attempt in tuple(living):
                act(attempt, "meet")
    assert len(living) == 1


def test_an_older_attempt_waits_for_the_end_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage without hard links may show a half of it: whose it is decides which of the two ends."""

    class Halves(Memory):
        """The first look at an answer finds a half of it."""

        def read(self, name: str) -> bytes | None:
            found = super().read(name)
            if found is None or not name.endswith(attempts.ANSWER) or name in looked:
                return found
            looked.add(name)
            return found[:7]

    looked, store = set[str](), Halves()
    monkeypatch.setattr("zephon_curriculum.log.folder.WAIT_S", 0.0)
    monkeypatch.setattr(attempts, "open_store", lambda url: store)
    older, newer = Attempt(""), Attempt("")
    newer.settle()
    with pytest.raises(StateError, match=OVERTAKEN):
        older.meet()
    newer.meet()


@pytest.mark.parametrize("does", ["judges", "brings an edited recipe", "takes its steps"])
def test_an_older_run_that_wakes_late_ends_and_the_newer_goes_on(does: str, tmp_path: Path) -> None:
    """Stopped for long, on a node that hung, say: the run that took its place is not ended by it."""
    edited = with_recipe(OPENED, recipe({**STAGES, 9: {"web": 0, "code": 1, "math": 1}}))
    with run(OPENED, tmp_path, world=2) as older:
        older.steps(2)
        newer_of = edited if does == "brings an edited recipe" else OPENED
        if does == "judges":
            propose(tmp_path, at_step=9, retire=("web",))
        with run(newer_of, tmp_path, older.state()) as newer:
            newer.steps(attempts.MAX_LOOKS if does == "takes its steps" else 1)
            before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
            for loader in older.loaders:  # on all ranks
                with pytest.raises(StateError, match=OVERTAKEN):
                    next(loader)
            assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
            newer.steps(4)
