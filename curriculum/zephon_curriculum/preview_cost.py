"""What an exact preview costs, said before it is made.

Upstream: a recipe, what its run skips, a state. Downstream: `preview.py`, `explain.py`. Pure; opens no data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from zephon import LoaderOptions, Recipe, saved_steps
from zephon_curriculum.figures import plural, short


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

    def __repr__(self) -> str:
        return f"PreviewCost: {self}"

    def __str__(self) -> str:
        lanes, rows = plural(self.num_lanes, "lane"), plural(self.num_rows, "row")
        start = f"a state at step {self.begin}" if self.from_state else "step 0"
        tokens = short(self.num_tokens)
        return f"makes {rows} of {lanes} of {self.lanes_of_run:,} from {start}: {tokens} tokens"

    def to_json(self) -> dict[str, Any]:
        """Returns the cost as JSON data."""
        return asdict(self)


def cost_of(
    recipe: Recipe,
    skips: Sequence[tuple[int, int]],
    parts: Sequence[LoaderOptions],
    end: int,
    state: Mapping[str, Any] | None,
) -> PreviewCost:
    """Returns what loaders of `parts` make from `state` up to step `end`; `skips` as of a table."""
    begin = 0 if state is None else saved_steps(state)
    num_lanes = sum(recipe.lanes // options.dp_world_size for options in parts)
    skipped = sum(b - a for a, b in skips if begin <= a < end)
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
