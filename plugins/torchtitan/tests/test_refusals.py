"""What would spoil a run ends it before it begins: on all ranks, with one report, within seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plugins.torchtitan.tests.corpus import LONG, write_jsonl, write_tokenizer
from plugins.torchtitan.tests.fixtures import Titan
from plugins.torchtitan.tests.ranks import Job

REFUSED = "the run is refused"


def check_refused(job: Job, *parts: str, code: int = 3) -> None:
    """Fails unless every rank ended with `code`, untrained, and one of them said `parts` in one report."""
    assert set(job.codes) == {code}, f"exit codes {job.codes}\n{job.tail()}"
    assert job.log.count(REFUSED) == 1, job.tail()
    report = job.log.partition(REFUSED)[2]
    for part in parts:
        assert part in report, f"{part!r} is not in the report:\n{report}"
    assert "Traceback" not in job.log, job.tail()
    assert not job.losses
    assert not job.digests
    assert job.wall_s < 45


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
}


@pytest.mark.parametrize("name", list(CASES))
def test_a_recipe_that_does_not_fit_the_job(titan: Titan, tmp_path: Path, name: str) -> None:
    changes, parts = CASES[name]
    recipe = titan.corpus.write(tmp_path / "recipe.toml", **changes)
    check_refused(titan.run(2, tmp_path / "dump", "--dataloader.recipe", str(recipe)), *parts)


def test_a_recipe_that_is_not_there(titan: Titan, tmp_path: Path) -> None:
    missing = str(tmp_path / "no.toml")
    check_refused(titan.run(2, tmp_path / "dump", "--dataloader.recipe", missing), missing)


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
    check_refused(titan.run(2, tmp_path / "dump", "--hf-assets-path", str(large)), "358", "320")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ((), ("validation has no set", "--validator.dataloader.recipes")),
        (("--validator.dataloader.recipes", "web", "no.toml"), ("no.toml",)),
    ],
    ids=["none", "missing"],
)
def test_validation_sets_that_are_not_there(
    titan: Titan, tmp_path: Path, arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    check_refused(titan.run(2, tmp_path, "--validator.enable", *arguments), *parts)


def test_a_file_that_one_rank_alone_cannot_read(titan: Titan, tmp_path: Path) -> None:
    (tmp_path / "rank_1").mkdir()
    write_jsonl(tmp_path / "rank_0" / "long.jsonl", LONG)
    paths = titan.corpus.file.paths | {"long": "${DATA_OF_RANK}/long.jsonl"}
    recipe = titan.corpus.write(tmp_path / "recipe.toml", paths=paths)
    job = titan.run(
        2,
        tmp_path / "dump",
        "--dataloader.recipe",
        str(recipe),
        environment=lambda rank: {"DATA_OF_RANK": str(tmp_path / f"rank_{rank}")},
    )
    check_refused(job, "rank_1", "on:   ranks 1")
