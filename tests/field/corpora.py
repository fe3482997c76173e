"""What the tests of this folder share: documents as JSONL, as Parquet or in memory, and what came of them.

Files are real and read as in any run. Tokens are the bytes of the text: `open_here` has `Letters` for its
encoder, as everywhere in these tests, and `open_fully` the tokenizer.json that gives the same ids.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.elastic.endings import pieces_of
from tests.helpers import faulty, make_recipe, open_small, read, write_tokenizer
from zephon.batch import Batch
from zephon.dataset import Dataset
from zephon.opened import Opened, open_recipe
from zephon.recipe import Recipe

FORMATS = ("jsonl", "parquet", "memory")
FILES = ("jsonl", "parquet")
POLICIES = ("stop", "redistribute", "pad")
NUM_FILES = 3


def write_jsonl(path: Path, documents: Sequence[object]) -> Path:
    """Writes one line for each document; `bytes` are a line as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [d if isinstance(d, bytes) else json.dumps({"text": d}).encode() for d in documents]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def write_parquet(path: Path, documents: Sequence[object], row_group_size: int = 4) -> Path:
    """Writes a plain table, so that texts of the same lengths make a file of the same size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_raw = any(isinstance(document, bytes) for document in documents)
    column = pa.array(
        [d.encode() if isinstance(d, str) and is_raw else d for d in documents],
        pa.binary() if is_raw else pa.string(),
    )
    pq.write_table(
        pa.table({"text": column}),
        path,
        row_group_size=row_group_size,
        compression="none",
        use_dictionary=False,
    )
    return path


def write_file(path: Path, documents: Sequence[object]) -> Path:
    """Writes `path` in the format that its name says."""
    return (write_parquet if path.suffix == ".parquet" else write_jsonl)(path, documents)


def dataset_of(
    folder: Path, name: str, documents: Sequence[object], form: str, num_files: int = NUM_FILES, **fields: Any
) -> Dataset:
    """Returns the dataset of `documents`, in the order given: files a, b, c below `folder`, or in memory."""
    if form == "memory":
        given = {key: fields.pop(key) for key in ("on_error", "max_bad") if key in fields}
        if not fields and documents:
            return faulty(name, documents, **given)
        texts: Any = tuple(documents)
        return Dataset(name=name, kind="memory", documents=texts, **given, **fields)
    each = max(1, -(-len(documents) // num_files))
    for number in range(num_files):
        part = documents[number * each : (number + 1) * each]
        write_file(folder / name / f"{'abcdefghijklmnop'[number]}.{form}", part)
    return Dataset.from_path(name, folder / name, **fields)


def recipe_of(folder: Path, *datasets: Dataset, **fields: Any) -> Recipe:
    """Returns the recipe of some datasets: 4 lanes, one row of 16 tokens each a step, the weights all 1."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = folder / "letters"
    if not tokenizer.exists():
        write_tokenizer(tokenizer)
    return make_recipe(datasets=datasets, base=folder, tokenizer=str(tokenizer), **fields)


def open_here(recipe: Recipe, cache: str = "cache") -> Opened:
    """Returns the opened recipe, its cache below the recipe's folder."""
    return open_small(recipe, recipe.base / cache)


def open_fully(recipe: Recipe, cache: str = "cache", lock: Mapping[str, Any] | None = None) -> Opened:
    """Returns the same with the tokenizer of the file."""
    return open_recipe(recipe, cache=recipe.base / cache, backend="tokenizers", lock=lock)


def documents_of(opened: Opened, steps: Sequence[Sequence[Batch]]) -> dict[str, Counter[str]]:
    """Returns how often each text came, by dataset; the parts of one document are put together.

    A document of which a part is missing shows as what came of it.
    """
    found: dict[str, Counter[str]] = {name: Counter() for name in opened.recipe.names}
    for (dataset, _, _), pieces in pieces_of(steps).items():
        end = 0
        for offset, tokens in sorted(pieces):
            assert offset >= end, "a token came twice"
            end = offset + len(tokens)
        text = "".join(read(tokens) for _, tokens in sorted(pieces))
        found[opened.recipe.names[dataset]][text] += 1
    return found


def counts_of(state: Mapping[str, Any], dataset: int = 0) -> dict[str, int]:
    """Returns what a state says was counted of a dataset, over all lanes."""
    total: Counter[str] = Counter()
    for key, entry in state.items():
        if key.startswith("lane_"):
            total.update(json.loads(entry)["counts"][dataset])
    return dict(total)


def passed_by(
    opened: Opened, state: Mapping[str, Any], kinds: Sequence[str], dataset: int = 0
) -> dict[str, int]:
    """Returns how often documents of each kind stand before the cursors of a state.

    `kinds` has one for each document in file order; "" is not counted.
    """
    total: Counter[str] = Counter()
    order = opened.orders[dataset]
    firsts = np.cumsum(opened.readers[dataset].chunks().num_documents)
    firsts = np.append(0, firsts)
    for key, entry in state.items():
        if key.startswith("lane_"):
            loaded = json.loads(entry)
            cursor = loaded["cursors"][dataset]
            if cursor is not None and cursor[0]:
                at = order.locate(loaded["lane"], 0, cursor[0])
                total.update(kinds[i] for i in (firsts[at.chunk] + at.record).tolist())
    return {kind: number for kind, number in total.items() if kind}


def apart_from_attempt(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a state without the number of restores before it."""
    schedule = {k: v for k, v in json.loads(state["schedule"]).items() if k != "attempt"}
    return dict(state) | {"schedule": schedule}
