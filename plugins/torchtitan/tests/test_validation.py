"""Validation on a set of its own and on held-out documents: the same losses on any ranks."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from plugins.torchtitan.tests.corpus import GLOBAL_BATCH_SIZE, SEQ_LEN, SHORT, STEPS, words, write_jsonl
from plugins.torchtitan.tests.fixtures import Titan
from plugins.torchtitan.tests.ranks import Job
from zephon import Loader, LoaderOptions, Recipe, digest, open_recipe, step_digest

NUM_HELD_OUT = 21
OTHERS = {"near": words("near", 37, (1, 2, 5)), "far": words("far", 9, (30,))}
VALIDATION = "validation_metrics/"
SETS = ("own/", "held_out/")
PARTS = ("", *SETS, "own/near/", "own/far/", "held_out/short/")


@pytest.fixture(scope="module")
def arguments(titan: Titan, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Returns the arguments of a run that validates on both kinds of sets after steps 1, 4 and 8."""
    folder = tmp_path_factory.mktemp("validation")
    holdout = {"short": f"holdout = {{ documents = {NUM_HELD_OUT}, seed = 3 }}"}
    recipe = titan.corpus.write(folder / "recipe.toml", more=holdout)
    paths = {name: str(write_jsonl(folder / f"{name}.jsonl", texts)) for name, texts in OTHERS.items()}
    own = titan.corpus.write(folder / "own.toml", weights={0: dict.fromkeys(paths, 1)}, paths=paths)
    sets = ("--validator.dataloader.recipes", "own", str(own))
    return ["--dataloader.recipe", str(recipe), "--validator.enable", "--validator.freq", "4", *sets]


@pytest.fixture(scope="module")
def one(titan: Titan, seeded: list[str], arguments: list[str]) -> Job:
    """Returns the run of one rank."""
    return titan.run(1, "validated_1", *seeded, *arguments).ok()


@pytest.mark.parametrize(
    ("ranks", "local"),
    [(2, 2), pytest.param(4, 1, marks=pytest.mark.full), pytest.param(2, 4, marks=pytest.mark.full)],
)
def test_losses_are_equal_on_any_ranks(
    titan: Titan, seeded: list[str], arguments: list[str], one: Job, ranks: int, local: int
) -> None:
    size = ("--training.local-batch-size", str(local))
    job = titan.run(ranks, f"validated_{ranks}_{local}", *seeded, *arguments, *size).ok()
    assert job.digests == one.digests
    for part in PARTS:
        losses = job.scalars[f"{VALIDATION}{part}loss"]
        assert list(losses) == [1, 4, 8]
        assert losses == pytest.approx(one.scalars[f"{VALIDATION}{part}loss"], abs=1e-5)
        if part:
            tokens = f"{VALIDATION}{part}tokens"
            assert job.scalars[tokens] == one.scalars[tokens]


@pytest.mark.full
def test_the_first_global_batches_of_each_dataset(
    titan: Titan, seeded: list[str], arguments: list[str]
) -> None:
    limit = (*seeded, *arguments, "--validator.steps", "1", "--training.steps", "4")
    jobs = [titan.run(ranks, f"limited_{ranks}", *limit).ok() for ranks in (1, 2)]
    for part in PARTS[3:]:
        tokens, loss = (
            [job.scalars[f"{VALIDATION}{part}{what}"] for job in jobs] for what in ("tokens", "loss")
        )
        assert tokens[0] == tokens[1]
        assert 0 < tokens[0][4] <= GLOBAL_BATCH_SIZE * SEQ_LEN
        assert loss[0] == pytest.approx(loss[1], abs=1e-5)


def test_every_document_counts_once(one: Job) -> None:
    """A document of n letters has n labels, but for those at the ends of rows."""
    for name, texts in OTHERS.items():
        letters = sum(len(text) for text in texts)
        tokens = one.scalars[f"{VALIDATION}own/{name}/tokens"]
        assert set(tokens.values()) == {tokens[1]}
        rows = letters // 64 + 8  # at most
        assert letters - rows <= tokens[1] <= letters


def test_a_set_weighs_its_datasets_by_their_tokens(one: Job) -> None:
    for step in (1, 4, 8):
        loss = {part: one.scalars[f"{VALIDATION}{part}loss"][step] for part in PARTS}
        tokens = {part: one.scalars[f"{VALIDATION}{part}tokens"][step] for part in PARTS if part}
        for whole, parts in (("own/", ("own/near/", "own/far/")), ("", SETS)):
            total = sum(tokens[part] for part in parts)
            mean = sum(loss[part] * tokens[part] for part in parts) / total
            assert loss[whole] == pytest.approx(mean, abs=1e-5)
    assert loss[""] < one.scalars[f"{VALIDATION}loss"][1]  # it learns


def test_a_set_without_a_label_is_named(titan: Titan, tmp_path: Path) -> None:
    paths = {"letters": str(write_jsonl(tmp_path / "letters.jsonl", "abcdefgh" * 8))}
    own = titan.corpus.write(tmp_path / "own.toml", weights={0: {"letters": 1}}, paths=paths, eos=False)
    sets = ("--validator.enable", "--validator.dataloader.recipes", "own", str(own))
    job = titan.run(2, tmp_path / "dump", *sets, "--training.steps", "2")
    assert 0 not in job.codes
    for log in job.logs:
        assert "validation set 'own', dataset 'letters': no token has a label" in log, job.tail()
        assert "ZeroDivisionError" not in log


def test_validation_does_not_touch_training(
    titan: Titan, seeded: list[str], arguments: list[str], one: Job
) -> None:
    without = titan.run(1, "not_validated", *seeded, *arguments[:2]).ok()
    assert without.digests == one.digests
    assert without.losses == one.losses


def test_held_out_documents_are_validated_on_and_never_trained_on(one: Job) -> None:
    recipe = Recipe.from_toml(str(one.dump / "data" / "recipe.toml"))
    trained, digests = _read(recipe, STEPS)
    assert digests == one.digests  # so what is read here is what was trained on
    (short, _) = recipe.datasets
    assert short.held_out is not None
    valid = replace(short, held_out=replace(short.held_out, part="valid"))
    held_out, _ = _read(replace(recipe, datasets=(valid,)).evaluation(), None)
    assert len(held_out) == NUM_HELD_OUT
    names = {text.strip().split()[0] for text in SHORT}
    assert held_out < names
    assert len(trained & names) > 30
    assert not trained & held_out


def _read(recipe: Recipe, num_steps: int | None) -> tuple[set[str], dict[int, str]]:
    """Returns the whole words of so many steps, or of all, and the digests of the steps."""
    digests: dict[int, str] = {}
    text_of_lane: dict[int, str] = {}
    with (
        closing(open_recipe(recipe)) as opened,
        Loader(opened, LoaderOptions(executor="inline")) as loader,
    ):
        for batch in islice(loader, num_steps):
            digests[batch.step] = step_digest(digest(batch))
            for lane, row in zip(batch.lanes.tolist(), batch.inputs, strict=True):
                text_of_lane[lane] = text_of_lane.get(lane, "") + opened.encoder.decode(row)
    return {word for text in text_of_lane.values() for word in re.findall(r"[a-z]+\d+(?= )", text)}, digests
