"""The report of what several ranks found, and the check of tokenizers."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer

from plugins.torchtitan.tests.corpus import Corpus, write_tokenizer
from zephon import CheckError, Opened, open_recipe
from zephon_torchtitan.launch import (
    REFUSED,
    check_rank,
    check_tokenizer,
    check_vocabulary,
    report,
    together,
)
from zephon_torchtitan.recipes import TrainerValues, read_recipe


def opened(corpus: Corpus, *settings: str) -> Opened:
    """Returns the recipe, opened."""
    values = TrainerValues(seq_len=64, global_batch_size=8, tokenizer=str(corpus.tokenizer))
    return open_recipe(read_recipe(str(corpus.recipe), settings, values))


def test_a_fault_of_one_process_stands_alone() -> None:
    assert report([["x is wrong"]]) == "the run is refused\nx is wrong"


def test_a_fault_that_several_ranks_have_is_said_once() -> None:
    lines = report([["a"], ["a", "b"], ["a"], ["b"]]).splitlines()
    assert lines == [
        "the run is refused",
        "a",
        "  on:   ranks 0, 1, 2",
        "b",
        "  on:   ranks 1, 3",
    ]
    assert report([["a"], ["a"]]).splitlines()[1:] == ["a", "  on:   all ranks"]


def test_together_gives_what_was_made() -> None:
    assert together(lambda: 3) == 3


def test_together_ends_with_the_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> None:
        raise ValueError("x must be y")

    with pytest.raises(SystemExit) as ended:
        together(refuse)
    assert ended.value.code == REFUSED
    assert capsys.readouterr().err == "the run is refused\nx must be y\n"


def test_of_an_error_without_words_together_reports_where_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    def bug() -> None:
        raise AssertionError

    with pytest.raises(SystemExit) as ended:
        together(bug)
    assert ended.value.code == REFUSED
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["the run is refused", "Traceback (most recent call last):"]
    assert "in bug" in lines[-3]
    assert lines[-1] == "AssertionError"


@pytest.mark.parametrize("settings", [(), ("tokenize.bos=<s>",), ("tokenize.eos=false",)])
def test_the_same_tokenizer_is_accepted_whatever_the_recipe_adds(
    corpus: Corpus, settings: tuple[str, ...]
) -> None:
    underlying = Tokenizer.from_file(str(corpus.tokenizer / "tokenizer.json"))
    with closing(opened(corpus, *settings)) as found:
        check_tokenizer(found, SimpleNamespace(tokenizer=underlying))
        check_tokenizer(found, None)


def test_another_tokenizer_is_refused_with_both(corpus: Corpus, tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "swapped", swapped="Th")
    other = Tokenizer.from_file(str(folder / "tokenizer.json"))
    theirs = SimpleNamespace(tokenizer=other, tokenizer_path=str(folder))
    with closing(opened(corpus)) as found, pytest.raises(ValueError, match="is not the trainer's") as caught:
        check_tokenizer(found, theirs)
    assert str(corpus.tokenizer) in str(caught.value)
    assert str(folder) in str(caught.value)


def test_check_rank_raises_all_errors_at_once(corpus: Corpus) -> None:
    values = TrainerValues(seq_len=64, global_batch_size=8, tokenizer=str(corpus.tokenizer))
    recipe = read_recipe(str(corpus.recipe), ("datasets.long.path=gone.jsonl",), values)
    with pytest.raises(CheckError, match=r"gone\.jsonl") as caught:
        check_rank(recipe, 3, 2, probe_s=0.1)
    assert "lanes" in str(caught.value)
    fits = read_recipe(str(corpus.recipe), (), values)
    assert check_rank(fits, 2, 2, probe_s=0.1).vocab_size == 258


@pytest.mark.parametrize("model", [SimpleNamespace(), SimpleNamespace(vocab_size=-1)])
def test_a_model_that_does_not_say_its_vocabulary_is_not_compared(model: object) -> None:
    check_vocabulary(258, model)


def test_the_last_id_of_a_tokenizer_must_be_in_the_models_vocabulary() -> None:
    check_vocabulary(258, SimpleNamespace(vocab_size=258))
    with pytest.raises(ValueError, match="has 258 ids and the model's vocabulary 257; take"):
        check_vocabulary(258, SimpleNamespace(vocab_size=257))
