"""What the measurements run on: the folders of the corpora, and one recipe over all three.

Upstream: `corpora.py` builds the data. Downstream: every other module here.
"""

from __future__ import annotations

import json
from pathlib import Path

from zephon import Dataset, MixtureWorkSource, Pipeline, Recipe

DATA = Path(__file__).resolve().parent / "data"
CACHE = DATA / "cache"
"""Where indexes and spool of the measurements lie; filled before anything is measured."""
TOKENIZER = DATA / "tokenizers" / "llama3_1" / "tokenizer.json"
CORPORA = ("code", "ref", "prose")
NUM_WORKERS = 2


def is_built() -> bool:
    """Returns whether all files of the corpora and the tokenizer are there."""
    manifest = DATA / "corpora.json"
    if not manifest.is_file() or not TOKENIZER.is_file():
        return False
    corpora = json.loads(manifest.read_text(encoding="utf-8"))["corpora"]
    if any(name not in corpora for name in CORPORA):
        return False
    return all((DATA / path).is_file() for name in CORPORA for path in corpora[name]["files"])


def parquet_files(corpus: str) -> list[Path]:
    """Returns the Parquet files of a corpus, by name."""
    return sorted((DATA / "parquet" / corpus).glob("*.parquet"))


def make_recipe(lanes: int, seq_len: int) -> Recipe:
    """Returns equal parts of the three corpora, one row a lane in every step."""
    datasets = [Dataset.from_path(name, DATA / "parquet" / name) for name in CORPORA]
    mixture = MixtureWorkSource(datasets, dict.fromkeys(CORPORA, 1))
    return Pipeline(mixture, global_batch_size=lanes).tokenize(TOKENIZER).pack(seq_len).recipe()
