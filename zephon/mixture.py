"""The mix: which dataset the next tokens of a lane come from.

Upstream: the shares of a step (`schedule.py`). Downstream: `lane.py`, which draws what is chosen. All is
integers: a credit is what a lane owes a dataset, in tokens times PARTS.

Drawing m tokens of dataset d adds share[i] * m to every credit and takes m * PARTS from credit d, so
credits always sum to zero, and what was drawn is the integral of the share up to initial credit minus
credit. Choosing the largest credit keeps every credit within (2 + H(n-1)) of the longest pieces, H the
harmonic numbers. Of many datasets the credits are a numpy array (`WideLedger`), with the same choices.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from zephon.bits import key
from zephon.dataset import Dataset
from zephon.schedule import Schedule, ScheduleTable
from zephon.shares import PARTS, Weights, shares_without
from zephon.stages import Constant

WORD = 1 << 64
R2_FIRST = 0xC13FA9A902A6328F
R2_SECOND = 0x91E10DA5C79E7B1D
"""The steps of the sequence R2 in parts of 2^64: 1/p and 1/p^2, p the plastic number."""
SPREAD_LANES = 16
FULL_SPREAD_LANES = 24
"""What lanes owe at the start is spread over num_lanes / 16 rows, at most over one and a half."""

MANY_DATASETS = 16
"""With more datasets than these arrays are faster than lists."""

Shares = tuple[int, ...]


@dataclass(slots=True)
class _Fields:
    """What a ledger has."""

    lane: int
    shares: Shares = ()
    """The shares of the step that the next row belongs to."""
    rest: int = 0
    """Tokens that may be drawn before the next cut; the rest of the row."""
    rows: int = 0
    """Rows finished."""
    tokens: list[int] = field(default_factory=list)
    """Tokens drawn of each dataset."""
    documents: list[int] = field(default_factory=list)
    """Documents begun of each dataset."""
    credits: tuple[int, ...] = ()
    """What is owed to each dataset, in tokens times PARTS; sums to zero."""


class Ledger(_Fields):
    """A lane's small record of integers; all that a work source may know, and it changes none of it."""

    __slots__ = ("_credits",)
    _credits: list[int]

    @classmethod
    def empty(cls, lane: int, num_datasets: int) -> Ledger:
        """Returns the ledger of a lane that has drawn nothing."""
        zeros = [0] * num_datasets
        made = cls if num_datasets <= MANY_DATASETS else WideLedger
        return made(lane, tokens=zeros.copy(), documents=zeros.copy(), credits=tuple(zeros))

    @property
    def credits(self) -> tuple[int, ...]:
        """Returns what is owed to each dataset, in tokens times PARTS; sums to zero."""
        return tuple(self._credits)

    @credits.setter
    def credits(self, credits: Iterable[int]) -> None:
        self._credits = list(credits)

    def charge(self, dataset: int, num_tokens: int, num_documents: int) -> None:
        """Records that `num_tokens` of `dataset` were drawn, by the shares of this step."""
        credits = self._credits
        for i, share in enumerate(self.shares):
            credits[i] += share * num_tokens
        credits[dataset] -= num_tokens * PARTS
        self.tokens[dataset] += num_tokens
        self.documents[dataset] += num_documents


