"""What holds for every kind: shares at every step, the same table everywhere, recipes read back, the kit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon import (
    PARTS,
    Constant,
    Dataset,
    Packing,
    Recipe,
    Schedule,
    ScheduleContext,
    ScheduleTable,
    Tokenize,
    compile_schedule,
)
from zephon.testing import check_schedule
from zephon_curriculum import Ramp
from zephon_curriculum.schedules.nested import build, config_of

NAMES = ("web", "code", "math")
CONTEXT = ScheduleContext(names=NAMES, total_steps=20, tokens_per_step=1000)
A, B = {"web": 8, "code": 1, "math": 1}, {"web": 2, "code": 4, "math": 4}
RAMP: dict[str, Any] = {"kind": "linear", "from": A, "to": B}
SLOW = {"kind": "exponential", "rate": -3}

EXAMPLES: dict[str, dict[str, Any]] = {
    "linear": RAMP | {"end": 20},
    "cosine": RAMP | {"begin": 4, "end": 12},
    "smoothstep": RAMP | {"every": 5},
    "exponential": RAMP | {"end": "50%"},
    "wsd": RAMP | {"last": "25%"},
    "crossfade": {
        "knots": [
            {"at": 0, "weights": A},
            {"at": "10K tokens", "weights": {"math": 1}},
            {"at": 15, "weights": B},
        ],
        "fade": 3,
    },
    "sawtooth": {"old": A, "new": {"math": 1}, "period": 5, "floor": 0.2},
    "table": {"csv": "step,web,code,math\n0,8,1,1\n10,2,4,4\n"},
    "then": {
        "parts": [
            {"kind": "constant", "weights": A, "length": 5},
            RAMP | {"length": "50%"},
            {"kind": "constant", "weights": B},
        ]
    },
    "repeat": {"period": 10, "schedule": RAMP},
    "bounds": {"floors": {"web": "30%"}, "ceilings": {"math": 0.3}, "schedule": RAMP},
}
"""One of each kind."""
GOLDEN = {
    "linear": "df70c2df5eea903d",
    "cosine": "010eb54b4b8f1aba",
    "smoothstep": "e042d5982b7fef52",
    "exponential": "6435dab051bf2691",
    "wsd": "e488b4a28461dab0",
    "crossfade": "5237d71a6fc50043",
    "sawtooth": "d97fc60af168ddb5",
    "table": "68c532cb1792fc0f",
    "then": "921ba1a9be77ae61",
    "repeat": "9f2f03ff77d6a66c",
    "bounds": "da12b6c597c3cf80",
}
"""Beginnings of the hashes of their tables. Edit only when you mean to break every run that has one."""


def example(kind: str) -> dict[str, Any]:
    return EXAMPLES[kind] | {"kind": kind}


def compiled(config: Mapping[str, Any], context: ScheduleContext = CONTEXT) -> ScheduleTable:
    return compile_schedule(build(config, context), context)


# Golden -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EXAMPLES)
def test_the_table_of_each_kind(kind: str) -> None:
    assert compiled(example(kind)).hash()[:16] == GOLDEN[kind]


def test_a_whole_table() -> None:
    """Edit only when you mean to break every run that has a cosine in its schedule."""
    table = compiled(example("cosine"))
    assert table.starts == (0, 5, 6, 7, 8, 9, 10, 11, 12)
    assert table.shares == (
        (838861, 104858, 104857),
        (814916, 116830, 116830),
        (746724, 150926, 150926),
        (644670, 201953, 201953),
        (524288, 262144, 262144),
        (403906, 322335, 322335),
        (301852, 373362, 373362),
        (233660, 407458, 407458),
        (209715, 419431, 419430),
    )


@pytest.mark.parametrize("seed", ["1", "2"])
def test_tables_are_the_same_in_a_fresh_process(seed: str) -> None:
    program = (
        "import json, sys; from zephon import ScheduleContext, compile_schedule\n"
        "from zephon_curriculum.schedules.nested import build\n"
        "context = ScheduleContext(names=('web', 'code', 'math'), total_steps=20, tokens_per_step=1000)\n"
        "configs = json.loads(sys.argv[1])\n"
        "hashes = {k: compile_schedule(build(c, context), context).hash()[:16] for k, c in configs.items()}\n"
        "print(json.dumps(hashes))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, json.dumps({kind: example(kind) for kind in EXAMPLES})],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(found.stdout) == GOLDEN


# The kit ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EXAMPLES)
def test_each_kind_passes_the_kit(kind: str) -> None:
    check_schedule(build(example(kind), CONTEXT), CONTEXT)


def test_the_kit_finds_them_by_path_in_a_fresh_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from zephon_curriculum import Easing, Ramp\n"
    text += f"made = Ramp(from_={A}, to={B}, end=9, easing=Easing(kind='exponential', rate=3))\n"
    (tmp_path / "my_curriculum.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    check_schedule("my_curriculum:made", CONTEXT)


def test_every_kind_is_registered() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    registered = project["entry-points"]["zephon.schedules"].items()
    ours = [kind for kind, target in registered if target.startswith("zephon_curriculum.schedules.")]
    assert ours == sorted(EXAMPLES)


# Random configurations --------------------------------------------------------------------------------------

WEIGHTS = st.one_of(st.integers(0, 1000), st.floats(0, 1000))
MIXTURES = (
    st.lists(WEIGHTS, min_size=3, max_size=3).filter(any).map(lambda w: dict(zip(NAMES, w, strict=True)))
)
EASINGS = st.sampled_from(["linear", "cosine", "smoothstep", "exponential", SLOW])
PARTS_OF_ONE = st.integers(0, 33).map(lambda percent: f"{percent}%")


def ramps(draw: Any) -> dict[str, Any]:
    begin = draw(st.integers(0, 30))
    end, every = begin + draw(st.integers(1, 30)), draw(st.integers(1, 9))
    easing = draw(EASINGS)
    config = {"kind": easing} if isinstance(easing, str) else easing
    mixtures = {"from": draw(MIXTURES), "to": draw(MIXTURES)}
    return config | mixtures | {"begin": begin, "end": end, "every": every}


def decays(draw: Any) -> dict[str, Any]:
    last = draw(st.integers(1, 20))
    config = {
        "kind": "wsd",
        "from": draw(MIXTURES),
        "to": draw(MIXTURES),
        "last": last,
        "easing": draw(EASINGS),
    }
    return config | {"end": last + draw(st.integers(0, 20)), "blend": draw(st.integers(0, last))}


def fades(draw: Any) -> dict[str, Any]:
    steps = [0, *sorted(draw(st.sets(st.integers(1, 40), max_size=4)))]
    knots = [{"at": at, "weights": draw(MIXTURES)} for at in steps]
    fade = draw(st.sampled_from([{}, {"fade": 0}, {"fade": 1}]))
    return {"kind": "crossfade", "knots": knots, "easing": draw(EASINGS), **fade}


def teeth(draw: Any) -> dict[str, Any]:
    config = {"kind": "sawtooth", "old": draw(MIXTURES), "new": draw(MIXTURES), "floor": draw(PARTS_OF_ONE)}
    return config | {
        "period": draw(st.integers(2, 9)),
        "times": draw(st.integers(1, 4)),
        "begin": draw(st.integers(0, 9)),
    }


def floors(draw: Any) -> dict[str, Any]:
    return {
        "kind": "bounds",
        "schedule": draw(CONFIGS),
        "floors": draw(st.dictionaries(st.sampled_from(NAMES), PARTS_OF_ONE)),
    }


def parts(draw: Any) -> dict[str, Any]:
    first = draw(CONFIGS) | {"length": draw(st.integers(1, 19))}
    return {"kind": "then", "parts": [first, draw(CONFIGS)]}


def cycles(draw: Any) -> dict[str, Any]:
    return {
        "kind": "repeat",
        "schedule": draw(CONFIGS),
        "period": draw(st.integers(1, 20)),
        "times": draw(st.integers(1, 3)),
    }


MAKERS = (ramps, decays, fades, teeth)
CONFIGS: st.SearchStrategy[dict[str, Any]] = st.composite(lambda draw: draw(st.sampled_from(MAKERS))(draw))()
ALL: st.SearchStrategy[dict[str, Any]] = st.composite(
    lambda draw: draw(st.sampled_from((*MAKERS, floors, parts, cycles)))(draw)
)()


@settings(max_examples=150)
@given(ALL)
def test_shares_are_a_mixture_at_every_step(config: dict[str, Any]) -> None:
    built = build(config, CONTEXT)
    table = compile_schedule(built, CONTEXT)
    for step in range(100):
        weights = built.weights(step)
        assert all(type(weight) is int and weight >= 0 for weight in weights.values())
        total = sum(weights.values())
        shares = table.at(step)
        assert sum(shares) == PARTS
        for name, share in zip(NAMES, shares, strict=True):
            assert share >= 0
            assert abs(weights[name] * PARTS - share * total) < total


@settings(max_examples=100)
@given(ALL)
def test_what_is_built_writes_the_table_that_it_is_built_of(config: dict[str, Any]) -> None:
    built = build(config, CONTEXT)
    again = build(json.loads(json.dumps(config_of(built))), CONTEXT)
    assert compile_schedule(again, CONTEXT).hash() == compile_schedule(built, CONTEXT).hash()
    assert config_of(again) == config_of(built)


def knots_of(first: Any, last: Any) -> list[dict[str, Any]]:
    return [{"at": 0, "weights": first}, {"at": 7, "weights": last}]


@given(MIXTURES, MIXTURES, EASINGS)
def test_a_blend_begins_and_ends_as_the_constant_mixtures(first: Any, last: Any, easing: Any) -> None:
    table = compiled({"kind": "crossfade", "knots": knots_of(first, last), "easing": easing})
    ends = [compile_schedule(Constant(mixture), CONTEXT).at(0) for mixture in (first, last)]
    assert [table.at(0), table.at(7)] == ends


@given(MIXTURES, MIXTURES, st.integers(1, 50), st.data())
def test_a_linear_blend_is_the_one_of_fractions(first: Any, last: Any, end: int, data: Any) -> None:
    step = data.draw(st.integers(0, end))
    weights = Ramp(from_=first, to=last, end=end).weights(step)
    t, total = Fraction(step, end), Fraction(sum(weights.values()))
    sums = [sum(map(Fraction, mixture.values())) for mixture in (first, last)]
    for name in NAMES:
        parts = [Fraction(mixture[name]) / whole for mixture, whole in zip((first, last), sums, strict=True)]
        assert weights[name] / total == (1 - t) * parts[0] + t * parts[1]


def test_fractions_are_written_in_whole_numbers() -> None:
    ramp = Ramp(from_={"web": Fraction(1, 3), "code": Fraction(1, 2)}, to={"web": 0.5, "code": 1}, end=9)  # type: ignore[dict-item]
    config = config_of(ramp)
    assert (config["from"], config["to"]) == ({"web": 2, "code": 3}, {"web": 0.5, "code": 1})


@settings(max_examples=50)
@given(ALL)
def test_floors_hold_at_every_step(config: dict[str, Any]) -> None:
    bounded = {"kind": "bounds", "schedule": config, "floors": {"web": 0.25, "math": "1/8"}}
    table = compiled(bounded)
    for step in range(0, 100, 3):
        web, _, math = table.at(step)
        assert web >= PARTS // 4
        assert math >= PARTS // 8


# Recipes ----------------------------------------------------------------------------------------------------


def recipe(schedule: Schedule | Mapping[str, Any]) -> Recipe:
    return Recipe(
        seed=1,
        global_batch_size=4,
        datasets=tuple(Dataset.from_path(name, f"{name}.jsonl") for name in NAMES),
        schedule=schedule,
        tokenize=Tokenize(tokenizer="tokenizer.json"),
        packing=Packing(seq_len=250),
        total_steps=20,
    )


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_recipe_reads_back_with_the_same_table(kind: str, tmp_path: Path) -> None:
    as_table, as_object = recipe(example(kind)), recipe(build(example(kind), CONTEXT))
    for name, made in (("table", as_table), ("object", as_object)):
        (tmp_path / f"{name}.toml").write_text(made.to_toml())
        again = Recipe.from_toml(tmp_path / f"{name}.toml")
        assert again.compile_schedule().hash()[:16] == GOLDEN[kind]
        assert again.fingerprint() == made.fingerprint()


def test_a_recipe_of_weights_that_are_no_short_decimals_reads_back(tmp_path: Path) -> None:
    made = recipe(Ramp(from_={"web": 0.1, "code": 1 / 3, "math": 2e-9}, to=B, end=7))
    (tmp_path / "recipe.toml").write_text(made.to_toml())
    assert Recipe.from_toml(tmp_path / "recipe.toml").compile_schedule() == made.compile_schedule()


def test_the_toml_that_people_write() -> None:
    text = """
    [schedule]
    kind = "then"

    [[schedule.parts]]
    kind = "constant"
    weights = { web = 9, code = 1, math = 0 }
    length = "50%"

    [[schedule.parts]]
    kind = "bounds"
    floors = { web = "20%" }
    schedule = { kind = "cosine", from = { web = 9, code = 1 }, to = { math = 1 }, end = "5K tokens" }
    """
    table = compiled(tomllib.loads(text)["schedule"])
    assert table.starts == (0, 11, 12, 13, 14, 15)
    assert table.at(99) == (209715, 0, PARTS - 209715)
