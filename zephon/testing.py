"""Conformance kits for plugins: plain functions that raise `AssertionError` with what is wrong.

Upstream: the tests of a plugin. Downstream: nothing; no run imports this. Each kit drives the part as a lane
does, with made-up documents, and asks for what a run relies on: the same answer every time, no token lost.
A schedule or a work source may be given by import path, `package.module:name` (the object, or a function
without arguments that makes it); then its answers are also compared with those of a fresh process. The kit
for readers, `check_reader`, is in `testing_readers.py`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from zephon.bits import bits, key
from zephon.mixture import Ledger, WorkSource
from zephon.packing import Carrying, Packer, PackerPlan
from zephon.prepare import SPLIT, Block
from zephon.recipe import hash_json
from zephon.schedule import Schedule, ScheduleContext, compile_schedule
from zephon.shares import PARTS, check_weights
from zephon.stream import Run
from zephon.testing_readers import check_reader

__all__ = ["check_fresh", "check_packer", "check_reader", "check_schedule", "check_work_source"]

MAX_STEPS = 4096
"""Steps at which a schedule is asked for its weights."""
NUM_LEDGERS = 256
NUM_ROWS = 48
DOCUMENTS = 64
"""Documents of each block that a packer is fed from."""
MAX_DRAWS = 100_000


def check_schedule(schedule: Schedule | str, context: ScheduleContext) -> None:
    """Raises `AssertionError` where `schedule` is not pure, or breaks with `context` or its `changes()`."""
    built = cast(Schedule, _load(schedule))
    who = f"schedule {type(built).__name__}"
    steps = _steps(built, context, who)
    first = [_weights(built, step, context, who) for step in steps]
    again = [_weights(built, step, context, who) for step in reversed(steps)][::-1]
    for step, one, other in zip(steps, first, again, strict=True):
        assert one == other, (
            f"{who}: weights({step}) gave {one!r}, then {other!r}; it must depend on the step only"
        )
    table = compile_schedule(built, context)
    for step, shares in zip(table.starts, table.shares, strict=True):
        assert sum(shares) == PARTS, f"{who}: the shares of step {step} sum to {sum(shares)}, not {PARTS}"
    for step, weights in zip(steps, first, strict=True):
        exact = check_weights(weights, f"{who}, step {step}")
        total = sum(exact.values())
        for name, share in zip(context.names, table.at(step), strict=True):
            off = abs(exact[name] * PARTS / total - share)
            assert off < 1, (
                f"{who}: weights({step}) differ from those of the last step that `changes()` names"
            )
    if isinstance(schedule, str):
        question = {"path": schedule, "context": asdict(context) | {"base": str(context.base)}}
        expected = hash_json(table.to_json())
        check_fresh(f"schedule {schedule}", "zephon.testing:_table_of", question, expected)


def check_work_source(source: WorkSource | str, names: Sequence[str]) -> None:
    """Raises `AssertionError` where `source` is no pure function of the ledger, or draws at share zero."""
    built = cast(WorkSource, _load(source))
    who = f"work source {type(built).__name__}"
    choices = _choices(built, len(names), who)
    backwards = [built.choose(ledger) for ledger in reversed(list(_ledgers(len(names))))][::-1]
    for choice, other in zip(choices, backwards, strict=True):
        assert choice == other, f"{who}: choose() gave {choice}, then {other} for an equal ledger"
    if isinstance(source, str):
        question = {"path": source, "num_datasets": len(names)}
        check_fresh(f"work source {source}", "zephon.testing:_choices_of", question, hash_json(choices))


def check_packer(plan: PackerPlan, seq_len: int) -> None:
    """Raises `AssertionError` where a packer loses or repeats a token, fills a row over `seq_len`, keeps
    something over a flush, shares something with another packer, or is not restored by its carry."""
    if plan.length.overlong != SPLIT:
        most = plan.length.max_tokens
        assert 1 <= most <= seq_len, (
            f"packer: `max_tokens` must be in [1, {seq_len}] for its packer, got {most}"
        )
    for longest in sorted({1, seq_len, 3 * seq_len}):
        blocks = _blocks(longest)
        rows = _check_rows(plan, seq_len, blocks)
        other = _Drive(plan.make(), seq_len, blocks)
        stranger = _Drive(plan.make(), seq_len, _blocks(longest, salt=1))
        for index, row in enumerate(rows):
            stranger.nudge()
            assert other.next_row() == row, f"packer: row {index} differs between two packers fed alike"
        if isinstance(plan.make(), Carrying):
            _check_carry(plan, seq_len, blocks, rows)


# Schedules --------------------------------------------------------------------------------------------------


def _steps(schedule: Schedule, context: ScheduleContext, who: str) -> list[int]:
    """Returns the steps to ask for: the first ones, those around every change, and some far out."""
    changes = getattr(schedule, "changes", None)
    if changes is None:
        assert context.total_steps is not None, f"{who}: has no `changes()`, so it needs `total_steps`"
        return list(range(min(context.total_steps, MAX_STEPS)))
    given = list(changes())
    assert given == list(changes()), f"{who}: changes() gave other steps when asked again"
    assert all(type(step) is int for step in given), (
        f"{who}: changes() must give whole numbers, got {given[:8]}"
    )
    ascending = all(a < b for a, b in pairwise(given))
    assert given[:1] == [0], f"{who}: changes() must begin with 0, got {given[:8]}"
    assert ascending, f"{who}: changes() must ascend, got {given[:8]}"
    around = {step + near for step in given for near in (-1, 0, 1) if step + near >= 0}
    far = {given[-1] + 10**n for n in range(7)}
    return sorted({*range(64), *sorted(around)[:MAX_STEPS], *far})


def _weights(schedule: Schedule, step: int, context: ScheduleContext, who: str) -> dict[str, float]:
    weights = schedule.weights(step)
    try:
        check_weights(weights, f"{who}, step {step}")
    except ValueError as error:
        raise AssertionError(str(error)) from None
    given, asked = sorted(map(str, weights)), sorted(context.names)
    assert given == asked, f"{who}: weights({step}) must name {asked}, got {given}"
    return dict(weights)


# Work sources -----------------------------------------------------------------------------------------------


def _ledgers(num_datasets: int) -> Iterator[Ledger]:
    """Yields made-up ledgers: shares with and without zeros, credits that sum to zero, rows begun and not."""
    for index in range(NUM_LEDGERS):
        drawn = bits(key("ledger", index), np.arange(4 * num_datasets)).astype(np.int64) & 0xFFFF
        weights = [int(w) if (index >> i % 8) & 1 else 0 for i, w in enumerate(drawn[:num_datasets])]
        sure = index // 3 % num_datasets
        weights[sure] += 1
        shares = [w * PARTS // sum(weights) for w in weights]
        shares[sure] += PARTS - sum(shares)
        credits = [(int(c) - 0x8000) * PARTS // 64 for c in drawn[num_datasets : 2 * num_datasets]]
        credits[0] -= sum(credits)
        yield Ledger(
            lane=index % 7,
            shares=tuple(shares),
            rest=1 + index % 64,
            rows=index,
            tokens=[int(t) for t in drawn[2 * num_datasets : 3 * num_datasets]],
            documents=[int(t) % 100 for t in drawn[3 * num_datasets :]],
            credits=tuple(credits),
        )


def _choices(source: WorkSource, num_datasets: int, who: str) -> list[tuple[int, int]]:
    choices = []
    for ledger in _ledgers(num_datasets):
        before = replace(
            ledger, tokens=[*ledger.tokens], documents=[*ledger.documents], credits=ledger.credits
        )
        choice = source.choose(ledger)
        assert ledger == before, f"{who}: choose() must not change the ledger"
        dataset, num_tokens = choice
        whole = type(dataset) is int and type(num_tokens) is int
        assert whole, f"{who}: choose() must give two whole numbers, got {choice!r}"
        inside = 0 <= dataset < num_datasets
        assert inside, f"{who}: choose() must give a dataset in [0, {num_datasets}), got {dataset}"
        assert ledger.shares[dataset], f"{who}: chose dataset {dataset}, whose share is 0 ({ledger.shares})"
        assert num_tokens >= 0, f"{who}: choose() must ask for >= 0 tokens, got {num_tokens}"
        choices.append((dataset, num_tokens))
    return choices


# Packers ----------------------------------------------------------------------------------------------------

Piece = tuple[int, int, int, int]
"""dataset, position, offset, tokens."""


class _Block(NamedTuple):
    block: Block
    starts: NDArray[np.int64]


def _blocks(longest: int, salt: int = 0) -> list[_Block]:
    """Returns a block for each of three datasets: documents of 1 to `longest` tokens."""
    made = []
    for dataset in range(3):
        drawn = bits(key("packer", longest, dataset, salt), np.arange(DOCUMENTS))
        lengths = 1 + (drawn % np.uint64(longest)).astype(np.int64)
        starts = np.cumsum(lengths) - lengths
        tokens = np.arange(int(lengths.sum()), dtype=np.uint32)
        positions = np.arange(DOCUMENTS, dtype=np.int64)
        made.append(_Block(Block(tokens, lengths, positions, DOCUMENTS, []), starts))
    return made


class _Drive:
    """Feeds a packer as a lane does, the datasets by turns, and says which pieces its rows hold."""

    def __init__(self, packer: Packer, seq_len: int, blocks: list[_Block]) -> None:
        self.packer, self.seq_len, self.blocks = packer, seq_len, blocks
        self.at = [(0, 0)] * len(blocks)
        """The next document of each block, and the tokens of it already given."""
        self.fed: list[Piece] = []

    def nudge(self) -> None:
        """Makes one draw, or takes the row that is ready."""
        if room := self.packer.room():
            self.packer.add(self._draw(room))
        else:
            self.packer.row()

    def next_row(self) -> list[Piece]:
        for _ in range(MAX_DRAWS):
            room = self.packer.room()
            assert type(room) is int, f"packer: room() must be a whole number, got {room!r}"
            assert 0 <= room <= self.seq_len, f"packer: room() must be in [0, {self.seq_len}], got {room}"
            if room == 0:
                return self.pieces(self.packer.row())
            self.packer.add(self._draw(room))
        raise AssertionError(f"packer: no row is ready after {MAX_DRAWS} draws; room() must come to 0")

    def _draw(self, room: int) -> Run:
        dataset = len(self.fed) % len(self.blocks)
        block, starts = self.blocks[dataset]
        first, skip = self.at[dataset]
        first %= DOCUMENTS
        wanted = 1 if self.packer.by_document else 1 + len(self.fed) % 4
        last, taken = first, 0
        while last < min(DOCUMENTS, first + wanted) and taken < room:
            taken += int(block.lengths[last]) - (skip if last == first else 0)
            last += 1
        cut = max(0, taken - room)
        self.at[dataset] = (last, 0) if not cut else (last - 1, int(block.lengths[last - 1]) - cut)
        run = Run(dataset, block, first, last, skip, cut, int(starts[first]) + skip, taken - cut)
        self.fed += self.pieces([run])
        return run

    def pieces(self, runs: Sequence[Run]) -> list[Piece]:
        """Returns the pieces of `runs`; refuses a run whose fields do not agree."""
        found: list[Piece] = []
        for run in runs:
            lengths = [int(n) for n in run.block.lengths[run.first : run.last]]
            lengths[0] -= run.skip
            lengths[-1] -= run.cut
            begin = int(self.blocks[run.dataset].starts[run.first]) + run.skip
            agree = min(lengths) >= 1 and sum(lengths) == run.num_tokens and begin == run.begin
            assert agree, f"packer: the fields of a run do not agree: {run._replace(block=cast(Block, None))}"
            offsets = [run.skip] + [0] * (len(lengths) - 1)
            positions = range(run.first, run.last)
            found += zip([run.dataset] * len(lengths), positions, offsets, lengths, strict=True)
        return found


def _check_rows(plan: PackerPlan, seq_len: int, blocks: list[_Block]) -> list[list[Piece]]:
    drive = _Drive(plan.make(), seq_len, blocks)
    rows = [drive.next_row() for _ in range(NUM_ROWS)]
    held = [drive.pieces(runs) for runs in drive.packer.flush()]
    for row in rows + held:
        size = sum(piece[3] for piece in row)
        assert row, "packer: a row must hold at least one piece, got none"
        assert size <= seq_len, f"packer: a row has at most {seq_len} tokens, got {size}"
    _check_same_tokens(drive.fed, [piece for row in rows + held for piece in row])
    assert not drive.packer.flush(), "packer: a second flush() gave rows; a flush must leave nothing behind"
    if isinstance(drive.packer, Carrying):
        assert not drive.packer.carry(), (
            "packer: carries pieces after a flush; a flush must leave nothing behind"
        )
    drive.at, drive.fed = [(0, 0)] * len(blocks), []
    for index, row in enumerate(rows):
        assert drive.next_row() == row, (
            f"packer: row {index} after a flush differs from that of a fresh packer"
        )
    return rows


def _check_same_tokens(fed: Sequence[Piece], given: Sequence[Piece]) -> None:
    """Compares token by token, since a packer may cut a piece."""
    before, after = (
        Counter((d, p, o + i) for d, p, o, n in pieces for i in range(n)) for pieces in (fed, given)
    )
    lost, extra = sorted(before - after), sorted(after - before)
    assert not lost, f"packer: lost {len(lost)} tokens, first (dataset, document, token) = {lost[0]}"
    assert not extra, (
        f"packer: gave {len(extra)} tokens too often, first (dataset, document, token) = {extra[0]}"
    )


def _check_carry(plan: PackerPlan, seq_len: int, blocks: list[_Block], rows: list[list[Piece]]) -> None:
    drive = _Drive(plan.make(), seq_len, blocks)
    for index, row in enumerate(rows):
        carry = cast(Carrying, drive.packer).carry()
        for run in carry:
            count = run.last - run.first
            assert count == 1, f"packer: carry() must give runs of one piece, got one of {count}"
        fresh = plan.make()
        for run in carry:
            fresh.add(run)
        drive.packer = fresh
        assert drive.next_row() == row, (
            f"packer: row {index} differs after its carry was fed to a fresh packer"
        )


# A fresh process --------------------------------------------------------------------------------------------


def _load(part: object) -> object:
    """Returns the part, imported where it is given by path; what is called without arguments makes it."""
    if not isinstance(part, str):
        return part
    module, _, names = part.partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    is_part = (hasattr(found, "weights") or hasattr(found, "choose")) and not isinstance(found, type)
    return found if is_part else found()


def check_fresh(who: str, function: str, question: object, expected: object) -> None:
    """Raises `AssertionError` where `module:function` makes something else of JSON data in a fresh process.

    Under another hash seed; what it gives is JSON data too, what it prints is left out.
    """
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    found = subprocess.run(
        [sys.executable, "-c", "import zephon.testing as t; t._reply()", function],
        input=json.dumps(question),
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, f"{who}: fails in a fresh process:\n{found.stderr}"
    same = json.loads(found.stdout) == expected
    assert same, f"{who}: gives other answers in a fresh process; look for hash(), set order or a global"


def _reply() -> None:
    """Answers the question on standard input; what the fresh process does."""
    with contextlib.redirect_stdout(sys.stderr):
        answer = pkgutil.resolve_name(sys.argv[1])(json.load(sys.stdin))
    json.dump(answer, sys.stdout)


def _table_of(question: Mapping[str, Any]) -> str:
    """Returns the hash of the table of a schedule given by path."""
    told = {**question["context"], "names": tuple(question["context"]["names"])}
    context = ScheduleContext(**told | {"base": Path(told["base"])})
    return hash_json(compile_schedule(cast(Schedule, _load(question["path"])), context).to_json())


def _choices_of(question: Mapping[str, Any]) -> str:
    """Returns the hash of the choices of a work source given by path."""
    source = cast(WorkSource, _load(question["path"]))
    return hash_json(_choices(source, question["num_datasets"], question["path"]))
