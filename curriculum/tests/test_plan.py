"""The plan of a run against what the loader really draws."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import loaders, make_recipe, open_small, sized, take_steps
from zephon import PARTS, Dataset, Opened, Recipe, ScheduleTable, Stages
from zephon_curriculum.estimation.estimates import SAMPLED, DatasetEstimate, Estimates
from zephon_curriculum.plan import plan
from zephon_curriculum.plan.curve import Curve
from zephon_curriculum.quantity import Quantity


def known(name: str, documents: int, mean: float, error: float = 0.0) -> DatasetEstimate:
    """Returns the estimate of a dataset; `error` is the half of the interval, as a part."""

    def quantity(value: float) -> Quantity:
        return Quantity(
            value=value, low=value * (1 - error), high=value * (1 + error), std_error=value * error / 2
        )  # fmt: skip

    return DatasetEstimate(
        name=name, how=SAMPLED, documents=documents, bytes=None, tokens_per_byte=None, num_chunks=1,
        tokens_per_document=quantity(mean), tokens=quantity(mean * documents),
        sampled_documents=documents // 4,
    )  # fmt: skip


def estimates(*found: DatasetEstimate) -> Estimates:
    return Estimates(datasets=found)


def two_stages(lengths: Sequence[int] = (30, 70), **fields: object) -> Recipe:
    """Returns 100 steps of 4 rows of 128 tokens: web alone half the time, then 3 to 1 with code."""
    documents = {"web": sized(400, lengths), "code": sized(50, (20,))}
    stages = Stages({0: {"web": 1, "code": 0}, 50: {"web": 3, "code": 1}})
    return make_recipe(documents, stages, seq_len=128, total_steps=100, **fields)  # type: ignore[arg-type]


def really(opened: Opened, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens drawn and the labels that count, of each dataset, in a run of the loader."""
    with loaders(opened) as ranks:
        batches = [batch for step in take_steps(ranks, num_steps) for batch in step]
    drawn = sum(batch.tokens.sum(axis=1) for batch in batches)
    trained = np.zeros(len(drawn), np.int64)
    for batch in batches:
        pieces = batch.pieces
        for i in range(len(drawn)):
            mine = pieces.dataset == i
            trained[i] += int(pieces.length[mine].sum()) - int(mine.sum())
        assert int((batch.labels >= 0).sum()) == int(pieces.length.sum()) - len(pieces.length)
    return np.asarray(drawn), trained


def test_drawn_and_trained_are_those_of_the_loader() -> None:
    recipe = two_stages()
    sizes = estimates(known("web", 400, 51), known("code", 50, 21))
    found = plan(recipe, estimates=sizes)
    drawn, trained = really(open_small(recipe), 100)
    for dataset, tokens, labels in zip(found.datasets, drawn, trained, strict=True):
        assert abs(dataset.drawn_tokens - tokens) <= 4 * 2 * 128  # two rows of each lane, at most
        assert dataset.trained_tokens is not None
        assert dataset.trained_tokens.value / dataset.drawn_tokens == pytest.approx(
            labels / tokens, abs=0.004
        )
    assert sum(d.drawn_tokens for d in found.datasets) == found.total_tokens == 100 * 512
    assert [d.drawn_tokens for d in found.datasets] == [50 * 512 + 50 * 384, 50 * 128]


def test_all_labels_but_the_last_of_a_row_count_where_document_ends_are_not_masked() -> None:
    found = plan(two_stages(mask_document_ends=False))
    assert found["web"].trained_tokens is not None
    assert found["web"].trained_tokens.value == found["web"].drawn_tokens * 127 / 128


def test_epochs_and_the_first_repeat_carry_the_interval_of_the_size() -> None:
    found = plan(two_stages(), estimates=estimates(known("web", 400, 51, 0.1), known("code", 50, 21)))
    web, code = found["web"], found["code"]
    assert web.epochs is not None
    assert web.first_repeat is not None
    assert web.epochs.value == pytest.approx(44_800 / 20_400)
    assert web.epochs.low == pytest.approx(44_800 / 22_440)
    assert web.epochs.high == pytest.approx(44_800 / 18_360)
    assert (web.first_repeat.low, web.first_repeat.value, web.first_repeat.high) == (35, 39, 43)
    assert code.first_repeat is not None
    assert code.first_repeat.value == code.first_repeat.low == 50 + 1050 // 128
    assert any(w.startswith("code: 6.1 epochs are over 4") for w in found.warnings)


