"""Templates: curricula of public recipes, as TOML files beside this module, each with its source.

Upstream: the files. Downstream: the `[schedule]` of a recipe. A template speaks of roles (web, code, math);
the user says which datasets play them. What a file simplifies, it says. Its weights are scaled by one number,
so that datasets which share a role have whole weights too: the points of SmolLM3, 100 in each stage, become
400 where a role is played 3 to 1.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from zephon import ScheduleContext, check_weights, unknown_field
from zephon.cli.common import add_row, cut, new_table
from zephon_curriculum.results import Readable, Shown
from zephon_curriculum.schedules.nested import build, config_of

MIXTURES = ("weights", "from", "to", "old", "new")
"""Fields that hold a mixture of roles."""
BRIEF = 100
"""Characters of a template that a REPL shows."""
Players = str | Sequence[str] | Mapping[str, float]
"""The datasets of a role: one, several alike, or several with weights inside of the role."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Template(Readable):
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

    def table(self, datasets: Mapping[str, Players]) -> dict[str, Any]:
        """Returns the `[schedule]` table with `datasets` in the roles; see `template`."""
        return template(self.name, datasets)

    def __repr__(self) -> str:
        return f"Template({cut(f'{self.name}: {self.summary}', BRIEF)})"

    def shown(self) -> Shown:
        """Returns the roles as a table, and where the numbers are from."""
        table = new_table("role", "what plays it", title="roles")
        for role, what in self.roles.items():
            add_row(table, role, what)
        return Shown(
            head=f"{self.name}: {self.summary}",
            tables=[table],
            notes=[f"source: {self.source}", f"simplified: {self.simplified}"],
        )


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
    known = {each.name: each for each in templates()}
    if name not in known:
        raise unknown_field("templates", name, tuple(known))
    chosen = known[name]
    where = f"template {name!r}"
    for role in datasets:
        if role not in chosen.roles:
            raise unknown_field(f"{where}, roles", role, tuple(chosen.roles))
    for role, what in chosen.roles.items():
        if role not in datasets:
            raise ValueError(f"{where}: no dataset for the role {role!r} ({what})")
    players = {role: _players(f"{where}, role {role!r}", played) for role, played in datasets.items()}
    exact = _mapped(chosen.schedule, lambda roles: _cast(roles, players))
    denominators: list[int] = []
    _mapped(exact, lambda mixture: denominators.extend(weight.denominator for weight in mixture.values()))
    factor = math.lcm(*denominators)
    config: dict[str, Any] = _mapped(
        exact, lambda mixture: {name: int(weight * factor) for name, weight in mixture.items()}
    )
    if total_steps is None:
        return config
    names = tuple(dict.fromkeys(name for role in players.values() for name in role))
    context = ScheduleContext(names=names, total_steps=total_steps, tokens_per_step=1)
    return config_of(build(config, context, where))


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


def _mapped(value: Any, mixed: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Returns a part of a template's table with what `mixed` makes of each mixture in it."""
    if isinstance(value, Mapping):
        return {n: mixed(inner) if n in MIXTURES else _mapped(inner, mixed) for n, inner in value.items()}
    return [_mapped(inner, mixed) for inner in value] if isinstance(value, list) else value


def _cast(roles: Mapping[str, float], players: Mapping[str, Mapping[str, Fraction]]) -> dict[str, Fraction]:
    """Returns a mixture of roles as one of datasets."""
    exact: dict[str, Fraction] = {}
    for role, weight in roles.items():
        for name, part in players[role].items():
            exact[name] = exact.get(name, Fraction(0)) + Fraction(str(weight)) * part
    return exact
