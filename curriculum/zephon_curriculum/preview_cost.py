"""What an exact preview costs, said before it is made.

Upstream: a recipe, its table and a state. Downstream: `preview.py` and `explain.py`. Pure; no data is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zephon import LoaderOptions, Recipe, ScheduleTable, saved_steps

UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewCost:
    """What is made to see some rows."""

    begin: int
    """The first step made: that of the state, or 0."""
    end: int
    """One past the last step made."""
    num_lanes: int
    """Lanes made; all where only all of them say when the run ends."""
    lanes_of_run: int
    num_rows: int
    """Rows made, those included that the schedule skips."""
    num_tokens: int
    """Tokens drawn for them. A packer with a pool draws up to its size more."""
    from_state: bool

    @property
    def num_steps(self) -> int:
        """Returns the steps made."""
        return self.end - self.begin

    def __str__(self) -> str:
        lanes = "1 lane" if self.num_lanes == 1 else f"{self.num_lanes:,} lanes"
        start = f"a state at step {self.begin}" if self.from_state else "step 0"
        rows = "1 row" if self.num_rows == 1 else f"{self.num_rows:,} rows"
        tokens = counted(self.num_tokens)
        return f"makes {rows} of {lanes} of {self.lanes_of_run:,} from {start}: {tokens} tokens"

    def to_json(self) -> dict[str, Any]:
        """Returns the cost as JSON data."""
        return {
            "begin": self.begin,
            "end": self.end,
            "num_lanes": self.num_lanes,
            "num_rows": self.num_rows,
            "num_tokens": self.num_tokens,
            "from_state": self.from_state,
        }


def counted(number: int) -> str:
    """Returns a number for people: exact below a million."""
    return next((f"{number / size:,.1f} {unit}" for size, unit in UNITS if number >= size), f"{number:,}")


def cost_of(
    recipe: Recipe,
    table: ScheduleTable,
    parts: Sequence[LoaderOptions],
    end: int,
    state: Mapping[str, Any] | None,
) -> PreviewCost:
    """Returns what loaders of `parts` make from `state` up to step `end`."""
    begin = 0 if state is None else saved_steps(state)
    num_lanes = sum(recipe.lanes // options.dp_world_size for options in parts)
    skipped = sum(b - a for a, b in table.skips if begin <= a < end)
    num_rows = (end - begin + skipped) * recipe.rows_per_step * num_lanes
    return PreviewCost(
        begin=begin,
        end=end,
        num_lanes=num_lanes,
        lanes_of_run=recipe.lanes,
        num_rows=num_rows,
        num_tokens=num_rows * recipe.packing.seq_len,
        from_state=state is not None,
    )
