"""What lane groups read, and what little page cache or spool costs: a made-up corpus of thousands of chunks.

    python benchmarks/lanes.py [--only shares,speed,datasets] [--part 0.5] [--json FILE]

The corpus is Parquet of short documents, 300 files of 14 row groups, made once in `benchmarks/data/lanes`
(under a GiB). Every line is a process of its own; what it read of the files is counted where the spool asks
for a chunk. No section takes much over two minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from recipes import DATA
from report import MIB, Grid
from rich.console import Console

from zephon import Dataset, Loader, LoaderOptions, MixtureWorkSource, Opened, Pipeline, Recipe, open_recipe

TOKENIZER = DATA / "tokenizers" / "qwen3" / "tokenizer.json"
CORPUS = DATA / "lanes"
NUM_FILES = 300
FILE_GROUPS = 14
GROUP_DOCUMENTS = 500
MEAN_WORDS = 50
VOCABULARY = 30_000
TEXT_WORDS = 2_000_000
"""Documents are runs of words of one text, so many words long."""
SEQ_LEN = 2048
MICRO_BATCH_SIZE = 64
SPOOL_BYTES = 64 << 30
DROP_EVERY_S = 1.0
SHARES = ((64, 1), (64, 8), (64, 64), (1024, 1), (1024, 8), (1024, 64), (1024, 512))
"""(lanes, ranks)."""
LEAST = "1.2"
RUN_S = 6.0
FILL_S = 15.0
COLUMNS = (
    "case", "M tok/s", "second half", "first batch s", "M tokens", "chunks", "reads a chunk", "MiB from disk",
    "MiB at most",
)  # fmt: skip
WIDTH = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One run of one rank."""

    cache: str
    lanes: int
    ranks: int = 1
    rank: int = 0
    part: float = 1.0
    """Of an epoch, by tokens."""
    limit_s: float = 1e9
    """The run ends so long after its first batch, wherever it is."""
    spool_bytes: int = SPOOL_BYTES
    drop: str = ""
    """Whether files and spool leave the page cache: `once`, ahead of the run, or `always`."""
    num_datasets: int = 1


def make_corpus() -> None:
    """Writes the files, unless they are there."""
    if (CORPUS / "done").exists():
        return
    CORPUS.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    letters = rng.integers(ord("a"), ord("z") + 1, (VOCABULARY, 9), dtype=np.uint8)
    sizes = rng.integers(2, 10, VOCABULARY)
    words = [bytes(row[:size]).decode() for row, size in zip(letters, sizes, strict=True)]
    drawn = np.minimum(rng.zipf(1.3, TEXT_WORDS) - 1, VOCABULARY - 1)
    text = " ".join([words[i] for i in drawn.tolist()])
    starts = np.append(0, np.cumsum(sizes[drawn] + 1))
    for file in range(NUM_FILES):
        count = FILE_GROUPS * GROUP_DOCUMENTS
        lengths = 1 + rng.geometric(1 / MEAN_WORDS, count)
        firsts = rng.integers(0, TEXT_WORDS - int(lengths.max()), count)
        bounds = zip(starts[firsts].tolist(), starts[firsts + lengths].tolist(), strict=True)
        table = pa.table({"text": [text[start : end - 1] for start, end in bounds]})
        path = CORPUS / f"{file:03d}.parquet"
        pq.write_table(table, path, row_group_size=GROUP_DOCUMENTS, compression="zstd")
    (CORPUS / "done").touch()


def files() -> list[Path]:
    """Returns the files of the corpus."""
    return sorted(CORPUS.glob("*.parquet"))


def make_recipe(spec: Spec) -> Recipe:
    """Returns the corpus as one dataset, or as many of as many files each, of weights 1, 1/2, 1/3, ..."""
    per_dataset = NUM_FILES // spec.num_datasets
    paths = [str(path) for path in files()]
    datasets = [
        Dataset.from_path(f"d{i}", paths[i * per_dataset : (i + 1) * per_dataset])
        for i in range(spec.num_datasets)
    ]
    weights = {dataset.name: 1 / (i + 1) for i, dataset in enumerate(datasets)}
    pipeline = Pipeline(MixtureWorkSource(datasets, weights), global_batch_size=spec.lanes)
    return pipeline.tokenize(TOKENIZER).pack(SEQ_LEN).recipe()


# In the process of a run ------------------------------------------------------------------------------------


def count_reads(opened: Opened) -> Counter[tuple[int, int]]:
    """Returns how often the spool reads each (dataset, chunk) from the files, from now on."""
    counts: Counter[tuple[int, int]] = Counter()

    def counted(dataset: int, read: Callable[[int], Any]) -> Callable[[int], Any]:
        def read_counted(chunk: int) -> Any:
            counts[dataset, chunk] += 1
            return read(chunk)

        return read_counted

    for dataset, spool in enumerate(opened.readers):
        reader: Any = spool.reader  # type: ignore[attr-defined]
        reader.read = counted(dataset, reader.read)
    return counts


