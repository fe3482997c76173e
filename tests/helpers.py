"""What the tests share: readable corpora, recipes over them, a tokenizer of 256 letters, digests of runs.

A token is a byte of UTF-8 (so `read` gives the text back), BOS is 256 and EOS 257. `Letters` is that
tokenizer without a file and a probe; `write_tokenizer` writes the tokenizer.json that gives the same ids.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from zephon import lock
from zephon.batch import Batch, RowDigest, digest, step_digest
from zephon.catalogue import open_catalogue
from zephon.dataset import Dataset
from zephon.loader import Loader
from zephon.opened import Opened, make_order, open_dataset
from zephon.options import LoaderOptions
from zephon.packing import Carrying, Packing
from zephon.recipe import DEFAULT_FLUSH_EVERY, Recipe
from zephon.schedule import Schedule
from zephon.stages import Constant
from zephon.tokenizer import Tokenize, TokenizerReport

BOS, EOS = 256, 257

# Corpora and tokenizer --------------------------------------------------------------------------------------


def words(name: str, count: int, lengths: Sequence[int] = (1, 2, 3)) -> list[str]:
    """Returns `count` documents; document i is the word NAMEi, `lengths[i % len(lengths)]` times."""
    return [f"{name}{i} " * lengths[i % len(lengths)] for i in range(count)]


def sized(count: int, lengths: Sequence[int], first: str = "a") -> list[str]:
    """Returns `count` documents of exactly `lengths[i % len(lengths)]` letters, all of them the same."""
    return [chr(ord(first) + i % 26) * lengths[i % len(lengths)] for i in range(count)]


def letter_of(byte: int) -> str:
    """Returns the letter that the byte-level alphabet writes for a byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return chr(byte) if byte in printable else chr(256 + others.index(byte))


def write_tokenizer(folder: Path) -> Path:
    """Writes the tokenizer.json of the 256 letters, with <s> and </s>, and returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE(vocab={letter_of(b): b for b in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<s>", "</s>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@dataclass(frozen=True)
class Letters:
    """An encoder whose tokens are the bytes of the text."""

    bos: bool = False
    eos: bool = False
    backend: str = "letters"
    vocab_size: int = 258

    @property
    def bos_id(self) -> int | None:
        return BOS if self.bos else None

    @property
    def eos_id(self) -> int | None:
        return EOS if self.eos else None

    @property
    def num_special(self) -> int:
        return self.bos + self.eos

    def encode(self, texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        columns = [self.tokens(text) for text in texts]
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(column) for column in columns], out=offsets[1:])
        return np.array([t for column in columns for t in column], np.uint32), offsets

    def tokens(self, text: str) -> list[int]:
        return [BOS] * self.bos + list(text.encode()) + [EOS] * self.eos

    def decode(self, ids: NDArray[Any] | Sequence[int]) -> str:
        return read(ids)


def read(ids: NDArray[Any] | Sequence[int]) -> str:
    """Returns the text of tokens of the 256 letters; BOS is `<`, EOS is `>`."""
    return "".join({BOS: "<", EOS: ">"}.get(int(t), chr(int(t) & 255)) for t in ids)


# Recipes ----------------------------------------------------------------------------------------------------


def make_recipe(
    documents: Mapping[str, Sequence[str]] | None = None,
    schedule: Schedule | Mapping[str, Any] | None = None,
    *,
    seq_len: int = 16,
    kind: str = "wrap",
    options: Mapping[str, Any] | None = None,
    mask_document_ends: bool = True,
    bos: bool | str = False,
    eos: bool | str = "</s>",
    tokenizer: str = "letters",
    **fields: Any,
) -> Recipe:
    """Returns a recipe over datasets in memory: 4 lanes, one row a step each, seed 42, weights all 1.

    `datasets=` (among `fields`, which go to `Recipe`) takes the place of `documents`.
    """
    if documents is None:
        documents = {"web": words("web", 40), "code": words("code", 9, (1, 7))}
    made = tuple(Dataset.from_documents(name, texts) for name, texts in documents.items())
    datasets = fields.pop("datasets", made)
    return Recipe(
        **{"seed": 42, "global_batch_size": 4, "datasets": datasets} | fields,
        schedule=schedule or Constant({dataset.name: 1 for dataset in datasets}),
        tokenize=Tokenize(tokenizer=tokenizer, bos=bos, eos=eos),
        packing=Packing(
            seq_len=seq_len, kind=kind, mask_document_ends=mask_document_ends, options=options or {}
        ),
    )


def faulty(
    name: str, documents: Sequence[object], *, on_error: str = "raise", max_bad: int = 1000
) -> Dataset:
    """Returns a dataset in memory that may hold what is no text."""
    return Dataset(
        name=name,
        kind="memory",
        documents=tuple(documents),  # type: ignore[arg-type]
        on_error=on_error,
        max_bad=max_bad,
    )


def open_small(recipe: Recipe, cache: Path | None = None, earlier: Mapping[str, Any] | None = None) -> Opened:
    """Returns what `open_recipe` does, with `Letters` for its tokenizer: in milliseconds, not a second."""
    encoder = Letters(bool(recipe.tokenize.bos), bool(recipe.tokenize.eos))
    report = TokenizerReport(
        backend="letters",
        note="tokens are bytes",
        file_hash="letters",
        probe_hash=f"letters {encoder.bos} {encoder.eos}",
        path=Path("letters"),
        bos_token="<s>" if encoder.bos else None,
        eos_token="</s>" if encoder.eos else None,
    )
    packer = recipe.build_packer_plan()
    flush_every = recipe.flush_every
    if flush_every is None and not isinstance(packer.make(), Carrying):
        flush_every = DEFAULT_FLUSH_EVERY
    folder = cache or recipe.base / ".cache"
    catalogue = open_catalogue(recipe.catalogue, recipe.base, folder) if recipe.catalogue else None
    opened = [
        open_dataset(recipe, dataset, cache=folder, spool_bytes=1 << 30, lock=earlier, catalogue=catalogue)
        for dataset in recipe.datasets
    ]
    readers, held_out = tuple(one.reader for one in opened), tuple(one.held_out for one in opened)
    pairs = zip(recipe.datasets, opened, strict=True)
    orders = (make_order(recipe, dataset, one, cache=folder) for dataset, one in pairs)
    return Opened(
        recipe=recipe,
        readers=readers,
        orders=tuple(orders),
        encoder=encoder,
        tokenizer=report,
        table=recipe.compile_schedule(),
        packer=packer,
        flush_every=flush_every,
        lock=lock.make_lock(
            recipe, readers, report, held_out, catalogue="" if catalogue is None else catalogue.hash
        ),
        held_out=held_out,
    )


def tokens_of(opened: Opened, dataset: int, lane: int, position: int) -> list[int]:
    """Returns the tokens of the document at a position of a lane's order; none where it has no text."""
    address = opened.orders[dataset].locate(lane, position, 1)
    found = opened.readers[dataset].texts(address.chunk, address.record, 1 << 30)
    assert isinstance(opened.encoder, Letters)
    return opened.encoder.tokens(found.texts[0]) if found.texts[0] else []


