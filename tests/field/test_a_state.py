"""A1-A3: thirty restores are one run, every document comes once, no end of an epoch is special."""

from __future__ import annotations

import random
import re
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from tests.elastic.endings import Leg, run_leg
from tests.field.corpora import FORMATS, POLICIES, dataset_of, documents_of, open_here, recipe_of
from tests.helpers import words
from zephon.batch import Batch
from zephon.dataset import Dataset
from zephon.opened import Opened
from zephon.recipe import Recipe
from zephon.stages import Stages

LINKS = 30
WORLDS = (1, 2, 4)


@pytest.mark.parametrize(
    ("ending", "kind"),
    [*product(("endless", "pad"), ("wrap", "best_fit")), ("stop", "wrap"), ("redistribute", "best_fit")],
)
def test_thirty_restores_on_other_ranks_are_one_run(tmp_path: Path, kind: str, ending: str) -> None:
    """The data are opened anew at each restore; epochs of 64, 48 and 5 documents end in all of them."""
    max_epochs = None if ending == "endless" else 5
    datasets = (
        dataset_of(tmp_path, "web", words("web", 64), "jsonl", max_epochs=max_epochs),
        dataset_of(tmp_path, "code", words("code", 48, (1, 4)), "parquet", max_epochs=max_epochs),
        dataset_of(tmp_path, "notes", words("note", 5, (2, 9)), "memory", max_epochs=max_epochs),
    )
    weights = {"web": 6, "code": 6, "notes": 1}
    recipe = recipe_of(
        tmp_path,
        *datasets,
        schedule=Stages({0: weights, 9: weights | {"code": 0}, 20: weights | {"notes": 2}}),
        kind=kind,
        options={"pool_documents": 4} if kind == "best_fit" else {},
        lanes=4,
        when_exhausted="stop" if ending == "endless" else ending,
    )
    chance = random.Random(7)
    steps: list[str] = []
    leg = Leg(1, states=[{}])
    for _ in range(LINKS):
        state = leg.states[-1] or None
        leg = run_leg(open_here(recipe), chance.choice(WORLDS), state, chance.choice((1, 2, 3)))
        steps += leg.digests
    rest = run_leg(open_here(recipe), 2, leg.states[-1], num_steps=0 if ending == "endless" else 1000)
    steps += rest.digests
    whole = run_leg(open_here(recipe), num_steps=len(steps) if ending == "endless" else 1000)
    assert steps == whole.digests
    assert len(set(steps)) == len(steps) > 50
    assert whole.ended == rest.ended == (ending != "endless")


@pytest.mark.parametrize("form", FORMATS)
def test_a_short_chain_of_short_documents(tmp_path: Path, form: str) -> None:
    """100 documents of one row each, 4 a step: three steps, save, load, and so on, five times."""
    opened = open_here(numbers(tmp_path, form))
    expected = run_leg(opened, num_steps=15).digests
    state, found = None, []
    for link in range(5):
        leg = run_leg(opened, WORLDS[link % 3], state, 3)
        found += leg.digests
        state = leg.states[-1]
    assert found == expected
    assert len(set(found)) == 15


def numbers(folder: Path, form: str, max_epochs: int | None = None) -> Recipe:
    """Returns the recipe of 100 documents, 00 to 99, each of which fills a row."""
    documents = [f"{i:02}" for i in range(100)]
    web = dataset_of(folder, "web", documents, form, max_epochs=max_epochs)
    return recipe_of(folder, web, seq_len=2, eos=False)


