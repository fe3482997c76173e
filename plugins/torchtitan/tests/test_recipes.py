"""What the recipe leaves to the trainer, and what it must not contradict."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugins.torchtitan.tests.corpus import Corpus
from zephon import ALLOWANCES, Recipe
from zephon_torchtitan.recipes import TrainerValues, check_allowances, parse_setting, read_recipe

SHAPE = {"seq_len": 64, "global_batch_size": 8}


def values(corpus: Corpus, **changes: int) -> TrainerValues:
    """Returns the trainer's values."""
    return TrainerValues(**(SHAPE | changes), tokenizer=str(corpus.tokenizer))


def test_what_the_file_leaves_out_is_the_trainers(corpus: Corpus) -> None:
    recipe = read_recipe(str(corpus.recipe), (), values(corpus, seq_len=128, global_batch_size=24))
    assert recipe.packing.seq_len == 128
    assert recipe.global_batch_size == 24
    assert Path(recipe.tokenize.tokenizer) == corpus.tokenizer
    assert recipe.lanes == 8


def test_a_relative_tokenizer_of_the_trainer_starts_where_the_trainer_does(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(corpus.tokenizer.parent)
    recipe = read_recipe(str(corpus.recipe), (), TrainerValues(**SHAPE, tokenizer="tokenizer"))
    assert Path(recipe.tokenize.tokenizer) == corpus.tokenizer


def test_what_the_file_says_stays(corpus: Corpus, tmp_path: Path) -> None:
    path = corpus.write(
        tmp_path / "recipe.toml",
        top="global_batch_size = 8",
        tokenize='tokenizer = "mine"',
        packing='kind = "best_fit"\nseq_len = 64',
    )
    recipe = read_recipe(str(path), (), values(corpus))
    assert (recipe.global_batch_size, recipe.packing.seq_len, recipe.tokenize.tokenizer) == (8, 64, "mine")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"seq_len": 32},
            r"packing\.seq_len = 64 and the trainer --training\.seq_len 32; make them equal, or leave",
        ),
        (
            {"global_batch_size": 16},
            r"global_batch_size = 8 and the trainer --training\.global_batch_size 16",
        ),
    ],
)
def test_a_contradiction_names_both_values(
    corpus: Corpus, tmp_path: Path, change: dict[str, int], message: str
) -> None:
    path = corpus.write(
        tmp_path / "recipe.toml", top="global_batch_size = 8", packing='kind = "wrap"\nseq_len = 64'
    )
    with pytest.raises(ValueError, match=message):
        read_recipe(str(path), (), values(corpus, **change))


def test_settings_stand_over_the_file_and_must_not_contradict_either(corpus: Corpus) -> None:
    settings = ("seed=11", "datasets.short.path=/data/short.jsonl", "lanes=4")
    recipe = read_recipe(str(corpus.recipe), settings, values(corpus))
    assert (recipe.seed, recipe.lanes) == (11, 4)
    assert recipe.datasets[0].paths == ("/data/short.jsonl",)
    with pytest.raises(ValueError, match="seq_len = 32"):
        read_recipe(str(corpus.recipe), ("packing.seq_len=32",), values(corpus))


def test_a_function_gives_a_whole_recipe(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "global_batch_size": 8,
        "packing.seq_len": 64,
        "tokenize.tokenizer": str(corpus.tokenizer),
    }
    (tmp_path / "given_by_function.py").write_text(
        "import zephon\n\n\ndef make():\n"
        f"    return zephon.Recipe.from_toml({str(corpus.recipe)!r}, settings={settings!r})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    recipe = read_recipe("given_by_function:make", (), values(corpus))
    same = read_recipe(str(corpus.recipe), (), values(corpus))
    assert isinstance(recipe, Recipe)
    assert recipe.fingerprint() == same.fingerprint()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed=3", ("seed", 3)),
        ("datasets.web.path=data/web", ("datasets.web.path", "data/web")),
        ("a=b=c", ("a", "b=c")),
        ('tokenize.eos="</s>"', ("tokenize.eos", "</s>")),
        ("tokenize.eos=true", ("tokenize.eos", True)),
        (" seed = 3", ("seed", 3)),
        ("weights={ a = 1 }", ("weights", {"a": 1})),
    ],
)
def test_a_setting_is_toml_where_it_can_be(text: str, expected: tuple[str, object]) -> None:
    assert parse_setting(text) == expected


@pytest.mark.parametrize("text", ["seed", "=3", ""])
def test_a_setting_without_a_name_or_a_value(text: str) -> None:
    with pytest.raises(ValueError, match="takes NAME=VALUE"):
        parse_setting(text)


def test_an_allowance_is_one_that_a_restore_knows() -> None:
    check_allowances(())
    check_allowances(ALLOWANCES)
    with pytest.raises(ValueError, match=r"`allow` takes data, held_out, .*, got 'dta'"):
        check_allowances(("data", "dta"))


def test_no_recipe_at_all(corpus: Corpus) -> None:
    with pytest.raises(ValueError, match=r"set --dataloader\.recipe"):
        read_recipe("", (), values(corpus))