def drop(paths: Iterable[Path]) -> None:
    """Takes files out of the page cache, but for pages that are mapped."""
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


@contextmanager
def dropping(spec: Spec) -> Iterator[None]:
    """Drops what `spec` says, as often as it says."""
    ended = threading.Event()

    def drop_all() -> None:
        drop([*files(), *Path(spec.cache).glob("spool/*/*")])

    def drop_on() -> None:
        while not ended.wait(DROP_EVERY_S):
            drop_all()

    thread = threading.Thread(target=drop_on)
    if spec.drop:
        drop_all()
    if spec.drop == "always":
        thread.start()
    yield
    ended.set()
    if spec.drop == "always":
        thread.join()


def epoch_tokens(opened: Opened) -> int:
    """Returns about how many tokens all documents have, from those of one chunk."""
    chunks = [reader.chunks() for reader in opened.readers]
    index = np.arange(int(chunks[0].num_documents[0]))
    texts = opened.readers[0].texts(np.zeros_like(index), index, 1 << 30).texts
    ids, _ = opened.encoder.encode(texts)
    return len(ids) * sum(int(found.num_documents.sum()) for found in chunks) // len(index)


def disk_bytes() -> int:
    """Returns what this process has had read from the disk."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


def run(spec: Spec) -> dict[str, Any]:
    """Returns what a part of an epoch took one rank."""
    opened = open_recipe(make_recipe(spec), cache=spec.cache, spool_bytes=spec.spool_bytes)
    wanted = int(spec.part * epoch_tokens(opened) / spec.ranks)
    opened.close()
    counts = count_reads(opened)
    options = LoaderOptions(
        dp_rank=spec.rank,
        dp_world_size=spec.ranks,
        micro_batch_size=min(MICRO_BATCH_SIZE, spec.lanes // spec.ranks),
    )
    with Loader(opened, options) as loader, dropping(spec):
        from_disk, begun = disk_bytes(), time.perf_counter()
        made = next(loader).inputs.size
        first_s = time.perf_counter() - begun
        marks = [(first_s, made)]
        while made < wanted and marks[-1][0] - first_s < spec.limit_s:
            made += next(loader).inputs.size
            marks.append((time.perf_counter() - begun, made))
    took_s = marks[-1][0]
    half_s, half = next(mark for mark in marks if mark[0] >= took_s / 2)
    num_bytes = [reader.chunks().num_bytes for reader in opened.readers]
    return {
        "groups": opened.orders[0].num_groups,  # type: ignore[union-attr]
        "first_s": first_s,
        "tokens": made,
        "tokens_per_s": made / took_s,
        "settled_per_s": (made - half) / max(took_s - half_s, 1e-9),
        "num_chunks": len(counts),
        "num_reads": counts.total(),
        "bytes": sum(int(num_bytes[dataset][chunk]) for dataset, chunk in counts),
        "all_chunks": sum(map(len, num_bytes)),
        "all_bytes": int(sum(sizes.sum() for sizes in num_bytes)),
        "spool_bytes": sum(path.stat().st_size for path in Path(spec.cache).glob("spool/*/*")),
        "disk_bytes": disk_bytes() - from_disk,
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


# Outside ----------------------------------------------------------------------------------------------------


def measure(**fields: Any) -> dict[str, Any]:
    """Returns what a run measured, in a process of its own."""
    command = [sys.executable, __file__, "--load", json.dumps(asdict(Spec(**fields)))]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    print(fields, f"{found['tokens_per_s'] / 1e6:.1f} M tokens/s", file=sys.stderr)
    return found | {"spec": fields}


def folder() -> tempfile.TemporaryDirectory[str]:
    """Returns a folder for a cache, that is removed."""
    return tempfile.TemporaryDirectory(prefix="zephon-lanes-", dir=DATA)


def measure_shares(options: argparse.Namespace) -> tuple[Grid, list[dict[str, Any]]]:
    """Returns what ranks with an empty cache each read in about an epoch, against their share."""
    rows, results = [], []
    for lanes, ranks in SHARES:
        found = []
        for rank in sorted({0, ranks // 2, ranks - 1}) if ranks > 8 else sorted({0, ranks - 1}):
            with folder() as cache:
                part = options.part if ranks == 1 else 1.0
                found.append(measure(cache=cache, lanes=lanes, ranks=ranks, rank=rank, part=part))
        results += found
        chunks = [one["num_chunks"] * ranks / one["all_chunks"] for one in found]
        sizes = [one["bytes"] * ranks / one["all_bytes"] for one in found]
        again = max(one["num_reads"] - one["num_chunks"] for one in found)
        groups = found[0]["groups"]
        target = "" if groups % ranks or ranks == 1 else f"<= {LEAST}"
        numbers = [f"{max(chunks):.3f}", f"{max(sizes):.3f}", target, str(again)]
        case = [f"{lanes:,}", str(groups), str(ranks), str(len(found))]
        rates = [f"{max(one['first_s'] for one in found):.2f}"]
        rows.append([*case, *numbers, *rates, f"{found[0]['tokens_per_s'] / 1e6:.1f}"])
    columns = (
        "lanes", "groups", "ranks", "tried", "chunks / share", "bytes / share", "aim", "read again",
        "first batch s", "M tokens/s",
    )  # fmt: skip
    title = (
        f"What a rank reads of {results[0]['all_chunks']:,} chunks, {results[0]['all_bytes'] / MIB:,.0f} MiB"
    )
    return Grid(title=title, columns=columns, rows=rows), results


def measure_speed(options: argparse.Namespace) -> tuple[Grid, list[dict[str, Any]]]:
    """Returns one rank's rates: spool cold and warm, without page cache, with too small a spool."""
    rows, results = [], []
    for lanes in options.lanes:
        with folder() as cache:
            cases: dict[str, dict[str, Any]] = {
                "spool empty": {"limit_s": FILL_S},
                "spool full": {},
                "page cache dropped once": {"drop": "once"},
                f"dropped every {DROP_EVERY_S:g} s": {"drop": "always"},
            }
            for name, fields in cases.items():
                results.append(measure(**{"cache": cache, "lanes": lanes, "limit_s": RUN_S} | fields))
                rows.append(_speed_row(f"{lanes:,} lanes, {name}", results[-1]))
            whole = results[-1]["all_bytes"]
        for divisor in (2, 8):
            with folder() as cache:
                limit = whole // divisor
                results.append(measure(cache=cache, lanes=lanes, limit_s=FILL_S, spool_bytes=limit))
                rows.append(_speed_row(f"{lanes:,} lanes, spool of 1/{divisor}", results[-1]))
    title = f"One rank that owns all, {RUN_S:g} s (an epoch or {FILL_S:g} s where the spool is empty)"
    return Grid(title=title, columns=COLUMNS, rows=rows), results


