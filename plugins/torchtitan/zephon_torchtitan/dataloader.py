"""`ZephonDataLoader`: TorchTitan 0.3.0's data loader component, over `RankLoader`.

Upstream: TorchTitan builds it with its ranks, sequence length and tokenizer. Downstream: its training loop takes
batches, its checkpoint takes the state: one key for each lane, written by any ranks, read by any others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
import tyro
from torchtitan.components.dataloader import BaseDataLoader
from zephon import Batch, LoaderOptions

from zephon_torchtitan.launch import check_tokenizer
from zephon_torchtitan.rank import RankLoader
from zephon_torchtitan.recipes import TrainerValues, read_recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """What a `ZephonTrainer` knows and TorchTitan does not tell a loader."""

    global_batch_size: int
    tokenizer: str


class ZephonDataLoader(BaseDataLoader):
    """The batches of this rank; the same global batches on any number of ranks."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """How to load; only `recipe` and `set` say what."""

        recipe: str = ""
        """A recipe.toml or module:function. What it leaves out of global_batch_size, [packing] seq_len and
        [tokenize] tokenizer is the trainer's."""
        set: list[str] = field(default_factory=list)
        """NAME=VALUE over the recipe's: datasets.web.path=data/web"""
        workers: int | None = None
        """Workers that read and tokenize; default the cores but one, at most 4."""
        executor: str = "threads"
        """threads, processes, inline, or a plugin's."""
        prefetch: int = 0
        """Batches made ahead by one thread."""
        pin_memory: bool = False
        """Whether batches lie in page-locked memory."""
        cache: str | None = None
        """Folder for indexes and expanded chunks; default $ZEPHON_CACHE."""
        run_folder: str | None = None
        """Where recipe, lock and digests of every row go; a ZephonTrainer takes `data` in the dump folder."""
        replay: str | None = None
        """A run folder: the run stops at the first batch that is not the one recorded there."""
        allow: list[str] = field(default_factory=list)
        """Differences that a restore accepts: data, tokenizer, plugins, schedule."""
        restart_data: bool = False
        """Whether a checkpoint without the data's state may be gone on from, with the data from its beginning."""
        check_seconds: float = 5.0
        """How long the launch check reads samples."""
        infinite: bool = True
        """False: every document once, in file order. TorchTitan's validator sets it."""
        repeat: bool = True
        """What later releases call `infinite`."""
        placed: Annotated[Placed | None, tyro.conf.Suppress] = None

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int,
        local_batch_size: int,
        tokenizer: Any = None,
        **_: Any,
    ) -> None:
        """Opens the data; refuses a recipe that contradicts the trainer, on all ranks, with one report."""
        placed = config.placed
        values = TrainerValues(
            seq_len=seq_len,
            global_batch_size=None if placed is None else placed.global_batch_size,
            tokenizer=getattr(tokenizer, "tokenizer_path", None) if placed is None else placed.tokenizer,
        )
        options = LoaderOptions(
            dp_rank=dp_rank,
            dp_world_size=dp_world_size,
            micro_batch_size=local_batch_size,
            workers=config.workers,
            executor=config.executor,
            prefetch=config.prefetch,
            pin_memory=config.pin_memory,
            run_folder=config.run_folder,
            replay=config.replay,
            cache=config.cache,
        )
        recipe = read_recipe(config.recipe, config.set, values)
        if not (config.infinite and config.repeat):
            recipe = recipe.evaluation()
        self.config = config
        self.rank = RankLoader(recipe, options, allow=config.allow)
        check_tokenizer(self.rank.loader.opened, tokenizer)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        for batch in self.rank:
            yield as_torchtitan(batch)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of this rank's lanes, and what all ranks share."""
        return self.rank.loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from a state that any ranks wrote."""
        self.rank.load_state_dict(state_dict)

    def close(self) -> None:
        """Ends workers at once."""
        self.rank.loader.close()


def as_torchtitan(batch: Batch) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Returns ({"input", "positions"}, labels), int64 of shape (rows, seq_len), labels shifted already."""
    tensors = batch.torch()
    return {"input": tensors["inputs"], "positions": tensors["positions"]}, tensors["labels"]
