"""The adapter for the contract after 0.3.0: `torchtitan.components.data.loader`, rows folded to 1-D.

Written from TorchTitan's main branch, tested against a stand-in, untested against a release: none has it.
Upstream: TorchTitan builds it with a context length and tokens a batch. Downstream: its training loop.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchtitan.components.data.loader import BaseDataLoader

from zephon import Batch, LoaderOptions, Recipe
from zephon_torchtitan.rank import RankLoader, options_of
from zephon_torchtitan.recipes import TrainerValues, read_recipe, trained_or_passed


class ZephonDataLoader(BaseDataLoader):
    """The batches of this rank, each flat: (num_tokens_per_batch,) int64."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """As that of `dataloader.py`; `repeat` is what 0.3.0 calls `infinite`."""

        recipe: str = ""
        set: tuple[str, ...] = ()
        workers: int | None = None
        executor: str = "threads"
        prefetch: int = 0
        pin_memory: bool = False
        cache: str | None = None
        run_folder: str | None = None
        replay: str | None = None
        allow: tuple[str, ...] = ()
        amendments: bool = True
        repeat: bool = True

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        max_context_length: int,
        num_tokens_per_batch: int,
        tokenizer: Any = None,
        **_: Any,
    ) -> None:
        """Opens the data; a row is `max_context_length` tokens, and a batch a whole number of rows."""
        path = getattr(tokenizer, "tokenizer_path", None)
        values = TrainerValues(seq_len=max_context_length, tokenizer=path)

        def describe() -> tuple[Recipe, LoaderOptions]:
            rows, rest = divmod(num_tokens_per_batch, max_context_length)
            if rest or not rows:
                raise ValueError(
                    f"a batch must be whole rows, got {num_tokens_per_batch} tokens for rows of "
                    f"{max_context_length}; set num_tokens_per_microbatch_per_dp_rank to a multiple"
                )
            recipe = read_recipe(config.recipe, config.set, values)
            options = options_of(config, dp_rank, dp_world_size, rows)
            return trained_or_passed(recipe, repeats=config.repeat), options

        self.rank = RankLoader(
            describe, tokenizer=tokenizer, allow=config.allow, amendments=config.amendments
        )
        self._as_one = _yields_one()

    def __iter__(self) -> Iterator[Any]:
        for tensors in map(fold, self.rank):
            yield tensors if self._as_one else (tensors, tensors.pop("labels"))

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of this rank's lanes, and what all ranks share."""
        return self.rank.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from a state that any ranks wrote, 0.3.0's adapter too."""
        self.rank.load_state_dict(state_dict)

    def close(self) -> None:
        """Ends workers at once."""
        self.rank.loader.close()


def fold(batch: Batch) -> dict[str, Any]:
    """Returns input, labels and positions, (rows * seq_len,) int64, and how many labels count."""
    tensors = batch.torch()
    flat = {name: tensors[name].reshape(-1) for name in ("labels", "positions")}
    counted = int((flat["labels"] != -100).sum())
    return {"input": tensors["inputs"].reshape(-1), **flat, "num_valid_tokens": counted}


def _yields_one() -> bool:
    """Returns whether this TorchTitan takes one dict with its labels, not (dict, labels)."""
    types = importlib.import_module("torchtitan.components.data.types")
    return hasattr(types, "TrainingMicrobatch")
