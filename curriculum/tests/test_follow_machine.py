"""The log under all that happens to a run, in any order: at the end its table gives what was delivered."""

from __future__ import annotations

import contextlib
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.helpers import digests, open_small
from tests.log_cases import INLINE, Chase, Ranks, final_table, propose, recipe, run, with_recipe
from zephon import LoaderOptions
from zephon_curriculum.controllers import protocol
from zephon_curriculum.log.folder import CurriculumLog
from zephon_curriculum.log.history import History
from zephon_curriculum.log.steps import AmendError

OPENED = open_small(recipe())
REQUESTS: list[dict[str, Any]] = [
    {"weights": "web=1,code=2,math=3"},
    {"weights": {"web": 0, "code": "1/3", "math": 1}, "span": 3},
    {"scale": "code=2.5"},
    {"scale": "web=0", "span": 4},
    {"points": "math=+7.5,code=-5"},
    {"points": "web=+40", "span": 2},
    {"retire": ("code",)},
    {"skip": 2},
    {"documents": (("web", "web", 3), ("code", "code", 5))},
]
OPTIONS = [INLINE, LoaderOptions(workers=1, prefetch=3)]


class FollowedRun(RuleBasedStateMachine):
    """A run of some ranks, its checkpoints, and what its newest attempt delivered."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory())) / "curriculum"
        self.attempt = ExitStack()
        self.ranks: Ranks | None = None
        self.opened, self.step, self.observed = OPENED, 0, 0
        self.delivered: dict[int, str] = {}
        self.states: dict[int, dict[str, Any]] = {}

    @initialize(world=st.sampled_from([1, 2, 4]), options=st.sampled_from(OPTIONS), steered=st.booleans())
    def begin(self, world: int, options: LoaderOptions, steered: bool) -> None:
        patch = self.stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(protocol, "find_plugin", lambda role, kind: lambda config, context: Chase())
        if steered:
            self.opened = replace(OPENED, recipe=replace(OPENED.recipe, controller={"kind": "chase"}))
        self._open(None, world, options)

    def _open(self, at: int | None, world: int, options: LoaderOptions) -> None:
        self.attempt.close()
        self.attempt = ExitStack()
        state = self.states.get(at or 0)
        self.step = 0 if state is None else at or 0
        self.states = {step: saved for step, saved in self.states.items() if step <= self.step}
        self.delivered = {step: found for step, found in self.delivered.items() if step < self.step}
        self.ranks = self.attempt.enter_context(
            run(self.opened, self.folder, state, world=world, options=options)
        )

    @rule(number=st.integers(1, 4), saves=st.booleans())
    def go_on(self, number: int, saves: bool) -> None:
        assert self.ranks is not None
        for _ in range(number):
            self.observed += 1
            losses = {"web": 3.0 + self.observed % 5, "code": 2.0, "math": self.observed % 7 + 0.5}
            self.ranks.updates[0].observe(self.step, losses, dict.fromkeys(losses, self.step))
            self.delivered[self.step] = self.ranks.steps(1)[0]
            self.step += 1
        if saves:
            self.states[self.step] = self.ranks.state()

    @rule(
        ahead=st.integers(1, 9),
        request=st.sampled_from(REQUESTS),
        number=st.integers(0, 6),
        saves=st.booleans(),
    )
    def ask(self, ahead: int, request: dict[str, Any], number: int, saves: bool) -> None:
        at = self.step + ahead
        given = {name: value for name, value in request.items() if name not in ("span", "skip", "documents")}
        if "skip" in request:
            given["skip_steps"] = (at, at + request["skip"])
        elif "documents" in request:
            given |= {"at_step": at, "skip_documents": request["documents"]}
        else:
            given |= {"at_step": at, "until": at + request["span"] if "span" in request else None}
        with contextlib.suppress(AmendError):
            propose(self.folder, **given)
        if number:
            self.go_on(number, saves)

    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        begins = History.read(CurriculumLog(self.folder)).begins()
        if begins:
            number = data.draw(st.sampled_from(sorted(begins)))
            with contextlib.suppress(AmendError):
                propose(self.folder, withdraw=(number,))
            self.go_on(1, False)

    @rule(data=st.data(), world=st.sampled_from([1, 2, 4]), options=st.sampled_from(OPTIONS))
    def fall_and_go_on(self, data: st.DataObject, world: int, options: LoaderOptions) -> None:
        """A kill: what was delivered after the last state is lost; or a rollback to an earlier one."""
        at = data.draw(st.sampled_from([*sorted(self.states, reverse=True), 0]))
        self._open(at, world, options)

    @precondition(lambda self: self.states)
    @rule(ahead=st.integers(0, 5), weight=st.integers(1, 5))
    def edit_recipe(self, ahead: int, weight: int) -> None:
        """The run is stopped, its recipe edited from a later step on, and it goes on from its last state."""
        at = max(self.states)
        table = self.opened.recipe.compile_schedule()
        stages = {step: dict(zip(table.names, table.at(step), strict=True)) for step in table.starts}
        kept = {step: weights for step, weights in stages.items() if step < at + ahead}
        edited = recipe(kept | {at + ahead: {"web": 1, "code": weight, "math": weight}})
        self.opened = with_recipe(OPENED, edited)
        self._open(at, 1, INLINE)
        self.go_on(1, True)  # from here on the edit is an entry

    def teardown(self) -> None:
        self.attempt.close()
        try:
            if self.delivered:
                fresh = replace(self.opened, table=final_table(self.folder))
                found = digests(fresh, max(self.delivered) + 1)
                assert dict(enumerate(found)) == self.delivered
        finally:
            self.stack.close()


TestFollowedRun = pytest.mark.filterwarnings("ignore")(FollowedRun.TestCase)
TestFollowedRun.settings = settings(max_examples=12, stateful_step_count=14)
