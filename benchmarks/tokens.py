"""Speed of documents that are token ids already, against text: `python benchmarks/tokens.py`.

Makes 50 million tokens of made-up documents in `benchmarks/data/tokens`, as flat .bin, as Megatron's and as
Parquet, and reads them with the whole loader; text is what `recipes.py` reads, where its corpora are built.
All loaders take turns in one process; the rates are of its own CPU time and of the clock.
"""

from __future__ import annotations

import argparse
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from children import Spread
from loads import measure
from numpy.typing import NDArray
from recipes import CACHE, DATA, TOKENIZER, is_built
from recipes import make_recipe as make_text_recipe
from report import Grid, format_spread
from rich.console import Console

from zephon import Dataset, Loader, LoaderOptions, MixtureWorkSource, Pipeline, Recipe, open_recipe

NUM_TOKENS = 50_000_000
VOCABULARY = 50_000
MEANS = (50, 1000)
"""Tokens of a document on average: a short one is a line of a chat, a long one a page of the web."""
LANES = 8
SEQ_LEN = 2048
FORMATS = ("bin", "megatron", "parquet")
GROUP_TOKENS = 250_000
"""Tokens of a row group, about."""
RATES = ("wall_s", "cpu_s")


def write_corpus(folder: Path, mean: int) -> None:
    """Writes the same documents in every format, unless they are there."""
    done = folder / "done"
    if done.exists():
        return
    rng = np.random.default_rng(mean)
    lengths = rng.geometric(1 / mean, 2 * NUM_TOKENS // mean)
    offsets = np.append(0, np.cumsum(lengths))
    offsets = offsets[: int(np.searchsorted(offsets, NUM_TOKENS, side="right"))]
    ids = rng.integers(0, VOCABULARY, int(offsets[-1]), dtype=np.uint16)
    for name in FORMATS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    ids.tofile(folder / "bin" / "a.bin")
    np.save(folder / "bin" / "a.offsets.npy", offsets)
    ids.tofile(folder / "megatron" / "a.bin")
    _write_index(folder / "megatron" / "a.idx", offsets)
    _write_parquet(folder / "parquet" / "a.parquet", ids, offsets)
    done.touch()


def _write_index(path: Path, offsets: NDArray[np.int64]) -> None:
    count = len(offsets) - 1
    with open(path, "wb") as file:
        file.write(struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, 8, count, count + 1))
        file.write(np.diff(offsets).astype("<i4").tobytes())
        file.write((offsets[:-1] * 2).tobytes())
        file.write(np.arange(count + 1, dtype="<i8").tobytes())


def _write_parquet(path: Path, ids: NDArray[np.uint16], offsets: NDArray[np.int64]) -> None:
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(ids.astype(np.int32)))
    table = pa.table({"input_ids": lists})
    pq.write_table(table, path, row_group_size=max(1, len(table) * GROUP_TOKENS // NUM_TOKENS))


def make_recipe(folder: Path, name: str) -> Recipe:
    """Returns one dataset of token ids, one row a lane in every step."""
    dataset = Dataset.from_path(
        "made_up",
        folder / name,
        tokens="input_ids" if name == "parquet" else "",
        dtype="uint16" if name == "bin" else "",
    )
    pipeline = Pipeline(MixtureWorkSource([dataset], {"made_up": 1}), global_batch_size=LANES)
    return pipeline.tokenize(TOKENIZER).pack(SEQ_LEN).recipe()


class Load:
    """A loader of all lanes."""

    def __init__(self, recipe: Recipe, executor: str) -> None:
        opened = open_recipe(recipe, cache=CACHE)
        self.num_documents = int(sum(r.chunks().num_documents.sum() for r in opened.readers))
        self.loader = Loader(opened, LoaderOptions(executor=executor))

    def run(self, num_tokens: int) -> int:
        """Makes at least so many tokens, and returns how many."""
        made = 0
        while made < num_tokens:
            made += next(self.loader).inputs.size
        return made


def measure_all(turns: int, num_tokens: int, executor: str) -> Grid:
    """Returns the rates of all loaders."""
    loads: dict[str, Load] = {}
    for mean in MEANS:
        folder = DATA / "tokens" / str(mean)
        write_corpus(folder, mean)
        loads |= {f"{name}, mean {mean:,}": Load(make_recipe(folder, name), executor) for name in FORMATS}
    if is_built():
        loads["text, Parquet"] = Load(make_text_recipe(LANES, SEQ_LEN), executor)
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in loads}
    for number in range(turns + 1):
        for name, load in loads.items():
            found = measure(load.run, num_tokens)
            if number:  # the first fills spool and page cache
                samples[name].append(found)
    rows = []
    for name, taken in samples.items():
        rates = [Spread.of([turn["tokens"] / turn[key] / 1e6 for turn in taken]) for key in RATES]
        rows.append([name, f"{loads[name].num_documents:,}", *map(format_spread, rates)])
        loads[name].loader.close()
    columns = ("load", "documents", "M tokens/s", "M tokens/CPU s")
    return Grid(title=f"Token ids, {LANES} lanes, {turns} turns, {executor}", columns=columns, rows=rows)


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=40_000_000, help="of a turn")
    parser.add_argument("--executor", default="threads")
    options = parser.parse_args()
    Console(width=110).print(measure_all(options.turns, options.tokens, options.executor).table())


if __name__ == "__main__":
    main()
