"""`ZephonDataLoader`: TorchTitan 0.3.0's data loader component, over `RankLoader`.

Upstream: TorchTitan builds it with its ranks, sequence length and tokenizer. Downstream: its training loop
takes batches, its checkpoint the state: one key for each lane, written by any ranks, read by any others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import tyro
from torchtitan.components.dataloader import BaseDataLoader

from zephon import Batch, Recipe
from zephon_torchtitan.rank import RankLoader, options_of
from zephon_torchtitan.recipes import TrainerValues, read_recipe, trained_or_passed


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """What a `ZephonTrainer` knows and TorchTitan does not tell a loader."""

    global_batch_size: int


class ZephonDataLoader(BaseDataLoader):
    """The batches of this rank; the same global batches on any number of ranks."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """How to load; only `recipe` and `set` say what."""

        recipe: str = ""
        """A recipe.toml or module:function. What it leaves out of global_batch_size, [packing] seq_len and
        [tokenize] tokenizer is the trainer's."""
        set: tuple[str, ...] = ()
        """NAME=VALUE over the recipe's, several apart by spaces: datasets.web.path=data/web seed=1"""
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
        allow: tuple[str, ...] = ()
        """Differences that a restore accepts: data, held_out, tokenizer, plugins, schedule."""
        restart_data: bool = False
        """Whether a run may go on from a checkpoint without the data's state; the data then begin anew."""
        check_seconds: float = 5.0
        """How long the launch check reads samples."""
        amendments: bool = True
        """Whether the run follows the curriculum log of its run folder; needs zephon-curriculum."""
        dataset_loss_every: int = 0
        """Steps between measures of each dataset's loss, `data/loss/NAME`; 0: those of a controller alone."""
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
        """Opens the data; refuses a recipe that contradicts the trainer, on all ranks with one report."""
        values = TrainerValues(
            seq_len=seq_len,
            global_batch_size=None if config.placed is None else config.placed.global_batch_size,
            tokenizer=getattr(tokenizer, "tokenizer_path", None),
        )
        options = options_of(config, dp_rank, dp_world_size, local_batch_size)
        self.config = config
        self.rank = RankLoader(
            lambda: (recipe_of(config, values), options),
            tokenizer=tokenizer,
            allow=config.allow,
            amendments=config.amendments,
            sees_losses=config.placed is not None,
        )

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        yield from map(as_torchtitan, self.rank)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of this rank's lanes, and what all ranks share."""
        return self.rank.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from a state that any ranks wrote."""
        self.rank.load_state_dict(state_dict)

    def close(self) -> None:
        """Ends workers at once."""
        self.rank.loader.close()


def recipe_of(config: ZephonDataLoader.Config, values: TrainerValues) -> Recipe:
    """Returns the recipe that a config names, as the trainer's values complete it."""
    if config.dataset or config.dataset_path:
        raise ValueError(
            f"a ZephonDataLoader takes no `dataset` ({config.dataset or config.dataset_path!r}): the recipe "
            "names the data; use --dataloader.set datasets.NAME.path=..."
        )
    recipe = read_recipe(config.recipe, config.set, values)
    return trained_or_passed(recipe, repeats=config.infinite and config.repeat)


def as_torchtitan(batch: Batch) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Returns ({"input", "positions"}, labels), int64 of shape (rows, seq_len), labels shifted already."""
    tensors = batch.torch()
    return {"input": tensors["inputs"], "positions": tensors["positions"]}, tensors["labels"]