def _speed_row(name: str, found: dict[str, Any]) -> list[str]:
    reads = found["num_reads"] / found["num_chunks"] if found["num_chunks"] else 0
    rate, settled = (f"{found[key] / 1e6:.2f}" for key in ("tokens_per_s", "settled_per_s"))
    sizes = [f"{found[key] / MIB:,.0f}" for key in ("disk_bytes", "peak_bytes")]
    made = f"{found['tokens'] / 1e6:.0f}"
    return [
        name,
        rate,
        settled,
        f"{found['first_s']:.2f}",
        made,
        f"{found['num_chunks']:,}",
        f"{reads:.2f}",
        *sizes,
    ]


def measure_datasets(options: argparse.Namespace) -> tuple[Grid, list[dict[str, Any]]]:
    """Returns one rank's rates with 300 datasets, and with the same files as one."""
    rows, results = [], []
    for lanes in options.lanes:
        for num_datasets in (1, NUM_FILES):
            with folder() as cache:
                for name in ("spool empty", "spool full"):
                    fields = {"cache": cache, "lanes": lanes, "limit_s": FILL_S}
                    results.append(measure(**fields, num_datasets=num_datasets))
                    label = f"{lanes:,} lanes, {num_datasets} datasets, {name}"
                    rows.append(_speed_row(label, results[-1]))
    return Grid(title=f"One rank, {FILL_S:g} s", columns=COLUMNS, rows=rows), results


SECTIONS = {"shares": measure_shares, "speed": measure_speed, "datasets": measure_datasets}


def main() -> None:
    """Measures the sections asked for, and prints their tables."""
    parser = argparse.ArgumentParser(prog="lanes.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, by commas")
    parser.add_argument("--part", type=float, default=0.5, help="of an epoch, where one rank reads all")
    parser.add_argument("--lanes", type=int, nargs="*", default=[64, 1024])
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all numbers there, too")
    parser.add_argument("--load", metavar="SPEC", help="run one case, and print JSON")
    options = parser.parse_args()
    if options.load:
        print(json.dumps(run(Spec(**json.loads(options.load)))))
        return
    make_corpus()
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    results = {}
    for name in options.only.split(","):
        grid, results[name] = SECTIONS[name](options)
        console.print(grid.table())
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
