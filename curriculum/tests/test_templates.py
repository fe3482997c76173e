"""Templates name their sources, say what they simplify, and give the numbers that were published."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from zephon import PARTS, ScheduleContext, ScheduleTable, compile_schedule
from zephon_curriculum.schedules import build
from zephon_curriculum.templates import template, templates

ROLES = {
    "constant": ("web", "code", "math"),
    "minicpm": ("web", "code", "papers", "sft"),
    "smollm3": ("web", "code", "math"),
    "two-phase": ("crawl", "crawl_high", "curated"),
}


def table(config: dict[str, Any], names: tuple[str, ...], total_steps: int | None = 1110) -> ScheduleTable:
    context = ScheduleContext(names=names, total_steps=total_steps, tokens_per_step=1)
    return compile_schedule(build(config, context), context)


def percents(compiled: ScheduleTable, step: int) -> list[float]:
    return [round(100 * share / PARTS, 3) for share in compiled.at(step)]


def test_templates_are_listed_with_their_roles() -> None:
    assert {found.name: tuple(found.roles) for found in templates()} == ROLES


@pytest.mark.parametrize("name", ROLES)
def test_a_template_names_its_source_and_what_it_simplifies(name: str) -> None:
    found = next(found for found in templates() if found.name == name)
    assert "https://" in found.source
    assert found.simplified
    assert found.summary


@pytest.mark.parametrize("name", ROLES)
def test_a_template_makes_a_schedule_of_every_length(name: str) -> None:
    played = {role: role for role in ROLES[name]}
    for total_steps in (40, 1110, 123_457):
        in_steps = template(name, played, total_steps=total_steps)
        assert table(template(name, played), ROLES[name], total_steps) == table(in_steps, ROLES[name], None)


def test_the_stages_of_smollm3() -> None:
    compiled = table(template("smollm3", {"web": "w", "code": "c", "math": "m"}), ("w", "c", "m"))
    assert compiled.starts == (0, 800, 1000)
    assert [percents(compiled, step) for step in (0, 799, 800, 1000)] == [
        [85, 12, 3], [85, 12, 3], [75, 15, 10], [63, 24, 13],
    ]  # fmt: skip


def test_the_two_phases() -> None:
    played = {role: role for role in ROLES["two-phase"]}
    compiled = table(template("two-phase", played), ROLES["two-phase"], 15_000)
    assert compiled.starts == (0, 9000)
    assert [percents(compiled, step) for step in (0, 9000)] == [[29.5, 29.5, 41], [0, 31, 69]]
    drawn = 9000 * 59 + 6000 * 31
    assert Fraction(drawn, 15_000) == Fraction("47.8")  # as the paper sums it


def test_the_decay_of_minicpm() -> None:
    compiled = table(template("minicpm", {role: role for role in ROLES["minicpm"]}), ROLES["minicpm"], 1000)
    assert compiled.starts == (0, 900)
    assert [percents(compiled, step) for step in (0, 900)] == [[72, 25, 3, 0], [36, 12.5, 1.5, 50]]


def test_a_role_may_be_played_by_several_datasets() -> None:
    played: dict[str, Any] = {"web": {"a": 3, "b": 1}, "code": ["c", "d"], "math": "e"}
    compiled = table(template("constant", played), ("a", "b", "c", "d", "e"))
    assert percents(compiled, 0) == [63.75, 21.25, 6, 6, 3]


def test_a_dataset_may_play_several_roles() -> None:
    compiled = table(template("smollm3", {"web": "a", "code": "b", "math": ["a", "b"]}), ("a", "b"))
    assert percents(compiled, 0) == [86.5, 13.5]


@pytest.mark.parametrize(
    ("name", "played", "message"),
    [
        ("smolm3", {}, "unknown field 'smolm3'; did you mean 'smollm3'"),
        ("smollm3", {"maths": "a"}, "template 'smollm3', roles: unknown field 'maths'; did you mean 'math'"),
        ("smollm3", {"web": "a", "code": "b"}, "no dataset for the role 'math' .mathematical text"),
        ("smollm3", {"web": "a", "code": "b", "math": []}, "role 'math': must be a dataset, a list"),
        (
            "smollm3",
            {"web": "a", "code": "b", "math": {"c": 0}},
            "role 'math': at least one weight must be > 0",
        ),
    ],
)
def test_what_is_wrong_is_refused(name: str, played: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        template(name, played)
