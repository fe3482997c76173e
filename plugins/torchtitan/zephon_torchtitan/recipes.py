"""The recipe of a training run: what the file says and what the trainer says, which must not contradict.

Upstream: the loader's config, values of the trainer. Downstream: `rank.py` opens it, `launch.py` checks it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zephon import ALLOWANCES, Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerValues:
    """What a recipe may leave to the trainer and must not contradict; None where the trainer is silent."""

    seq_len: int
    global_batch_size: int | None = None
    tokenizer: str | None = None
    """A folder with a tokenizer.json."""

    def by_field(self) -> dict[str, Any]:
        """Returns the values by the dotted names of the recipe's fields."""
        values = {
            "packing.seq_len": self.seq_len,
            "global_batch_size": self.global_batch_size,
            "tokenize.tokenizer": self.tokenizer,
        }
        return {name: value for name, value in values.items() if value is not None}


def read_recipe(path: str, settings: Sequence[str], trainer: TrainerValues) -> Recipe:
    """Returns the recipe at `path` (TOML or module:function) with `NAME=VALUE` settings over it.

    Fields that the file leaves out are the trainer's; a field that says another number is refused with both.
    """
    if not path:
        raise ValueError(
            "`recipe` must name a recipe: a TOML file or module:function; set --dataloader.recipe"
        )
    chosen = dict(parse_setting(text) for text in settings)
    if Path(path).is_file():
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        missing = {
            name: value
            for name, value in trainer.by_field().items()
            if name not in chosen and not _has(table, name)
        }
        if isinstance(missing.get("tokenize.tokenizer"), str):
            missing["tokenize.tokenizer"] = str(Path(missing["tokenize.tokenizer"]).absolute())
        chosen |= missing
    recipe = Recipe.from_toml(path, settings=chosen)
    check_agreement(recipe, trainer)
    return recipe


def trained_or_passed(recipe: Recipe, *, repeats: bool) -> Recipe:
    """Returns the recipe to train on or, where nothing repeats, that of one pass over every document."""
    if not repeats:
        return recipe.evaluation()
    if recipe.is_finite and recipe.when_exhausted == "pad":
        raise ValueError(
            'the recipe has when_exhausted = "pad", which is for evaluation: a rank whose lanes have ended '
            'would train on steps without a label; set "stop" or "redistribute"'
        )
    return recipe


def parse_setting(text: str) -> tuple[str, Any]:
    """Returns (dotted name, value) of `NAME=VALUE`; the value is TOML where it can be, else a string."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ValueError(f"`set` takes NAME=VALUE, got {text!r}; for instance datasets.web.path=data/web")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value


def _has(table: Mapping[str, Any], name: str) -> bool:
    place: Any = table
    for part in name.split("."):
        if not isinstance(place, Mapping) or part not in place:
            return False
        place = place[part]
    return True


def check_agreement(recipe: Recipe, trainer: TrainerValues) -> None:
    """Refuses a recipe whose shape is not the trainer's."""
    pairs = [("packing.seq_len", "training.seq_len", recipe.packing.seq_len, trainer.seq_len)]
    if trainer.global_batch_size is not None:
        theirs = trainer.global_batch_size
        pairs.append(("global_batch_size", "training.global_batch_size", recipe.global_batch_size, theirs))
    for ours, flag, said, wanted in pairs:
        if said != wanted:
            raise ValueError(
                f"the recipe has {ours} = {said} and the trainer --{flag} {wanted}; "
                f"make them equal, or leave `{ours}` out of the recipe to take the trainer's"
            )


def check_allowances(names: Sequence[str]) -> None:
    """Refuses a name that no restore could be told to accept, before a restore needs it."""
    if unknown := sorted(set(names) - set(ALLOWANCES)):
        raise ValueError(f"`allow` takes {', '.join(ALLOWANCES)}, got {unknown[0]!r}")