# Runs -------------------------------------------------------------------------------------------------------

INLINE = LoaderOptions(executor="inline")


@contextlib.contextmanager
def loaders(
    opened: Opened, world: int = 1, options: LoaderOptions = INLINE, **changes: Any
) -> Iterator[list[Loader]]:
    """Gives the loaders of all ranks, and closes them; `changes` are fields of `LoaderOptions`."""
    made: list[Loader] = []
    try:
        for rank in range(world):
            made.append(Loader(opened, replace(options, dp_rank=rank, dp_world_size=world, **changes)))
        yield made
    finally:
        for loader in made:
            loader.close()


def batches_per_step(loader: Loader) -> int:
    """Returns how many batches of a loader make one step."""
    recipe = loader.opened.recipe
    return len(loader.lanes) * recipe.rows_per_step // loader.micro_batch_size


def take_steps(ranks: Sequence[Loader], num_steps: int) -> list[list[Batch]]:
    """Returns the batches of all ranks for each of the next `num_steps` steps."""
    steps: list[list[Batch]] = []
    for _ in range(num_steps):
        steps.append([b for loader in ranks for b in islice(loader, batches_per_step(loader))])
        assert len({batch.step for batch in steps[-1]}) == 1
    return steps


def digest_of(batches: Sequence[Batch]) -> str:
    """Returns the digest of one step, from all its batches."""
    rows: list[RowDigest] = [row for batch in batches for row in digest(batch)]
    return step_digest(rows)


def digests(
    opened: Opened, num_steps: int, world: int = 1, options: LoaderOptions = INLINE, **changes: Any
) -> list[str]:
    """Returns the digests of steps [0, num_steps) of a fresh run on `world` ranks."""
    with loaders(opened, world, options, **changes) as ranks:
        return [digest_of(step) for step in take_steps(ranks, num_steps)]


def union(ranks: Sequence[Loader]) -> dict[str, Any]:
    """Returns the run's state: the union of all ranks' states."""
    merged: dict[str, Any] = {}
    for loader in ranks:
        merged |= loader.state_dict()
    return merged