class WideLedger(Ledger):
    """A ledger of many datasets: to charge one is O(1), and credits are made up when they are asked for.

    Credits stay below 2^63: a lane would have to be owed 2^43 tokens.
    """

    __slots__ = ("_columns", "_drawn", "_settled", "_shares")

    def __init__(
        self,
        lane: int,
        shares: Shares = (),
        rest: int = 0,
        rows: int = 0,
        tokens: Iterable[int] = (),
        documents: Iterable[int] = (),
        credits: Iterable[int] = (),
    ) -> None:
        self._columns = _columns(())
        self._shares: Shares = ()
        self._settled: NDArray[np.int64] = self._columns.shares
        self._drawn = 0
        """Tokens drawn by these shares that are not in `_settled`."""
        super().__init__(lane, shares, rest, rows, list(tokens), list(documents), tuple(credits))

    @property
    def shares(self) -> Shares:
        """Returns the shares of the step that the next row belongs to."""
        return self._shares

    @shares.setter
    def shares(self, shares: Shares) -> None:
        if shares is not self._shares:
            self._settle()
            self._shares, self._columns = shares, _columns(shares)

    @property
    def credits(self) -> tuple[int, ...]:
        """Returns what is owed to each dataset, in tokens times PARTS; sums to zero."""
        return tuple(self._settle().tolist())

    @credits.setter
    def credits(self, credits: Iterable[int]) -> None:
        self._settled, self._drawn = np.array(list(credits), dtype=np.int64), 0

    def _settle(self) -> NDArray[np.int64]:
        if self._drawn:
            self._settled += self._columns.shares * self._drawn
            self._drawn = 0
        return self._settled

    def charge(self, dataset: int, num_tokens: int, num_documents: int) -> None:
        """Records that `num_tokens` of `dataset` were drawn, by the shares of this step."""
        self._drawn += num_tokens
        self._settled[dataset] -= num_tokens * PARTS
        self.tokens[dataset] += num_tokens
        self.documents[dataset] += num_documents

    def choose(self) -> tuple[int, int]:
        """Returns what `MixtureWorkSource.choose` does."""
        credits, columns = self._settle(), self._columns
        if columns.active is not None:
            credits = credits[columns.active]
        best = int(credits.argmax())
        ahead = credits[best] - credits
        ahead //= columns.of_active + (PARTS - columns.of_active[best])
        ahead[best] = self.rest
        run = min(self.rest, int(ahead.min()))
        return (best if columns.active is None else int(columns.active[best])), run


class _Columns(NamedTuple):
    """The shares of a step as arrays."""

    shares: NDArray[np.int64]
    active: NDArray[np.int64] | None
    """The datasets with a share; None where all have one."""
    of_active: NDArray[np.int64]
    """The shares of these."""


@functools.lru_cache(maxsize=64)
def _columns(shares: Shares) -> _Columns:
    """Returns the columns of `shares`."""
    column = np.array(shares, dtype=np.int64)
    active = np.flatnonzero(column)
    return _Columns(column, None if len(active) == len(column) else active, column[active])


