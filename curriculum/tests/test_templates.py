"""Templates name their sources, say what they simplify, and give the numbers that were published."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.helpers import words, write_tokenizer
from zephon import PARTS, Recipe, ScheduleContext, ScheduleTable, compile_schedule
from zephon.cli import build_app
from zephon_curriculum.schedules.nested import build
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


def test_the_weights_of_all_stages_have_one_sum() -> None:
    code = {"stack": 3, "issues": 1}
    knots = template("smollm3", {"web": "w", "code": code, "math": "m"})["knots"]
    assert [knot["weights"] for knot in knots] == [
        {"w": 340, "stack": 36, "issues": 12, "m": 12},
        {"w": 300, "stack": 45, "issues": 15, "m": 40},
        {"w": 252, "stack": 72, "issues": 24, "m": 52},
    ]
    for name, roles in ROLES.items():
        config = template(name, {role: role for role in roles})
        mixtures = [config[side] for side in ("weights", "from", "to") if side in config]
        mixtures += [knot["weights"] for knot in config.get("knots", ())]
        assert len({sum(mixture.values()) for mixture in mixtures}) == 1
    plain = template("smollm3", {role: role for role in ROLES["smollm3"]})
    assert plain["knots"][1]["weights"] == {"web": 75, "code": 15, "math": 10}  # as published


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


@pytest.fixture
def init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns what runs `zephon init` over `web`, `stack`, `issues` and `math`: its exit code and JSON."""
    write_tokenizer(tmp_path / "letters")
    for name in ("web", "stack", "issues", "math"):
        lines = [json.dumps({"text": text}) + "\n" for text in words(name, 20)]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> tuple[int, Any]:
        files = ("web.jsonl", "stack.jsonl", "issues.jsonl", "math.jsonl")
        done = CliRunner().invoke(build_app(), ["init", *files, "--tokenizer", "letters", "--json", *args])
        return done.exit_code, json.loads(done.stdout)

    return run


def test_init_writes_the_schedule_of_a_template(init: Any) -> None:
    code, _ = init("--template", "smollm3", "--role", "code=stack,issues")
    assert code == 0
    recipe = Recipe.from_toml("recipe.toml")
    compiled = recipe.compile_schedule()
    assert (recipe.total_steps, compiled.starts) == (1000, (0, 721, 901))
    assert percents(compiled, 800) == [75, 7.5, 7.5, 10]
    assert "https://huggingface.co/blog/smollm3" in Path("recipe.toml").read_text()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("--template", "smollm"),
            "--template must be one of constant, minicpm, smollm3, two-phase, got 'smollm'",
        ),
        (("--template", "smollm3"), "role 'code' is played by no dataset; --role takes ROLE=DATASET"),
        (("--template", "smollm3", "--role", "code=stack"), "dataset 'issues' plays no role"),
        (("--template", "smollm3", "--role", "code=stack,issue"), "no dataset is named 'issue'"),
        (("--template", "smollm3", "--role", "cod=stack"), "role 'cod' is none of the template"),
        (("--role", "code=stack"), "--template must be one of"),
    ],
)
def test_init_refuses_what_does_not_fit_a_template(init: Any, args: tuple[str, ...], message: str) -> None:
    code, found = init(*args)
    assert (code, found["error"]["kind"]) == (2, "usage")
    assert message in found["error"]["message"]
    assert not Path("recipe.toml").exists()
