"""What would spoil a run ends it before it begins: on all ranks, with one report, within seconds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from plugins.torchtitan.tests.corpus import LONG, Corpus, write_jsonl, write_tokenizer
from plugins.torchtitan.tests.fixtures import Titan
from plugins.torchtitan.tests.ranks import Job

REFUSED = "the run is refused"


def check_refused(job: Job, *parts: str, num_tracebacks: int = 0) -> None:
    """Fails unless every rank ended with 3, untrained, and one of them said `parts` in one report."""
    assert set(job.codes) == {3}, f"exit codes {job.codes}\n{job.tail()}"
    assert job.log.count(REFUSED) == 1, job.tail()
    report = job.log.partition(REFUSED)[2]
    for part in parts:
        assert part in report, f"{part!r} is not in the report:\n{report}"
    assert job.log.count("Traceback") == num_tracebacks, job.tail()
    assert not job.losses
    assert not job.digests
    assert job.wall_s < 100


CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "seq_len": (
        {"packing": 'kind = "wrap"\nseq_len = 32'},
        ("packing.seq_len = 32", "--training.seq_len 64"),
    ),
    "global_batch_size": (
        {"top": "global_batch_size = 16"},
        ("global_batch_size = 16", "--training.global_batch_size 8"),
    ),
    "lanes": ({"lanes": 1}, ("1", "2", "lanes")),
    "field": ({"top": "sede = 1"}, ("sede", "seed")),
    "weights": ({"weights": {0: {"short": 1, "lang": 1}}}, ("lang", "long")),
    "eos": ({"eos": "</end>"}, ("</end>",)),
    "pad": (
        {"top": 'when_exhausted = "pad"', "more": dict.fromkeys(("short", "long"), "max_epochs = 1")},
        ('when_exhausted = "pad"', '"redistribute"'),
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_a_recipe_that_does_not_fit_the_job(titan: Titan, tmp_path: Path, name: str) -> None:
    changes, parts = CASES[name]
    recipe = titan.corpus.write(tmp_path / "recipe.toml", **changes)
    check_refused(titan.run(2, tmp_path / "dump", "--dataloader.recipe", str(recipe)), *parts)


def test_a_recipe_that_is_not_there(titan: Titan, tmp_path: Path) -> None:
    missing = str(tmp_path / "no.toml")
    check_refused(titan.run(2, tmp_path / "dump", "--dataloader.recipe", missing), missing)


def test_an_allowance_that_no_restore_knows(titan: Titan, tmp_path: Path) -> None:
    job = titan.run(2, tmp_path, "--dataloader.allow", "data", "dta")
    check_refused(job, "`allow` takes data, ", "got 'dta'")


def test_a_dataset_whose_file_is_missing(titan: Titan, tmp_path: Path) -> None:
    missing = str(tmp_path / "gone.jsonl")
    setting = ("--dataloader.set", f"datasets.long.path={missing}")
    check_refused(titan.run(2, tmp_path / "dump", *setting), missing, "long")


def test_a_tokenizer_that_is_not_the_trainers(titan: Titan, tmp_path: Path) -> None:
    other = write_tokenizer(tmp_path / "swapped", swapped="eo")
    recipe = titan.corpus.write(tmp_path / "recipe.toml", tokenize=f'tokenizer = "{other}"')
    job = titan.run(2, tmp_path / "dump", "--dataloader.recipe", str(recipe))
    check_refused(job, str(other), str(titan.corpus.tokenizer))


def test_a_vocabulary_that_is_larger_than_the_models(titan: Titan, tmp_path: Path) -> None:
    large = write_tokenizer(tmp_path / "large", num_more=100)
    job = titan.run(2, tmp_path / "dump", "--hf-assets-path", str(large))
    check_refused(job, "358", "320")
    assert "Building" not in job.log  # what TorchTitan logs ahead of the model


def test_a_tokenizer_that_is_not_there(titan: Titan, tmp_path: Path) -> None:
    recipe = titan.corpus.write(tmp_path / "recipe.toml", tokenize=f'tokenizer = "{titan.corpus.tokenizer}"')
    missing = str(tmp_path / "none")
    arguments = ("--dataloader.recipe", str(recipe), "--hf-assets-path", missing)
    check_refused(titan.run(2, tmp_path / "dump", *arguments), "--hf-assets-path", missing)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ((), ("validation has no set", "--validator.dataloader.recipes")),
        (("--validator.dataloader.recipes", "web", "no.toml"), ("no.toml",)),
        (("--validator.dataloader.dataset", "c4"), ("validation takes no `dataset`", "recipes")),
    ],
    ids=["none", "missing", "dataset"],
)
def test_validation_sets_that_are_not_there(
    titan: Titan, tmp_path: Path, arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    check_refused(titan.run(2, tmp_path, "--validator.enable", *arguments), *parts)


def test_a_validation_set_whose_file_is_missing(titan: Titan, tmp_path: Path) -> None:
    missing = str(tmp_path / "gone.jsonl")
    own = titan.corpus.write(tmp_path / "own.toml", paths=titan.corpus.file.paths | {"long": missing})
    sets = ("--validator.enable", "--validator.dataloader.recipes", "own", str(own))
    check_refused(titan.run(2, tmp_path / "dump", *sets), missing, "long", "on:   all ranks")


def test_the_documents_that_others_hold_out_are_not_held_out_of_them(titan: Titan, tmp_path: Path) -> None:
    more = {"short": 'holdout = { documents = 60, seed = 3, part = "valid" }'}
    recipe = titan.corpus.write(tmp_path / "recipe.toml", more=more)
    job = titan.run(2, tmp_path / "dump", "--dataloader.recipe", str(recipe), "--validator.enable")
    check_refused(job, "validation has no set")


def test_a_file_that_one_rank_alone_cannot_read(titan: Titan, tmp_path: Path) -> None:
    (tmp_path / "rank_1").mkdir()
    write_jsonl(tmp_path / "rank_0" / "long.jsonl", LONG)
    job = run_on_files_of_ranks(titan, tmp_path)
    check_refused(job, "rank_1", "on:   ranks 1")


def test_a_file_that_another_rank_sees_otherwise(titan: Titan, tmp_path: Path) -> None:
    for rank in range(2):
        write_jsonl(tmp_path / f"rank_{rank}" / "long.jsonl", [*LONG, f"the word of rank {rank}"])
    job = run_on_files_of_ranks(titan, tmp_path)
    check_refused(job, "data.long is not the same on every rank", "on:   ranks 1")
    assert job.log.count("is not the same on every rank") == 1
    hashes = re.findall(r'got: +"([0-9a-f]{32,})\S* on rank 0, "([0-9a-f]{32,})\S* here', job.log)
    assert len(hashes) == 1
    assert len(set(hashes[0])) == 2


def run_on_files_of_ranks(titan: Titan, folder: Path) -> Job:
    """Returns how a job ended of which each rank has a `long` of its own."""
    paths = titan.corpus.file.paths | {"long": "${DATA_OF_RANK}/long.jsonl"}
    recipe = titan.corpus.write(folder / "recipe.toml", paths=paths)
    return titan.run(
        2,
        folder / "dump",
        "--dataloader.recipe",
        str(recipe),
        environment=lambda rank: {"DATA_OF_RANK": str(folder / f"rank_{rank}")},
    )


def whole(corpus: Corpus, path: Path, **changes: object) -> Path:
    """Writes a recipe that leaves nothing to the trainer."""
    shape = {"top": "global_batch_size = 8", "packing": 'kind = "wrap"\nseq_len = 64'}
    return corpus.write(path, tokenize=f'tokenizer = "{corpus.tokenizer}"', **(shape | changes))


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"seed": 8}, ("seed is not the same on every rank", "7 on rank 0, 8 here")),
        ({"weights": {0: {"short": 1, "long": 1}}}, ("schedule is not the same on every rank",)),
    ],
    ids=["seed", "schedule"],
)
def test_a_recipe_that_another_rank_sees_otherwise(
    titan: Titan, tmp_path: Path, change: Mapping[str, object], parts: tuple[str, ...]
) -> None:
    recipes = [
        whole(titan.corpus, tmp_path / f"{rank}.toml", **(change if rank else {})) for rank in range(2)
    ]
    check_refused(run_recipe_of(titan, tmp_path / "dump", "of_rank", recipes.__getitem__), *parts)


@pytest.mark.parametrize(
    ("name", "last_line"),
    [
        ("without_a_package", "ModuleNotFoundError: No module named 'package_of_one_node'"),
        ("without_words", "RuntimeError: no node is left"),
    ],
)
def test_a_recipe_that_fails_on_one_rank_alone(
    titan: Titan, tmp_path: Path, name: str, last_line: str
) -> None:
    recipe = whole(titan.corpus, tmp_path / "recipe.toml")
    job = run_recipe_of(titan, tmp_path / "dump", name, lambda _: recipe)
    check_refused(job, f"\n{last_line}\n  on:   ranks 1", num_tracebacks=1)


def run_recipe_of(titan: Titan, dump: Path, name: str, path: Callable[[int], Path]) -> Job:
    """Returns how a job ended on a recipe that is a function of `given.py`."""
    recipe = f"plugins.torchtitan.tests.given:{name}"
    return titan.run(
        2,
        dump,
        "--dataloader.recipe",
        recipe,
        environment=lambda rank: {"RECIPE_OF_RANK": str(path(rank))},
    )
