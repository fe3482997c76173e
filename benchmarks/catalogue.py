"""What a launch costs a rank with a catalogue of very many files and chunks, made up: seconds and memory.

    python benchmarks/catalogue.py [--files 100000] [--chunks 10000000] [--lanes 1024] [--ranks 8]

Of its files only the first is there, for the table; a launch that listed or opened others would fail. It is
measured in a fresh process, from the recipe to a loader that has located the first documents of its lanes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from zephon.catalogue import Listed
from zephon.dataset import Dataset
from zephon.indexing import describe, finish
from zephon.loader import Loader
from zephon.opened import open_recipe
from zephon.options import LoaderOptions
from zephon.packing import Packing
from zephon.paths import DataFile
from zephon.readers import ChunkTable, open_reader
from zephon.recipe import Recipe
from zephon.stages import Constant
from zephon.tokenizer import Tokenize


def make(folder: Path, num_files: int, num_chunks: int) -> None:
    """Writes a catalogue of Parquet files with row groups of about a MiB; only the first is there."""
    per_file = num_chunks // num_files
    first = folder / "data" / "part" / "000000.parquet"
    first.parent.mkdir(parents=True)
    texts = pa.table({"text": [f"document {i}" for i in range(4 * per_file)]})
    pq.write_table(texts, first, row_group_size=4)
    dataset = Dataset.from_path("web", str(folder / "data"))
    reader = open_reader(dataset, base=folder, cache=folder / "made", spool_bytes=1 << 30)
    one = reader.reader.table  # type: ignore[attr-defined]

    names = [f"part/{i:06d}.parquet" for i in range(num_files)]
    files = [
        DataFile(path=str(folder / "data" / name), name=name, size_bytes=1 << 30, mtime_ns=0, entry=0)
        for name in names
    ]
    files[0] = replace(files[0], size_bytes=first.stat().st_size)
    random = np.random.Generator(np.random.PCG64(0))
    num_documents = random.integers(500, 1500, num_chunks)
    num_documents[:per_file] = 4
    table = ChunkTable(
        name="web",
        kind="parquet",
        files=files,
        samples=[one.samples[0], *(f"{i:016x}" for i in range(1, num_files))],
        first_chunks=np.arange(num_files + 1) * per_file,
        places=np.arange(num_files * per_file) % per_file,
        num_documents=num_documents[: num_files * per_file],
        num_bytes=random.integers(1 << 19, 3 << 19, num_files * per_file),
    )
    listed = Listed(table=table, chosen=None, ranked=None, commits={})
    (folder / "index").mkdir()
    entry = describe(folder / "index", 0, dataset, folder, listed)
    finish(folder / "index", {"web": entry})


def launch(folder: Path, lanes: int, ranks: int, tokenizer: str) -> None:
    """Opens the recipe as rank 0 does, and prints what it took."""
    started = time.perf_counter()
    recipe = Recipe(
        seed=0,
        global_batch_size=lanes,
        datasets=(Dataset.from_path("web", str(folder / "data")),),
        schedule=Constant({"web": 1}),
        tokenize=Tokenize(tokenizer=tokenizer),
        packing=Packing(seq_len=2048),
        catalogue=str(folder / "index"),
    )
    opened = open_recipe(recipe, cache=folder / "cache")
    loader = Loader(opened, LoaderOptions(dp_rank=0, dp_world_size=ranks))
    opened_s = time.perf_counter() - started
    for lane in loader.lanes:
        opened.orders[0].locate_at(lane, np.arange(4))
    total_s = time.perf_counter() - started
    # ru_maxrss would be that of the process that started this one.
    status = Path("/proc/self/status").read_text()
    peak, own = (int(status.split(f"{name}:")[1].split()[0]) >> 10 for name in ("VmHWM", "RssAnon"))
    print(f"{opened_s:6.2f} s to open, {total_s:6.2f} s with the first documents located,", end=" ")
    print(f"{peak:,} MiB at most, {own:,} MiB of its own at the end")
    loader.close()


def main() -> None:
    """Makes the catalogue and measures a launch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--chunks", type=int, default=10_000_000)
    parser.add_argument("--lanes", type=int, default=1024)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--tokenizer", default="benchmarks/data/tokenizers/qwen3")
    parser.add_argument("--launch", default="")
    given = parser.parse_args()
    if given.launch:
        launch(Path(given.launch), given.lanes, given.ranks, given.tokenizer)
        return
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), given.files, given.chunks)
        size = sum(path.stat().st_size for path in Path(folder, "index").iterdir())
        print(f"{given.files:,} files, {given.chunks:,} chunks: a catalogue of {size >> 20:,} MiB")
        command = [sys.executable, __file__, "--launch", folder, "--lanes", str(given.lanes)]
        for ranks in (given.ranks, 1):
            print(f"{given.lanes} lanes, {ranks} ranks:", end=" ", flush=True)
            subprocess.run([*command, "--ranks", str(ranks), "--tokenizer", given.tokenizer], check=True)


if __name__ == "__main__":
    main()
