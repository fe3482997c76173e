"""From a recipe to what a loader works with: opened datasets, orders, tokenizer, schedule table, lock.

Upstream: `recipe.py`. Downstream: `loader.py`, `check/` and the command line, which may make many
loaders of one opened recipe.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from zephon import retries
from zephon.catalogue import Catalogue, Listed, open_catalogue
from zephon.dataset import TRAIN, VALID, Dataset
from zephon.holdout import HeldOutDocuments, hold_out
from zephon.lock import make_lock
from zephon.order import Addresses, Order
from zephon.packing import PackerPlan
from zephon.paths import resolve
from zephon.prepare import DatasetRules, Prepare
from zephon.readers import RandomReader, Report, is_tokenized, open_reader
from zephon.readers.subset import SubsetReader
from zephon.readers.table import NUM_THREADS
from zephon.recipe import Recipe
from zephon.schedule import ScheduleTable
from zephon.selection import rank, select
from zephon.stream_order import StreamOrder
from zephon.streaming import StreamReader
from zephon.tokenizer import Encoder, TokenizerReport, load_tokenizer, read_tokenizer

SPOOL_BYTES = 64 << 30
STREAM_MEAN_BYTES = 4096
"""What a document of a stream is taken to have, as nobody counted any."""
SAMPLED_DATASETS = 16
SAMPLE_DOCUMENTS = 16
SAMPLE_BYTES = 64 << 10
"""What is read, and of how many datasets, to compare the back ends of the tokenizer."""


def default_cache() -> Path:
    """Returns the folder for indexes and spool: $ZEPHON_CACHE, or `zephon` in the user's cache folder."""
    if given := os.environ.get("ZEPHON_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "zephon"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedDataset:
    """One dataset whose files are known."""

    reader: RandomReader
    """Of the documents that `where`, `limit` and the part of a holdout leave."""
    held_out: HeldOutDocuments | None
    listed: Listed | None
    """What a catalogue has of it."""
    commits: Mapping[str, str]
    """Of each `hf://` entry, the commit at which it is read."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Opened:
    """A recipe whose data and tokenizer are open; safe to share between loaders of one process."""

    recipe: Recipe
    readers: tuple[RandomReader, ...]
    orders: tuple[Order | StreamOrder, ...]
    encoder: Encoder
    tokenizer: TokenizerReport
    table: ScheduleTable
    packer: PackerPlan
    flush_every: int | None
    """Rows between flushes; None for a packer that says what it carries."""
    lock: dict[str, Any]
    held_out: tuple[HeldOutDocuments | None, ...] = ()
    """For each dataset, the documents held out; empty where no dataset is split."""

    def __repr__(self) -> str:
        return f"Opened: {', '.join(self.recipe.names)}; {self.table!r}; tokenizer {self.tokenizer.path}"

    def locate(self, dataset: int, lane: int, positions: NDArray[np.int64]) -> Addresses:
        """Returns the addresses of documents at the given positions of a lane, ascending."""
        order = self.orders[dataset]
        if isinstance(order, StreamOrder):
            reader = cast(StreamReader, self.readers[dataset])
            return order.locate_at(lane, positions, reader.window_records).addresses
        return order.locate_at(lane, positions)

    def prepare(self) -> Prepare:
        """Returns the work of the workers."""
        rules = []
        for index, (dataset, reader) in enumerate(zip(self.recipe.datasets, self.readers, strict=True)):
            is_train = dataset.held_out is not None and dataset.held_out.part == TRAIN
            rules.append(
                DatasetRules(
                    name=dataset.name,
                    on_error=dataset.on_error,
                    mean_bytes=_mean_bytes(reader),
                    held_out=self.held_out[index] if is_train else None,
                )
            )
        return Prepare(self.readers, self.orders, self.encoder, rules, self.packer.length)

    def close(self) -> None:
        """Drops descriptors and maps."""
        for reader in self.readers:
            reader.close()


def open_recipe(
    recipe: Recipe,
    *,
    cache: str | os.PathLike[str] | None = None,
    backend: str = "auto",
    spool_bytes: int = SPOOL_BYTES,
    report: Report | None = None,
    lock: Mapping[str, Any] | None = None,
) -> Opened:
    """Returns the opened recipe. What can be refused without reading data is refused first.

    `lock` is an earlier lock of the run, as JSON data: documents that it holds out stay held out, whatever
    files have come since; their own files must be as they were.

    Cost: one pass over JSONL files the first time, footers of Parquet files, 1-3 s for a large tokenizer.
    `report` gets (what, done, total) for progress bars.
    """
    table = recipe.compile_schedule()
    packer = recipe.build_packer_plan()
    recipe.build_work_source()
    read_tokenizer(recipe.tokenize, base=recipe.base, backend=backend)  # before an index is made for hours
    folder = default_cache() if cache is None else Path(cache)
    catalogue = open_catalogue(recipe.catalogue, recipe.base, folder) if recipe.catalogue else None

    def open_one(dataset: Dataset) -> OpenedDataset:
        return open_dataset(
            recipe, dataset, cache=folder, spool_bytes=spool_bytes, report=report, lock=lock,
            catalogue=catalogue,
        )  # fmt: skip

    opened = [open_one(dataset) for dataset in recipe.datasets]
    readers, held_out = tuple(one.reader for one in opened), tuple(one.held_out for one in opened)
    orders = tuple(
        make_order(recipe, dataset, one, cache=folder, report=report)
        for dataset, one in zip(recipe.datasets, opened, strict=True)
    )
    samples = _samples(opened, table)
    encoder, tokenizer = load_tokenizer(recipe.tokenize, base=recipe.base, backend=backend, samples=samples)
    return Opened(
        recipe=recipe,
        readers=readers,
        orders=orders,
        encoder=encoder,
        tokenizer=tokenizer,
        table=table,
        packer=packer,
        flush_every=recipe.effective_flush_every(packer),
        lock=_lock(recipe, opened, tokenizer, catalogue),
        held_out=held_out,
    )


def _lock(
    recipe: Recipe, opened: Sequence[OpenedDataset], tokenizer: TokenizerReport, catalogue: Catalogue | None
) -> dict[str, Any]:
    return make_lock(
        recipe,
        [one.reader for one in opened],
        tokenizer,
        [one.held_out for one in opened],
        catalogue="" if catalogue is None else catalogue.hash,
        commits=[one.commits for one in opened],
    )


def open_dataset(
    recipe: Recipe,
    dataset: Dataset,
    *,
    cache: Path,
    spool_bytes: int,
    report: Report | None = None,
    lock: Mapping[str, Any] | None = None,
    catalogue: Catalogue | None = None,
) -> OpenedDataset:
    """Returns the dataset, of which the part is read that is not, or is, held out.

    An earlier `lock` says which documents are held out and at which commits `hf://` entries are read.
    """
    listed = catalogue.find(dataset, recipe.base) if catalogue is not None else None
    pinned = listed.commits if listed is not None else (lock or {}).get("commits", {}).get(dataset.name, {})
    commits = resolve(dataset.paths, recipe.base, pinned)
    whole = open_reader(
        dataset,
        base=recipe.base,
        cache=cache,
        spool_bytes=spool_bytes,
        report=report,
        table=None if listed is None else listed.table,
        commits=commits,
    )
    reader = select(dataset, whole, cache, report, chosen=None if listed is None else listed.chosen)
    documents = hold_out(dataset, reader, lock)
    if documents is not None and documents.held_out.part == VALID:
        reader = SubsetReader(reader, documents.documents)
    return OpenedDataset(reader=reader, held_out=documents, listed=listed, commits=commits)


def make_order(
    recipe: Recipe, dataset: Dataset, opened: OpenedDataset, *, cache: Path, report: Report | None = None
) -> Order | StreamOrder:
    """Returns the order of a dataset's documents over the recipe's lanes."""
    reader = opened.reader
    chunks = reader.chunks()
    if isinstance(reader, StreamReader):
        return StreamOrder(
            seed=recipe.seed,
            name=dataset.name,
            num_lanes=recipe.lanes,
            files=[file.name for file in reader.files],
            num_bytes=chunks.num_bytes,
        )
    is_part = opened.held_out is not None and opened.held_out.held_out.part == VALID
    ranked = None if opened.listed is None or is_part else opened.listed.ranked
    return Order(
        seed=recipe.seed,
        name=dataset.name,
        num_lanes=recipe.lanes,
        num_documents=chunks.num_documents,
        num_bytes=chunks.num_bytes,
        order=dataset.order,
        max_epochs=dataset.max_epochs,
        ranked=rank(dataset, reader, cache, report) if ranked is None else ranked,
    )


def _mean_bytes(reader: RandomReader) -> int:
    """Returns the text of a document on average: how many to ask for, which changes speed only."""
    if isinstance(reader, StreamReader):
        return STREAM_MEAN_BYTES
    chunks = reader.chunks()
    return max(1, int(chunks.num_bytes.sum()) // int(chunks.num_documents.sum()))


def _samples(opened: Sequence[OpenedDataset], table: ScheduleTable) -> list[str]:
    """Returns some texts of the first datasets with a share; none of those that a catalogue lists.

    Nor of what has no texts, nor of a stream: it is not read before it is drawn.
    """
    readers = [
        one.reader
        for one, *shares in zip(opened, *table.shares, strict=True)
        if any(shares) and one.listed is None
        if not is_tokenized(one.reader) and not isinstance(one.reader, StreamReader)
    ]
    found = retries.in_parallel(_sample, readers[:SAMPLED_DATASETS], NUM_THREADS)
    return [text for texts in found for text in texts]


def _sample(reader: RandomReader) -> Sequence[str]:
    count = min(SAMPLE_DOCUMENTS, int(reader.chunks().num_documents[0]))
    found = reader.texts(np.zeros(count, dtype=np.int64), np.arange(count, dtype=np.int64), SAMPLE_BYTES)
    return [text[:SAMPLE_BYTES] for text in found.texts]