def test_phases_are_runs_of_equal_shares() -> None:
    found = plan(two_stages())
    assert [(p.start, p.stop, p.first == p.last) for p in found.phases] == [(0, 50, True), (50, 100, True)]
    assert found.phases[1].drawn_tokens == (50 * 384, 50 * 128)


def ramp_table(num_steps: int, names: tuple[str, ...]) -> ScheduleTable:
    """Returns a table that changes at every step."""
    first = np.arange(num_steps, dtype=np.int64) * (PARTS // 2) // num_steps
    rest = (PARTS - first) // (len(names) - 1)
    columns = [first, *[rest] * (len(names) - 2)]
    shares = np.stack([*columns, PARTS - sum(columns)], axis=1)
    return ScheduleTable(names, tuple(range(num_steps)), tuple(map(tuple, shares.tolist())))


def test_a_long_run_of_many_datasets_is_planned_in_a_second() -> None:
    names = tuple(f"d{i}" for i in range(20))
    datasets = tuple(Dataset.from_documents(name, ["x"], max_epochs=1000) for name in names)
    recipe = make_recipe(datasets=datasets, total_steps=100_000, global_batch_size=1024, seq_len=8192)
    sizes = estimates(*(known(name, 10**8, 700, 0.02) for name in names))
    table = ramp_table(100_000, names)
    began = time.process_time()
    found = plan(recipe, estimates=sizes, table=table)
    assert time.process_time() - began < 1.5
    assert 4 <= len(found.phases) <= 12
    assert [p.start for p in found.phases[1:]] == [p.stop for p in found.phases[:-1]]
    column = np.array(table.shares, dtype=object)[:, 0].sum()
    assert found["d0"].drawn_tokens == round(column * 1024 * 8192 / PARTS)
    assert sum(d.drawn_tokens for d in found.datasets) == pytest.approx(found.total_tokens, abs=20)


def test_skipped_steps_are_drawn_and_not_trained() -> None:
    recipe = two_stages()
    table = dataclasses.replace(recipe.compile_schedule(), skips=((20, 30), (60, 70)))
    curve = Curve(table, 512)
    assert curve.drawn(0, 20) == 20 * PARTS
    assert curve.drawn(0, 21) == 31 * PARTS
    assert curve.step_of(0, 25 * 512, 100) == 20
    found = plan(recipe, table=table)
    assert found["web"].drawn_tokens == 44_800 + 10 * 512 + 10 * 384
    assert found["web"].skipped_tokens == 10 * 512 + 10 * 384
    assert found["code"].skipped_tokens == 10 * 128
    opened = dataclasses.replace(open_small(recipe), table=table)
    with loaders(opened) as ranks:
        take_steps(ranks, 100)
        drawn = ranks[0].progress().tokens.tolist()
    for dataset, tokens in zip(found.datasets, drawn, strict=True):
        assert abs(dataset.drawn_tokens - tokens) <= 4 * 2 * 128


def test_epochs_as_a_budget_set_the_steps() -> None:
    recipe = dataclasses.replace(two_stages(), total_steps=None)
    sizes = estimates(known("web", 400, 51), known("code", 50, 21))
    assert plan(recipe, estimates=sizes, epochs=3).num_steps == -(-3 * (20_400 + 1_050) // 512)
    assert plan(recipe, estimates=sizes, epochs={"code": 2}).num_steps == 50 + -(-2 * 1050 // 128)
    with pytest.raises(ValueError, match="`epochs` needs estimates of the tokens of 'web'"):
        plan(recipe, epochs=3)
    with pytest.raises(ValueError, match="`epochs` must be left out where steps are given"):
        plan(recipe, 100, epochs=3, estimates=sizes)
    with pytest.raises(ValueError, match="the recipe has no `total_steps`"):
        plan(recipe)


@pytest.mark.parametrize(("error", "is_told"), [(0.0, False), (0.01, False), (0.2, True)])
def test_an_end_that_the_interval_allows_is_told(error: float, is_told: bool) -> None:
    """Of 680 tokens 576 are drawn."""
    web = Dataset.from_documents("web", sized(40, (16,)), max_epochs=1)
    recipe = make_recipe(datasets=(web,), seq_len=16, total_steps=9, when_exhausted="pad")
    found = plan(recipe, estimates=estimates(known("web", 40, 17, error)))
    assert any(text.startswith("web: may end in this run") for text in found.warnings) == is_told


def test_warnings_name_what_cannot_be() -> None:
    documents = {"web": sized(400, (50,)), "tiny": sized(5, (900,)), "never": ["x"], "gone": ["y"]}
    only_web = {"web": 1, "tiny": 0, "never": 0, "gone": 0}
    stages = Stages({0: {"web": 1, "tiny": 1e-4, "never": 0, "gone": 1e-9}, 500: only_web})
    recipe = make_recipe(documents, stages, seq_len=128, total_steps=100)
    sizes = estimates(known("web", 400, 51), known("tiny", 5, 901), known("never", 1, 2), known("gone", 1, 2))
    text = "\n".join(plan(recipe, estimates=sizes).warnings)
    assert "tiny: its share is too small to be drawn: 5 tokens in the whole run are 0.0055 documents" in text
    assert "never: is never drawn: its share is 0 at every step" in text
    assert "gone: its weight 1e-09 at step 0 rounds to a share of 0" in text
    assert "the shares change at step 500, but the run has 100 steps" in text


def test_a_plan_without_estimates_says_what_is_unknown() -> None:
    found = plan(two_stages(), 10, rate=512)
    assert found.num_steps == 10
    assert found.hours == pytest.approx(10 / 3600)
    assert found["web"].epochs is None
    assert "web: its tokens are unknown, and so are its epochs and its end; measure them" in found.warnings
    assert "unknown" in str(found)


def test_two_plans_are_compared() -> None:
    sizes = estimates(known("web", 400, 51), known("code", 50, 21))
    recipe = two_stages()
    own = recipe.compile_schedule()
    other = ScheduleTable(own.names, (0, 80), (own.shares[0], own.shares[1]))
    found = plan(recipe, estimates=sizes).compare(plan(recipe, estimates=sizes, table=other))
    assert found.first_step == 50
    code = found.datasets[1]
    assert code.before is not None
    assert code.after is not None
    assert (code.before.tokens, code.after.tokens) == (6400, 2560)
    assert code.after.share == pytest.approx(0.05)
    assert code.after.epochs == pytest.approx(2560 / 1050)
    [table] = found.shown().tables
    assert table.row_count == 2


def test_json_and_text_hold_the_plan() -> None:
    sizes = estimates(known("web", 400, 51, 0.1), known("code", 50, 21))
    found = plan(two_stages(), estimates=sizes)
    data = json.loads(json.dumps(found.to_json()))
    assert data["datasets"][0]["epochs"]["value"] == pytest.approx(2.196, abs=1e-3)
    text = str(found)
    assert "2.2 (2 to 2.44)" in text
    assert "[50, 100)" in text
    assert text.isascii()


def test_a_recipe_file_is_planned_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    (tmp_path / "recipe.toml").write_text(
        'seed = 1\nglobal_batch_size = 2\ntotal_steps = 10\n[[datasets]]\nname = "a"\npath = "a.jsonl"\n'
        '[schedule]\nkind = "constant"\nweights = { a = 1 }\n'
        '[tokenize]\ntokenizer = "t"\n[packing]\nkind = "wrap"\nseq_len = 8\n'
    )
    assert plan(tmp_path / "recipe.toml")["a"].drawn_tokens == 160
    assert plan(tmp_path / "recipe.toml", 3)["a"].drawn_tokens == 48


def test_a_recipe_without_a_length_is_planned_for_the_steps_asked() -> None:
    late = {"kind": "wsd", "from": {"web": 1}, "to": {"web": 1, "code": 1}, "last": "20%", "blend": 0}
    recipe = make_recipe({"web": ["a"], "code": ["b"]}, late)
    assert plan(recipe, 50).asked_table.starts == (0, 40)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"steps": 1 << 41}, "a plan has at most 1,099,511,627,776 steps, got 2.2e"),
        ({"epochs": 1e300}, "a plan has at most"),
        ({"epochs": {"": 3}}, "`epochs` names '', which is no dataset; the datasets are web, code"),
        ({"epochs": float("nan")}, "`epochs` must be a number > 0, got nan"),
        ({"steps": 5, "rate": float("inf")}, "`rate` must be a number of tokens a second > 0, got inf"),
    ],
)
def test_what_no_run_has_is_refused(asked: dict[str, Any], message: str) -> None:
    sizes = estimates(known("web", 400, 50), known("code", 50, 20))
    with pytest.raises(ValueError, match=message):
        plan(two_stages(), estimates=sizes, **asked)