@pytest.mark.parametrize("form", FORMATS)
def test_a_state_at_the_end_of_an_epoch(tmp_path: Path, form: str) -> None:
    """Two epochs of 25 steps; one step before the end of each, at it and one after it."""
    opened = open_here(numbers(tmp_path, form, max_epochs=2))
    whole = run_leg(opened)
    assert len(whole.steps) == 50
    once = Counter({f"{i:02}": 1 for i in range(100)})
    assert documents_of(opened, whole.steps[:25])["web"] == once
    assert documents_of(opened, whole.steps[25:])["web"] == once
    for step, world in ((24, 1), (25, 2), (25, 4), (26, 4), (49, 2), (50, 4)):
        rest = run_leg(opened, world, whole.states[step])
        assert rest.digests == whole.digests[step:]
        assert rest.ended


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", ["wrap", "best_fit"])
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_every_document_comes_once_a_pass(
    tmp_path: Path, form: str, kind: str, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """80 documents of 8 tokens, twice; what the last line says is unread, and nothing else, did not come."""
    documents = [f"doc {i:03}" for i in range(80)]
    web = dataset_of(tmp_path, "web", documents, form, num_files=1, max_epochs=2)
    recipe = recipe_of(
        tmp_path,
        web,
        kind=kind,
        options={"pool_documents": 5} if kind == "best_fit" else {},
        seq_len=20,
        when_exhausted=policy,
    )
    opened = open_here(recipe)
    whole = run_leg(opened)
    for world in WORLDS:
        for step in (0, len(whole.steps) // 2 + 1):
            caplog.clear()
            with caplog.at_level("INFO", logger="zephon"):
                rest = run_leg(opened, world, whole.states[step] if step else None)
            assert rest.digests == whole.digests[step:]
            check_unread(opened, whole.steps[:step] + rest.steps, documents, policy, caplog.messages, world)


def check_unread(
    opened: Opened,
    steps: list[list[Batch]],
    documents: list[str],
    policy: str,
    messages: list[str],
    world: int,
) -> None:
    """Refuses a pass whose unread documents are not those that the ranks' last lines count."""
    lines = [line for line in messages if line.startswith("the data end after")]
    assert len(lines) == world
    said = [re.search(r"in documents: web (\d+); in tokens that packers hold: (\d+)", line) for line in lines]
    unread = sum(int(found[1]) for found in said if found)
    held = sum(int(found[2]) for found in said if found)
    came = documents_of(opened, steps)["web"]
    complete = sum(n for text, n in came.items() if text.endswith(">"))
    assert set(came.values()) <= {1, 2}
    assert {text[:-1] for text in came if text.endswith(">")} <= set(documents)
    if policy == "pad":
        assert came == Counter({text + ">": 2 for text in documents})
        assert (unread, held) == (0, 0)
    elif opened.recipe.packing.kind == "wrap":
        assert (complete, held) == (160 - unread, 0)
    else:  # documents are not cut: those that did not come are unread, or whole in a pool
        assert sum(came.values()) == complete
        assert 8 * (160 - unread - complete) == held


def test_two_datasets_of_the_same_texts_both_come_once(tmp_path: Path) -> None:
    documents = words("same", 30)
    recipe = recipe_of(
        tmp_path,
        dataset_of(tmp_path, "web", documents, "jsonl", max_epochs=1),
        dataset_of(tmp_path, "copy", documents, "parquet", max_epochs=1),
        when_exhausted="pad",
    )
    opened = open_here(recipe)
    came = documents_of(opened, run_leg(opened, 2).steps)
    assert came == {name: Counter(text + ">" for text in documents) for name in ("web", "copy")}


def test_an_evaluation_gives_every_document_once_on_any_ranks(tmp_path: Path) -> None:
    documents = words("web", 37)
    recipe = recipe_of(tmp_path, dataset_of(tmp_path, "web", documents, "jsonl")).evaluation()
    opened = open_here(recipe)
    for world in WORLDS:
        leg = run_leg(opened, world)
        assert documents_of(opened, leg.steps)["web"] == Counter(text + ">" for text in documents)


def test_datasets_that_are_described_alike_are_equal() -> None:
    """What `dataset_of` makes in memory is what the public constructor does."""
    assert dataset_of(Path(), "web", ["a"], "memory", max_epochs=1) == Dataset.from_documents(
        "web", ["a"], max_epochs=1
    )
