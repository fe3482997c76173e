"""Runs of recipes that end: all ranks at once, each in a thread, with an any_rank that waits for all."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from tests.elastic.cases import LETTERS, PACKERS
from tests.helpers import INLINE, batches_per_step, digest_of, make_recipe, tokens_of
from zephon.batch import Batch
from zephon.dataset import Dataset
from zephon.loader import Loader
from zephon.mixture import Ledger, MixtureWorkSource, begin_step
from zephon.opened import Opened
from zephon.options import LoaderOptions
from zephon.recipe import Recipe
from zephon.shares import PARTS
from zephon.stages import Constant

WAIT_S = 20


class Together:
    """The all-reduce of some threads: every rank asks once a step, and all get the same answer."""

    def __init__(self, world: int) -> None:
        self._barrier = threading.Barrier(world)
        self._says = [False] * world
        self.num_asked = [0] * world

    def of(self, rank: int) -> Callable[[bool], bool]:
        def any_rank(says: bool) -> bool:
            self._says[rank] = says
            self.num_asked[rank] += 1
            self._barrier.wait(WAIT_S)
            answer = any(self._says)
            self._barrier.wait(WAIT_S)
            return answer

        return any_rank

    def abort(self) -> None:
        self._barrier.abort()


@dataclass
class Leg:
    """What some ranks gave between two restores."""

    world: int
    steps: list[list[Batch]] = field(default_factory=list)
    """The batches of all ranks, by step."""
    states: list[dict[str, Any]] = field(default_factory=list)
    """The state before each step and, last, after all."""
    num_asked: list[int] = field(default_factory=list)
    ended: bool = False

    @property
    def digests(self) -> list[str]:
        return [digest_of(batches) for batches in self.steps]


def run_leg(
    opened: Opened,
    world: int = 1,
    state: Mapping[str, Any] | None = None,
    num_steps: int = 1 << 30,
    options: LoaderOptions = INLINE,
    **changes: Any,
) -> Leg:
    """Returns at most `num_steps` steps of all ranks, from `state` on."""
    together = Together(world)
    by_rank: list[list[list[Batch]]] = [[] for _ in range(world)]
    states: list[list[dict[str, Any]]] = [[] for _ in range(world)]
    ended, errors = [False] * world, []

    def work(rank: int) -> None:
        ranked = replace(options, dp_rank=rank, dp_world_size=world, any_rank=together.of(rank), **changes)
        try:
            with Loader(opened, ranked) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                states[rank].append(loader.state_dict())
                while len(by_rank[rank]) < num_steps:
                    if not loader.has_next():
                        ended[rank] = True
                        assert next(loader, None) is None
                        assert not loader.has_next()
                        break
                    by_rank[rank].append([next(loader) for _ in range(batches_per_step(loader))])
                    states[rank].append(loader.state_dict())
        except BaseException as error:
            errors.append(error)
            together.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    real = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    if errors:
        raise (real or errors)[0]
    assert len(set(ended)) == 1
    assert len({len(steps) for steps in by_rank}) == 1
    leg = Leg(world, num_asked=together.num_asked, ended=ended[0])
    leg.steps = [[b for batches in step for b in batches] for step in zip(*by_rank, strict=True)]
    leg.states = [{k: v for state in parts for k, v in state.items()} for parts in zip(*states, strict=True)]
    return leg


# What came -----------------------------------------------------------------------------------------------


def pieces_of(steps: Sequence[Sequence[Batch]]) -> dict[tuple[int, int, int], list[tuple[int, list[int]]]]:
    """Returns the (offset, tokens) of the pieces that came of each (dataset, lane, position), in order."""
    found: dict[tuple[int, int, int], list[tuple[int, list[int]]]] = defaultdict(list)
    for batch in (batch for step in steps for batch in step):
        columns, begin, last = batch.pieces, 0, -1
        for i, row in enumerate(columns.row.tolist()):
            begin, last = (begin, last) if row == last else (0, row)
            dataset, position, offset, length = (
                int(c[i]) for c in (columns.dataset, columns.position, columns.offset, columns.length)
            )
            tokens = batch.inputs[row, begin : begin + length].tolist()
            found[dataset, int(batch.lanes[row]), position].append((offset, tokens))
            begin += length
    return found


def check_each_once(opened: Opened, steps: Sequence[Sequence[Batch]], *, all_of_it: bool) -> None:
    """Refuses a token that came twice, at a wrong place or, with `all_of_it`, not at all."""
    found = pieces_of(steps)
    for (dataset, lane, position), pieces in found.items():
        assert position < opened.orders[dataset].end(lane)
        tokens, end = tokens_of(opened, dataset, lane, position), 0
        for offset, piece in sorted(pieces):
            assert offset >= end
            assert tokens[offset : offset + len(piece)] == piece
            end = offset + len(piece)
    if not all_of_it:
        return
    for dataset, order in enumerate(opened.orders):
        for lane in range(opened.recipe.lanes):
            for position in range(order.end(lane)):
                came = sum(len(piece) for _, piece in found.get((dataset, lane, position), []))
                assert came == len(tokens_of(opened, dataset, lane, position)), (dataset, lane, position)


def texts(opened: Opened, dataset: int) -> list[str]:
    """Returns the texts of all positions of all lanes, sorted."""
    order, reader = opened.orders[dataset], opened.readers[dataset]
    found: list[str] = []
    for lane in range(opened.recipe.lanes):
        if order.end(lane):
            at = order.locate(lane, 0, order.end(lane))
            found += reader.texts(at.chunk, at.record, 1 << 40).texts
    return sorted(found)


# Recipes -------------------------------------------------------------------------------------------------


@st.composite
def finite_recipes(
    draw: st.DrawFn, when_exhausted: Sequence[str] = ("stop", "redistribute", "pad"), *,
    packers: Sequence[str] = PACKERS, all_finite: bool = True,
) -> Recipe:  # fmt: skip
    """Draws a recipe of 1-3 datasets of 1-9 documents, trailing empty ones and long ones among them."""
    datasets = []
    for index in range(draw(st.integers(1, 3))):
        lengths = draw(st.lists(st.integers(0, 12), max_size=8))
        lengths.append(draw(st.sampled_from([1, 5, 70])))
        lengths += [0] * draw(st.integers(0, 2))
        documents = [LETTERS[(9 * index + i) % 26] * length for i, length in enumerate(lengths)]
        epochs = draw(st.sampled_from([1, 1, 2])) if all_finite or index == 0 else None
        order = draw(st.sampled_from(["shuffled", "identity"]))
        datasets.append(Dataset.from_documents(f"d{index}", documents, order=order, max_epochs=epochs))
    lanes = draw(st.sampled_from([1, 2, 4, 8]))
    kind, seq_len = draw(st.sampled_from(packers)), draw(st.sampled_from([1, 3, 8, 16]))
    return make_recipe(
        datasets=tuple(datasets),
        schedule=Constant({d.name: draw(st.integers(1, 3)) for d in datasets}),
        seed=draw(st.integers(0, 3)),
        lanes=lanes,
        global_batch_size=lanes * draw(st.integers(1, 3)),
        seq_len=seq_len,
        kind=kind,
        options={"pool_documents": draw(st.integers(1, 6))} if kind == "best_fit" else {},
        eos="</s>" if draw(st.booleans()) else False,
        flush_every=draw(st.sampled_from([1, 2, 5])) if kind == "sorted_rows" else None,
        when_exhausted=draw(st.sampled_from(when_exhausted)),
    )


def rows_of_lane(opened: Opened, lane: int) -> list[list[int]]:
    """Returns the rows that `wrap` fills in a lane under a constant schedule, asking before every document.

    Written down as the rule says it: draw by draw, on lists of tokens.
    """
    recipe, source = opened.recipe, MixtureWorkSource((), {"x": 1})
    documents = [
        [tokens_of(opened, d, lane, p) for p in range(order.end(lane))]
        for d, order in enumerate(opened.orders)
    ]
    gone = {d for d, left in enumerate(documents) if not left}
    ledger, rows, row, step = Ledger.empty(lane, len(documents)), [], [], -1
    shared = recipe.when_exhausted != "stop"
    while True:
        if not row and len(rows) // recipe.rows_per_step > step:
            step += 1
            missing = frozenset(gone) if shared else frozenset()
            begin_step(ledger, opened.table, step, recipe.lanes, recipe.packing.seq_len, missing)
        if shared and not any(ledger.shares):
            return rows
        ledger.rest = recipe.packing.seq_len - len(row)
        dataset, _ = source.choose(ledger)
        if dataset in gone:
            return rows
        left = documents[dataset]
        while left and not left[0]:
            left.pop(0)
        if left:
            drawn, rest = left[0][: ledger.rest], left[0][ledger.rest :]
            ledger.charge(dataset, len(drawn), 0)
            row += drawn
            left[:1] = [rest] if rest else []
        if not left:
            gone.add(dataset)
            if shared:
                weights = [0 if d in gone else s for d, s in enumerate(opened.table.at(step))]
                total = sum(weights)
                exact = [w * PARTS / total if total else 0 for w in weights]
                ledger.shares = tuple(int(x) for x in exact)
                by_rest = sorted(range(len(exact)), key=lambda i: (int(exact[i]) - exact[i], i))
                add = dict.fromkeys(by_rest[: PARTS - sum(ledger.shares)], 1) if total else {}
                ledger.shares = tuple(s + add.get(i, 0) for i, s in enumerate(ledger.shares))
        if len(row) == recipe.packing.seq_len:
            rows.append(row)
            row = []