def test_what_stands_in_the_wrong_place_is_named_in_a_line() -> None:
    sizes: Any = estimates(known("web", 400, 50), known("code", 50, 20))
    for steps in (sizes, "10"):
        with pytest.raises(ValueError, match=r"`steps` must be a whole number >= 1, got .{4,40}$"):
            plan(two_stages(), steps)
    for epochs in ({"web": "x"}, "x", {}, 0):
        with pytest.raises(
            ValueError, match=r"`epochs` must be a number > 0, got .*; of one dataset a dict of one"
        ):
            plan(two_stages(), estimates=sizes, epochs=epochs)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"`estimates` of 'web' must be what .* got 20000.0; say the tokens"):
        plan(two_stages(), estimates={"web": 2e4})  # type: ignore[dict-item]


def test_two_plans_of_other_lengths_say_so() -> None:
    short, long = (plan(two_stages(), steps) for steps in (10, 90))
    told = str(short.compare(long))
    assert told.startswith("no share differs; tokens are of 10 steps before and 90 after\n")
    assert "tokens are of" not in str(short.compare(short))


def test_changes_far_away_do_not_spoil_the_near() -> None:
    stages = Stages({0: {"web": 1, "code": 0}, 10**15: {"web": 1, "code": 1}, 10**22: {"web": 0, "code": 1}})
    found = plan(make_recipe({"web": ["a"], "code": ["b"]}, stages, seq_len=16), 1 << 40)
    assert [d.drawn_tokens for d in found.datasets] == [4 * 16 << 40, 0]


