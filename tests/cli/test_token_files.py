"""The command line on documents that are token ids: what init finds, what check says, what show decodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tests.helpers import write_tokenizer
from tests.token_data import (
    flat,
    ids_of,
    offsets_of,
    write_bin,
    write_jsonl,
    write_megatron,
    write_npy,
    write_parquet,
)
from zephon.cli import build_app
from zephon.cli.discover import find_datasets
from zephon.errors import DataError
from zephon.recipe import Recipe

pytestmark = pytest.mark.usefixtures("probed_once")

TEXTS = [f"document {i} says {i * i}" for i in range(90)]
IDS = ids_of(TEXTS)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(build_app(), list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_init_writes_a_recipe_that_check_and_show_take(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    write_bin(tmp_path / "all" / "pages", IDS)
    write_npy(tmp_path / "all" / "books", IDS, "int32")
    write_megatron(tmp_path / "all" / "code", IDS)
    write_parquet(tmp_path / "all" / "chats", IDS, pa.list_(pa.int32()))
    write_jsonl(tmp_path / "all" / "lines", IDS)
    recipe = tmp_path / "recipe.toml"
    said = run("init", str(tmp_path / "all"), "--out", str(recipe), "--tokenizer", str(tmp_path))
    assert "documents: token ids of 2 bytes, as the last offset says" in said
    made = {dataset.name: dataset for dataset in Recipe.from_toml(recipe).datasets}
    assert {name: (d.tokens, d.dtype) for name, d in made.items()} == {
        "books": ("", ""), "chats": ("input_ids", ""), "code": ("", ""), "lines": ("ids", ""),
        "pages": ("", "uint16"),
    }  # fmt: skip
    assert "no BOS or EOS is added" in recipe.read_text()
    fewer = (
        "--set",
        "global_batch_size=4",
        "--set",
        "packing.seq_len=64",
        "--cache",
        str(tmp_path / "cache"),
    )
    report = json.loads(run("check", str(recipe), *fewer, "--json"))
    assert report["ok"]
    facts = {dataset["name"]: dataset["tokens_per_document"] for dataset in report["datasets"]}
    assert facts == dict.fromkeys(made, sum(map(len, IDS)) / len(IDS))
    shown = json.loads(run("show", str(recipe), *fewer, "--json"))
    pieces = [piece for row in shown["rows"] for piece in row["pieces"] if not piece["offset"]]
    assert pieces
    for piece in pieces:
        assert f"{TEXTS[piece['record']]}</s>".startswith(piece["text"])


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda folder: flat(IDS, "uint16").tofile(folder / "a.bin"), "a.bin has no offsets"),
        (lambda folder: np.save(folder / "a.npy", flat(IDS, "int32")), "a.npy has no offsets"),
        (lambda folder: np.save(folder / "a.offsets.npy", offsets_of(IDS)), "has no offsets"),
        (lambda folder: write_parquet(folder, IDS, pa.list_(pa.float32())), "or in `tokens`"),
    ],
)
def test_init_says_why_it_found_nothing_and_the_cure(write: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write(tmp_path / "data")
    with pytest.raises(DataError) as caught:
        find_datasets([str(tmp_path / "data")])
    assert message in str(caught.value)
    assert "cure: write" in str(caught.value)


def test_init_takes_text_where_there_is_any(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a", "input_ids": [1]}) + "\n")
    [found], _ = find_datasets([str(tmp_path / "a.jsonl")])
    assert (found.text, found.tokens) == ("text", "")


@pytest.mark.parametrize(
    ("records", "tokens"),
    [
        ([{"labels": [1], "input_ids": [1, 2]}, {"labels": [], "input_ids": []}], "input_ids"),
        ([{"codes": [1, 2], "score": 0.5}], "codes"),
        ([{"codes": [1], "more": [2]}], None),
        ([{"codes": [1.5]}], None),
        ([{"messages": [{"role": "user"}]}], None),
    ],
)
def test_init_knows_a_column_of_token_ids(records: list[Any], tokens: str | None, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if tokens is None:
        with pytest.raises(DataError):
            find_datasets([str(tmp_path / "a.jsonl")])
    else:
        [found], _ = find_datasets([str(tmp_path / "a.jsonl")])
        assert (found.text, found.tokens) == ("", tokens)


def test_bin_files_of_something_else_are_no_reason_to_take_a_folder_as_one(tmp_path: Path) -> None:
    for name in ("web", "code"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "model.bin").write_bytes(b"weights")
    found, _ = find_datasets([str(tmp_path)])
    assert [dataset.name for dataset in found] == ["code", "web"]
