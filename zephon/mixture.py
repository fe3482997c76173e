"""The mix: which dataset the next tokens of a lane come from.

Upstream: the shares of a step (`schedule.py`). Downstream: `lane.py`, which draws what is chosen. All is
integers: a credit is what a lane owes a dataset, in tokens times PARTS.

Drawing m tokens of dataset d adds share[i] * m to every credit and takes m * PARTS from credit d, so
credits always sum to zero, and what was drawn is the integral of the share up to initial credit minus
credit. Choosing the largest credit keeps every credit within (2 + H(n-1)) of the longest pieces, H the
harmonic numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from zephon.bits import key
from zephon.dataset import Dataset
from zephon.schedule import PARTS, Constant, Schedule, ScheduleTable, Weights, shares_without

WORD = 1 << 64
R2_FIRST = 0xC13FA9A902A6328F
R2_SECOND = 0x91E10DA5C79E7B1D
"""The steps of the sequence R2 in parts of 2^64: 1/p and 1/p^2, p the plastic number."""
SPREAD_LANES = 16
FULL_SPREAD_LANES = 24
"""What lanes owe at the start is spread over num_lanes / 16 rows, at most over one and a half."""

Shares = tuple[int, ...]


@dataclass(slots=True)
class Ledger:
    """A lane's small record of integers; all that a work source may know."""

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
    credits: list[int] = field(default_factory=list)
    """What is owed to each dataset, in tokens times PARTS; sums to zero."""

    @classmethod
    def empty(cls, lane: int, num_datasets: int) -> Ledger:
        """Returns the ledger of a lane that has drawn nothing."""
        zeros = [0] * num_datasets
        return cls(lane, tokens=zeros.copy(), documents=zeros.copy(), credits=zeros.copy())

    def charge(self, dataset: int, num_tokens: int, num_documents: int) -> None:
        """Records that `num_tokens` of `dataset` were drawn, by the shares of this step."""
        self.credits = credits = [c + s * num_tokens for c, s in zip(self.credits, self.shares, strict=True)]
        credits[dataset] -= num_tokens * PARTS
        self.tokens[dataset] += num_tokens
        self.documents[dataset] += num_documents


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
        credits, shares = ledger.credits, ledger.shares
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
    salt = key("first credits", *fresh)
    place = ((lane + 1) * R2_FIRST + salt) % WORD * PARTS // WORD
    spread = seq_len * min(FULL_SPREAD_LANES, num_lanes) // SPREAD_LANES
    held = seq_len // 2 + ((lane + 1) * R2_SECOND + salt) % WORD * spread // WORD
    picked = _pick(shares, fresh, place)
    if picked is not None:
        gains = [-held * share for share in shares]
        gains[picked] += held * PARTS
        return tuple(gains)
    mean_held = (seq_len + spread) // 2
    fresh_share = sum(shares[i] for i in fresh)
    gains = [-mean_held * share if i in fresh else 0 for i, share in enumerate(shares)]
    others = [i for i, share in enumerate(shares) if share and i not in fresh]
    for i in others:
        gains[i] = mean_held * fresh_share * shares[i] // (PARTS - fresh_share)
    gains[others[0]] -= sum(gains)
    return tuple(gains)


def _pick(shares: Shares, among: tuple[int, ...], place: int) -> int | None:
    """Returns the dataset of `among` in whose share `place` falls, in [0, PARTS), or None."""
    for i in among:
        if place < shares[i]:
            return i
        place -= shares[i]
    return None


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
        ledger.credits = [c + g for c, g in zip(ledger.credits, gains, strict=True)]
