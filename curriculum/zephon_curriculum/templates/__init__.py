"""Templates: curricula of public recipes, as TOML files beside this module, each with its source.

Upstream: the files. Downstream: the `[schedule]` of a recipe. A template speaks of roles (web, code, math);
the user says which datasets play them. What a file simplifies, it says.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from zephon import ScheduleContext, check_weights, unknown_field
from zephon_curriculum.schedules.nested import build, config_of

MIXTURES = ("weights", "from", "to", "old", "new")
"""Fields that hold a mixture of roles."""
Players = str | Sequence[str] | Mapping[str, float]
"""The datasets of a role: one, several alike, or several with weights inside of the role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A curriculum of a public recipe."""

    name: str
    summary: str
    source: str
    """Where the numbers are published."""
    simplified: str
    """What is not as published."""
    roles: Mapping[str, str]
    """Role -> what plays it."""
    schedule: Mapping[str, Any]
    """A table of a recipe, of roles where datasets belong."""


def templates() -> tuple[Template, ...]:
    """Returns all templates, by name."""
    files = sorted(Path(__file__).parent.glob("*.toml"))
    return tuple(Template(**tomllib.loads(file.read_text(encoding="utf-8"))) for file in files)


def template(name: str, datasets: Mapping[str, Players], *, total_steps: int | None = None) -> dict[str, Any]:
    """Returns the `[schedule]` table of the template `name`, with `datasets` in its roles.

    `datasets` says for every role which dataset plays it, which datasets do in equal parts, or which do with
    which weights inside of the role. A dataset may play several roles. Positions are parts of the run, so
    the recipe must say `total_steps`; where `total_steps` is given here, they are steps.
    """
    chosen = _find(name)
    where = f"template {name!r}"
    for role in datasets:
        if role not in chosen.roles:
            raise unknown_field(f"{where}, roles", role, tuple(chosen.roles))
    for role, what in chosen.roles.items():
        if role not in datasets:
            raise ValueError(f"{where}: no dataset for the role {role!r} ({what})")
    players = {role: _players(f"{where}, role {role!r}", played) for role, played in datasets.items()}
    config: dict[str, Any] = _cast(chosen.schedule, players)
    if total_steps is None:
        return config
    names = tuple(dict.fromkeys(name for role in players.values() for name in role))
    context = ScheduleContext(names=names, total_steps=total_steps, tokens_per_step=1)
    return config_of(build(config, context, where))


def _find(name: str) -> Template:
    known = templates()
    for found in known:
        if found.name == name:
            return found
    raise unknown_field("templates", name, tuple(found.name for found in known))


def _players(where: str, played: object) -> dict[str, Fraction]:
    """Returns the part of a role that each of its datasets plays; the parts sum to 1."""
    if isinstance(played, str):
        return {played: Fraction(1)}
    if isinstance(played, Mapping):
        weights = check_weights(played, where)
    elif isinstance(played, Sequence) and played and all(isinstance(name, str) for name in played):
        weights = {name: Fraction(1) for name in played}
    else:
        raise ValueError(f"{where}: must be a dataset, a list of datasets or weights of them, got {played!r}")
    total = sum(weights.values(), Fraction(0))
    return {name: weight / total for name, weight in weights.items()}


def _cast(value: Any, players: Mapping[str, Mapping[str, Fraction]]) -> Any:
    """Returns a part of a template's table with the datasets in place of the roles."""
    if isinstance(value, Mapping):
        return {
            name: _mixture(inner, players) if name in MIXTURES else _cast(inner, players)
            for name, inner in value.items()
        }
    return [_cast(inner, players) for inner in value] if isinstance(value, list) else value


def _mixture(roles: Mapping[str, float], players: Mapping[str, Mapping[str, Fraction]]) -> dict[str, int]:
    """Returns a mixture of roles as one of datasets, in the smallest whole numbers."""
    exact: dict[str, Fraction] = {}
    for role, weight in roles.items():
        for name, part in players[role].items():
            exact[name] = exact.get(name, Fraction(0)) + Fraction(str(weight)) * part
    factor = math.lcm(*(weight.denominator for weight in exact.values()))
    whole = {name: int(weight * factor) for name, weight in exact.items()}
    common = math.gcd(*whole.values())
    return {name: weight // common for name, weight in whole.items()}