class WorkSource(Protocol):
    """A plugin role: decides what a lane draws next. Pure: the same ledger gives the same choice."""

    def choose(self, ledger: Ledger) -> tuple[int, int]:
        """Returns (d, c): start documents of dataset d until at least c tokens are drawn, at least one piece.

        Only the end of the row cuts a piece.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSourceContext:
    """What a work source may know of the recipe it is built for."""

    datasets: tuple[Dataset, ...]
    schedule: Schedule


@dataclass(frozen=True, slots=True)
class MixtureWorkSource:
    """The built-in work source: the largest credit among the datasets with a share, ties by order."""

    datasets: tuple[Dataset, ...]
    schedule: Schedule

    def __init__(self, datasets: Iterable[Dataset], schedule: Schedule | Weights) -> None:
        """Describes a mixture of `datasets`; a plain mapping of weights is a constant schedule."""
        object.__setattr__(self, "datasets", tuple(datasets))
        object.__setattr__(
            self, "schedule", Constant(schedule) if isinstance(schedule, Mapping) else schedule
        )

    @classmethod
    def from_config(cls, config: Mapping[str, Any], context: WorkSourceContext) -> MixtureWorkSource:
        """Returns the work source of `kind = "mixture"`, which takes no other fields."""
        if config:
            raise ValueError(f"work_source mixture: unknown field {next(iter(config))!r}; it takes none")
        return cls(context.datasets, context.schedule)

    def choose(self, ledger: Ledger) -> tuple[int, int]:
        """Returns the dataset of the largest credit, and for how many tokens it stays the choice.

        The run length is exact: asking again before every document gives the same stream, as dataset d stays
        ahead of j for (credit_d - credit_j) // (PARTS - share_d + share_j) tokens.
        """
        if isinstance(ledger, WideLedger):
            return ledger.choose()
        credits, shares = ledger._credits, ledger.shares
        active = _active(shares)
        best, _ = active[0]
        best_credit = credits[best]
        for i, _ in active:
            if credits[i] > best_credit:
                best, best_credit = i, credits[i]
        run, loss = ledger.rest, PARTS - shares[best]
        for j, share in active:
            if j != best:
                ahead = (best_credit - credits[j]) // (loss + share)
                if ahead < run:
                    run = ahead
        return best, run


@functools.lru_cache(maxsize=64)
def _active(shares: Shares) -> tuple[tuple[int, int], ...]:
    """Returns (dataset, share) for every dataset with a share."""
    return tuple((i, share) for i, share in enumerate(shares) if share)


def first_credits(lane: int, num_lanes: int, shares: Shares, fresh: tuple[int, ...], seq_len: int) -> Shares:
    """Returns what the credits of a lane gain when the datasets `fresh` get their first share.

    Each lane starts as if it owed `held` tokens of one dataset. Which one, in proportion to the shares,
    and how many, from half a row to at most two rows, follow a low-discrepancy sequence over the lanes
    (R2: Roberts 2018, "The unreasonable effectiveness of quasirandom sequences"). So the lanes together
    are near the plan from the first row on, and do not all change dataset at once. The sum over datasets
    is zero.
    """
    salt, limits = _first_places(shares, fresh)
    place = ((lane + 1) * R2_FIRST + salt) % WORD * PARTS // WORD
    spread = seq_len * min(FULL_SPREAD_LANES, num_lanes) // SPREAD_LANES
    held = seq_len // 2 + ((lane + 1) * R2_SECOND + salt) % WORD * spread // WORD
    if place >= limits[-1]:
        return _given_back(shares, fresh, (seq_len + spread) // 2)
    gains = [-held * share for share in shares]
    gains[fresh[bisect.bisect_right(limits, place)]] += held * PARTS
    return tuple(gains)


@functools.lru_cache(maxsize=64)
def _first_places(shares: Shares, fresh: tuple[int, ...]) -> tuple[int, list[int]]:
    """Returns a salt, and where the shares of the datasets `fresh` end when laid out one after the other."""
    return key("first credits", *fresh), list(itertools.accumulate(shares[i] for i in fresh))


@functools.lru_cache(maxsize=64)
def _given_back(shares: Shares, fresh: tuple[int, ...], held: int) -> Shares:
    """Returns the gains where each of the datasets `fresh` is owed less by `held` tokens, by its share."""
    among = frozenset(fresh)
    fresh_share = sum(shares[i] for i in fresh)
    gains = [-held * share if i in among else 0 for i, share in enumerate(shares)]
    others = [i for i, share in enumerate(shares) if share and i not in among]
    for i in others:
        gains[i] = held * fresh_share * shares[i] // (PARTS - fresh_share)
    gains[others[0]] -= sum(gains)
    return tuple(gains)


def begin_step(
    ledger: Ledger,
    table: ScheduleTable,
    step: int,
    num_lanes: int,
    seq_len: int,
    gone: frozenset[int] = frozenset(),
) -> None:
    """Puts the shares of `step` into the ledger, and the first credits of datasets that begin with it.

    The datasets `gone` have ended in this lane: the others have their shares.
    """
    ledger.shares = shares_without(table.at(step), gone) if gone else table.at(step)
    fresh = table.fresh.get(step)
    if fresh and gone:
        fresh = tuple(i for i in fresh if ledger.shares[i])
    if fresh:
        gains = first_credits(ledger.lane, num_lanes, ledger.shares, fresh, seq_len)
        ledger.credits = tuple(c + g for c, g in zip(ledger.credits, gains, strict=True))
