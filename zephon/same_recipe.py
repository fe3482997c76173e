"""Refuses a configuration that is not the recipe's, field by field.

Upstream: what a state saved. Downstream: `state.py` and `continuing.py`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from zephon.errors import StateError, shorten
from zephon.recipe import Recipe, diff_configuration

MAX_FIELDS = 12
"""Of more fields that differ these are named."""


def check_configuration(saved: Mapping[str, Any], recipe: Recipe, may_differ: Collection[str] = ()) -> None:
    """Refuses a configuration that is not that of `recipe`, but for the fields that begin as `may_differ`."""
    ours = json.loads(json.dumps(recipe.configuration()))  # a tuple comes back from JSON as a list
    free = tuple(may_differ)
    differences = [
        each for each in diff_configuration(saved, ours) if not (free and each[0].startswith(free))
    ]
    if differences:
        lines = "\n".join(
            f"    {name}: state has {shorten(was)}, this run has {shorten(now)}"
            for name, was, now in differences[:MAX_FIELDS]
        )
        lines += f"\n    and {len(differences) - MAX_FIELDS} more" if differences[MAX_FIELDS:] else ""
        verb = "field differs" if len(differences) == 1 else "fields differ"
        raise StateError.explained(
            "the recipe is not the one that the state was taken with",
            got=f"{len(differences)} {verb}:\n{lines}",
            rule="a phase reads on where the state stands: what says which documents it reads stays the same"
            if free
            else "a restore goes on with the same rows, so these fields must be the same",
            cure=_cure_configuration({name for name, _, _ in differences}),
        )


def _cure_configuration(fields: Collection[str]) -> str:
    cure = "restore them as the state has them, or begin a new run"
    if "datasets" in fields:
        cure += "; datasets keep their order, weight 0 retires one, and others are added at the end"
    if "continues" in fields:
        cure += "; `continues` is the state that the recipe was given by continue_from"
    return cure
