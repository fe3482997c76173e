"""The conformance kits accept the built-in parts and refuse bad ones, each for its reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from zephon.best_fit import BestFit
from zephon.mixture import Ledger, MixtureWorkSource
from zephon.packing import PackerPlan, Packing, Wrap
from zephon.prepare import LengthRule
from zephon.schedule import ScheduleContext
from zephon.stages import Constant, Stages
from zephon.stream import Run
from zephon.testing import check_packer, check_schedule, check_work_source

CONTEXT = ScheduleContext(names=("web", "code"), total_steps=10, tokens_per_step=64)
EVEN = {"web": 1, "code": 1}


def refuses(check: Callable[..., None], *args: Any, why: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(why)):
        check(*args)


# Schedules --------------------------------------------------------------------------------------------------


def test_the_built_in_schedules_pass() -> None:
    check_schedule(Constant(EVEN), CONTEXT)
    check_schedule(Stages({0: EVEN, 3: {"web": 0.1, "code": 0.7}, 5000: EVEN}), CONTEXT)


class Loose:
    """A schedule made of functions, to be bad in one way each."""

    def __init__(self, weights: Callable[[int], Mapping[str, float]], changes: Any = (0,)) -> None:
        self.weights = weights
        self.changes = lambda: changes


class Counting:
    """Gives other weights every time it is asked."""

    calls = 0

    def weights(self, step: int) -> Mapping[str, float]:
        self.calls += 1
        return {"web": self.calls, "code": 1}


def test_bad_schedules_are_refused() -> None:
    refuses(check_schedule, Counting(), CONTEXT, why="it must depend on the step only")
    refuses(
        check_schedule, Loose(lambda s: {"web": 1}), CONTEXT, why="must name ['code', 'web'], got ['web']"
    )
    refuses(check_schedule, Loose(lambda s: {**EVEN, "web": -1}), CONTEXT, why="finite and >= 0, got -1")
    refuses(check_schedule, Loose(lambda s: EVEN, (1,)), CONTEXT, why="changes() must begin with 0, got [1]")
    refuses(check_schedule, Loose(lambda s: EVEN, (0, 2, 2)), CONTEXT, why="changes() must ascend")
    refuses(check_schedule, Loose(lambda s: EVEN, (0.0,)), CONTEXT, why="must give whole numbers")
    late = Loose(lambda s: {"web": 1 + (s > 4), "code": 1}, (0, 4))
    refuses(
        check_schedule, late, CONTEXT, why="weights(5) differ from those of the last step that `changes()`"
    )
    endless = ScheduleContext(names=CONTEXT.names, total_steps=None, tokens_per_step=64)
    refuses(check_schedule, Counting(), endless, why="has no `changes()`, so it needs `total_steps`")


def test_a_schedule_given_by_path_is_compared_with_a_fresh_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kit_schedules.py").write_text(
        "from zephon import Constant\n"
        "good = Constant({'web': 1, 'code': 1})\n"
        "def make(): return Constant({'web': 2, 'code': 1})\n"
        "def hashed(): return Constant({'web': 1 + hash('web') % 1000, 'code': 1})\n"
        "class Box: inner = good\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("good", "make", "Box.inner"):
        check_schedule(f"kit_schedules:{name}", CONTEXT)
    refuses(check_schedule, "kit_schedules:hashed", CONTEXT, why="gives other answers in a fresh process")


# Work sources -----------------------------------------------------------------------------------------------


class Choosing:
    """A work source made of a function."""

    def __init__(self, choose: Callable[[Ledger], Any]) -> None:
        self.choose = choose


def test_the_built_in_work_source_passes() -> None:
    for names in (["web"], ["web", "code"], [f"d{i}" for i in range(12)]):
        check_work_source(MixtureWorkSource([], {"web": 1}), names)


def test_bad_work_sources_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spend(ledger: Ledger) -> tuple[int, int]:
        ledger.tokens[0] -= 1
        return 0, 1

    def first_with_a_share(ledger: Ledger) -> int:
        return next(i for i, share in enumerate(ledger.shares) if share)

    calls: list[int] = []

    def count(ledger: Ledger) -> tuple[int, int]:
        calls.append(0)
        return first_with_a_share(ledger), len(calls)

    names = ["web", "code"]
    refuses(check_work_source, Choosing(spend), names, why="choose() must not change the ledger")
    refuses(check_work_source, Choosing(count), names, why="for an equal ledger")
    refuses(check_work_source, Choosing(lambda ledger: (0, 1)), names, why="whose share is 0")
    refuses(check_work_source, Choosing(lambda ledger: (2, 1)), names, why="in [0, 2), got 2")
    refuses(
        check_work_source, Choosing(lambda ledger: (0, 1.5)), names, why="two whole numbers, got (0, 1.5)"
    )
    one = Choosing(lambda ledger: (first_with_a_share(ledger), -1))
    refuses(check_work_source, one, names, why="must ask for >= 0 tokens, got -1")
    (tmp_path / "kit_sources.py").write_text(
        "from zephon import MixtureWorkSource\n"
        "def good(): return MixtureWorkSource([], {'a': 1})\n"
        "class Hashed:\n"
        "    def choose(self, ledger):\n"
        "        return next(i for i, s in enumerate(ledger.shares) if s), hash('a') % 1000\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    check_work_source("kit_sources:good", names)
    refuses(check_work_source, "kit_sources:Hashed", names, why="gives other answers in a fresh process")


# Packers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seq_len", [1, 2, 7, 64])
@pytest.mark.parametrize("options", [None, {}, {"pool_documents": 1}, {"pool_bytes": 1}])
def test_the_built_in_packers_pass(seq_len: int, options: dict[str, Any] | None) -> None:
    if options is None:
        check_packer(Wrap.plan(Packing(seq_len=seq_len)), seq_len)
    else:
        check_packer(BestFit.plan(Packing(seq_len=seq_len, kind="best_fit", options=options)), seq_len)


class Triples:
    """Holds three full rows and gives them back, the one with the fewest runs first; it cannot carry."""

    by_document = False

    def __init__(self, seq_len: int) -> None:
        self.seq_len = seq_len
        self.held: list[list[Run]] = []
        self.open: list[Run] = []

    def room(self) -> int:
        if len(self.held) >= 3:
            return 0
        return self.seq_len - sum(run.num_tokens for run in self.open)

    def add(self, run: Run) -> None:
        self.open.append(run)
        if sum(r.num_tokens for r in self.open) == self.seq_len:
            self.held.append(self.open)
            self.open = []

    def row(self) -> list[Run]:
        self.held.sort(key=len)
        return self.held.pop(0)

    def flush(self) -> list[list[Run]]:
        rows = [*sorted(self.held, key=len), *([self.open] if self.open else [])]
        self.held, self.open = [], []
        return rows


def plan_of(make: Callable[[], Any]) -> PackerPlan:
    return PackerPlan(make=make)


def test_a_packer_that_cannot_carry_passes() -> None:
    check_packer(plan_of(lambda: Triples(16)), 16)


class Losing(Triples):
    def row(self) -> list[Run]:
        row = super().row()
        return row[1:] or row


class Repeating(Triples):
    def flush(self) -> list[list[Run]]:
        return [rows := super().flush(), rows][0] * 2


class Hoarding(Triples):
    def flush(self) -> list[list[Run]]:
        return [self.held.pop()] if self.held else []


class Empty(Triples):
    def flush(self) -> list[list[Run]]:
        return [*super().flush(), []]


class Sticky(Triples):
    """Its carry says nothing of the rows that are held."""

    def carry(self) -> list[Run]:
        return list(self.open)


class Shared(Triples):
    """All of them fill one row, which shows only where two are filled by turns."""

    everyones: Sequence[Any] = []

    def __init__(self, seq_len: int) -> None:
        super().__init__(seq_len)
        self.open = self.everyones  # type: ignore[assignment]

    def add(self, run: Run) -> None:
        self.open.append(run)
        if sum(r.num_tokens for r in self.open) >= self.seq_len:
            self.held += [list(self.open)] * (3 - len(self.held))
            self.open.clear()

    def row(self) -> list[Run]:
        row, self.held = self.held[0], []
        return row

    def flush(self) -> list[list[Run]]:
        rows = [list(self.open)] if self.open else []
        self.open.clear()
        return rows


class Stuck(Triples):
    def add(self, run: Run) -> None:
        self.open = [run]


class Fat(Triples):
    def row(self) -> list[Run]:
        return [run for _ in range(3) for run in super(Fat, self).row()]


class Remembering(Triples):
    """A flush does not make it what it was."""

    def flush(self) -> list[list[Run]]:
        self.seq_len = max(2, self.seq_len - 3)
        return super().flush()


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Losing, "packer: lost"),
        (Repeating, "tokens too often"),
        (Hoarding, "packer: lost"),
        (Empty, "a row must hold at least one piece"),
        (Sticky, "differs after its carry was fed to a fresh packer"),
        (Shared, "differs between two packers fed alike"),
        (Stuck, "no row is ready after"),
        (Fat, "a row has at most 16 tokens, got"),
        (Remembering, "after a flush differs from that of a fresh packer"),
    ],
)
def test_bad_packers_are_refused(kind: type[Triples], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zephon.testing.MAX_DRAWS", 1000)
    monkeypatch.setattr(Shared, "everyones", [])
    refuses(check_packer, plan_of(lambda: kind(16)), 16, why=why)


def test_a_length_rule_must_fit_the_row() -> None:
    rule = LengthRule(overlong="drop", max_tokens=17)
    plan = PackerPlan(make=lambda: Triples(16), length=rule)
    refuses(check_packer, plan, 16, why="`max_tokens` must be in [1, 16] for its packer, got 17")