def test_lanes_that_have_ended_draw_nothing() -> None:
    datasets = (Dataset.from_documents("web", sized(40, (30, 200)), max_epochs=1),)
    recipe = make_recipe(
        None, Stages({0: {"web": 1}}), datasets=datasets, when_exhausted="pad", total_steps=500
    )
    found = plan(recipe, estimates=estimates(known("web", 40, 116)))
    assert found.num_steps > 40 * 116 / found.tokens_per_step
    assert found["web"].drawn_tokens == 40 * 116


def test_what_only_some_lanes_have_is_given_to_the_others_when_it_is_read() -> None:
    datasets = tuple(
        Dataset.from_documents(name, sized(count, (100,)), max_epochs=1)
        for name, count in (("rare", 2), ("web", 100))
    )
    schedule = Stages({0: {"rare": 1, "web": 1}})
    recipe = make_recipe(None, schedule, datasets=datasets, when_exhausted="redistribute", total_steps=500)
    found = plan(recipe, estimates=estimates(known("rare", 2, 101), known("web", 100, 101)))
    assert found["rare"].drawn_tokens == pytest.approx(202, abs=found.tokens_per_step)
    assert found.ends_after is not None
    assert found.num_steps == pytest.approx(102 * 101 / found.tokens_per_step, rel=0.3)
