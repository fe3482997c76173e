"""The data of both loaders: text of `zephon demo`, a file for each seed, held-out documents, recipes.

Upstream: `zephon.demo.corpora`, which needs no network. Downstream: `compare.py`, `series.py`. The stock
loader has no data seed, so the documents of its file are permuted; zephon's recipe reads the same file with
that seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from experiment.config_registry import GLOBAL_BATCH_SIZE, SEQ_LEN
from zephon.demo import QUICK
from zephon.demo.corpora import CODE, END, PROSE, REFERENCE, build_corpora

LANES = 8
RECIPE = """\
seed = {seed}
global_batch_size = {global_batch_size}
lanes = {lanes}

[tokenize]
tokenizer = "{assets}/tokenizer.json"
bos = "{end}"   # as the stock loader, which puts one before and one after each document
eos = "{end}"

[packing]
kind = "wrap"
seq_len = {seq_len}

[schedule]
{schedule}
"""
DATASET = """
[[datasets]]
name = "{name}"
path = "{path}"
kind = "jsonl"
{more}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Where the data of one seed lies."""

    stock: Path
    """A folder with the data.json that the stock loader reads."""
    recipe: Path
    """The recipe that reads the same file."""


def build(folder: Path, report: Callable[[str, int, int], None]) -> Path:
    """Returns the corpora of `zephon demo --quick`, made below `folder` with a tokenizer for TorchTitan."""
    corpora = folder / "corpora"
    build_corpora(corpora, QUICK.corpora, report)
    assets = folder / "assets"
    assets.mkdir(parents=True, exist_ok=True)
    (assets / "tokenizer.json").write_bytes((corpora / "tokenizer.json").read_bytes())
    (assets / "tokenizer_config.json").write_text(json.dumps({"bos_token": END, "eos_token": END}))
    return corpora


def read_texts(corpora: Path) -> dict[str, list[str]]:
    """Returns the documents of the demo's three corpora by name."""
    lines = (corpora / CODE).read_text(encoding="utf-8").splitlines()
    return {
        "code": [json.loads(line)["text"] for line in lines if line],
        "prose": pq.read_table(corpora / PROSE)["text"].to_pylist(),
        "reference": pq.read_table(corpora / REFERENCE)["text"].to_pylist(),
    }


def write_lines(path: Path, texts: Iterable[str]) -> None:
    """Writes JSON lines with the field `text`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")


def permuted(texts: Sequence[str], seed: int) -> list[str]:
    """Returns the texts in an order that depends on the seed alone."""
    order = list(texts)
    random.Random(seed).shuffle(order)
    return order


def write_recipe(
    path: Path,
    assets: Path,
    seed: int,
    datasets: dict[str, Path],
    schedule: str = "",
    *,
    lanes: int = LANES,
    dataset: str = "",
) -> None:
    """Writes a recipe of the datasets; without a schedule, equal shares. `dataset` is added to each."""
    equal = ", ".join(f"{name} = 1" for name in datasets)
    text = RECIPE.format(
        seed=seed,
        global_batch_size=GLOBAL_BATCH_SIZE,
        lanes=lanes,
        assets=assets,
        end=END,
        seq_len=SEQ_LEN,
        schedule=schedule or f'kind = "constant"\nweights = {{ {equal} }}',
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    tables = (DATASET.format(name=name, path=place, more=dataset) for name, place in datasets.items())
    path.write_text(text + "".join(tables), encoding="utf-8")


def write_seed(folder: Path, texts: Sequence[str], seed: int) -> Texts:
    """Returns the data of one seed: one file of permuted documents, read by both loaders."""
    place = folder / f"seed_{seed}"
    write_lines(place / "stock" / "data.json", permuted(texts, seed))
    write_recipe(place / "recipe.toml", folder / "assets", seed, {"documents": place / "stock" / "data.json"})
    return Texts(stock=place / "stock", recipe=place / "recipe.toml")
