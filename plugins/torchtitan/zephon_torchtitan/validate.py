"""Validation on several named sets: every document once, in file order, equal on any number of ranks.

Upstream: recipes of their own, and the documents that the training recipe holds out. Downstream: TorchTitan's
`Validator.validate`, which is run once for every dataset of every set, with whatever parallelism it knows;
the sums are put together here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch import distributed, nn
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import IGNORE_INDEX
from torchtitan.components.validate import Validator
from torchtitan.tools.logging import logger

from zephon import Loader, LoaderOptions, Opened, Recipe, open_recipe
from zephon_torchtitan.dataloader import as_torchtitan
from zephon_torchtitan.launch import check_rank, check_tokenizer, together
from zephon_torchtitan.rank import RankLoader, any_rank
from zephon_torchtitan.recipes import TrainerValues, read_recipe

HELD_OUT = "held_out"
"""The set of the documents that the training recipe holds out."""


class ValidationSets(BaseDataLoader):
    """What a `ZephonValidator` validates on; only its config is ever used."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """The sets by name; the documents that the training recipe holds out are the set `held_out`."""

        recipes: dict[str, str] = field(default_factory=dict)
        """Name -> a recipe with the datasets of the set."""
        infinite: bool = False
        """Set by TorchTitan and not used: a set is always read once."""
        repeat: bool = False

    def __init__(self, config: Config, **_: Any) -> None:
        raise TypeError("ValidationSets.Config is for a ZephonValidator; TorchTitan's own takes one loader")

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing: validation begins anew each time."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes nothing."""


@dataclass(slots=True, kw_only=True)
class Pass:
    """One dataset of one set, read once; stands where TorchTitan builds a loader."""

    set_name: str
    dataset: str
    opened: Opened
    options: LoaderOptions
    num_steps: int = -1
    """Global batches that are read; -1: all."""
    tokens: int = 0
    """Labels of this rank that counted in the pass before."""

    def build(self, **_: Any) -> Pass:
        """Returns itself."""
        return self

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        self.tokens = 0
        with Loader(self.opened, self.options) as loader:
            rows = self.opened.recipe.global_batch_size // self.options.dp_world_size
            stop = None if self.num_steps < 0 else self.num_steps * rows // loader.micro_batch_size
            for batch in islice(loader, stop):
                inputs, labels = as_torchtitan(batch)
                self.tokens += int((labels != IGNORE_INDEX).sum())
                yield inputs, labels


class _Listener:
    """Stands in for the metrics processor during one pass: takes the loss, hands on the rest."""

    def __init__(self, processor: Any) -> None:
        object.__setattr__(self, "_processor", processor)
        object.__setattr__(self, "loss", 0.0)

    def log_validation(self, loss: float, step: int, extra_metrics: dict[str, Any] | None = None) -> None:
        object.__setattr__(self, "loss", loss)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._processor, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._processor, name, value)


class ZephonValidator(Validator):
    """TorchTitan's validator, run over each dataset of each set."""

    @dataclass(kw_only=True, slots=True)
    class Config(Validator.Config):
        """As the validator's; `steps` counts global batches of each dataset, -1 is all of it."""

        dataloader: BaseDataLoader.Config = field(default_factory=ValidationSets.Config)

    config: Any
    metrics_processor: Any

    def __init__(self, config: Any, **runtime: Any) -> None:
        """Builds TorchTitan's validator; `use` says on what."""
        if not isinstance(config.dataloader, ValidationSets.Config):
            raise TypeError(
                "`validator.dataloader` must be a ValidationSets.Config, got "
                f"{type(config.dataloader).__name__}; use TorchTitan's own Validator with that"
            )
        super().__init__(replace(config, steps=1), **runtime)  # -1 makes it warn of hangs that cannot be here
        self.num_steps = config.steps
        self.sets = config.dataloader
        self.passes: list[Pass] = []

    def use(self, rank: RankLoader) -> None:
        """Opens the sets, with the shape and the held-out documents of the training data. Collective."""
        loader = rank.loader
        asks = any_rank(loader.options.worker_timeout_s)
        options = replace(
            loader.options, run_folder=None, replay=None, prefetch=0, any_rank=asks, updates=None
        )
        self.passes = together(lambda: list(self._open(loader, options)))
        self.config = replace(self.config, steps=-1)  # a pass ends by itself

    def _open(self, loader: Loader, options: LoaderOptions) -> Iterator[Pass]:
        num_passes = 0
        if self.sets.dataset or self.sets.dataset_path:
            raise ValueError("validation takes no `dataset`; name recipes in --validator.dataloader.recipes")
        for set_name, recipe in self._recipes(loader):
            check_rank(
                recipe.evaluation(), options.dp_world_size, loader.micro_batch_size, cache=options.cache
            )
            for name in recipe.names:
                opened = open_recipe(
                    recipe.evaluation(name),
                    cache=options.cache,
                    backend=options.backend,
                    lock=loader.opened.lock,
                )
                check_tokenizer(opened, self.tokenizer)
                num_passes += 1
                yield Pass(
                    set_name=set_name,
                    dataset=name,
                    opened=opened,
                    options=options,
                    num_steps=self.num_steps,
                )
        if not num_passes:
            raise ValueError(
                "validation has no set; name recipes in --validator.dataloader.recipes, or hold documents "
                "out in the training recipe: holdout = { documents = 2000, seed = 0 }"
            )

    def _recipes(self, loader: Loader) -> Iterator[tuple[str, Recipe]]:
        recipe = loader.opened.recipe
        values = TrainerValues(
            seq_len=recipe.packing.seq_len,
            global_batch_size=recipe.global_batch_size,
            tokenizer=getattr(self.tokenizer, "tokenizer_path", None),
        )
        for name, path in sorted(self.sets.recipes.items()):
            yield name, read_recipe(path, (), values)
        held = [
            replace(dataset, held_out=replace(dataset.held_out, part="valid"))
            for dataset in recipe.datasets
            if dataset.held_out is not None and dataset.held_out.part == "train"
        ]
        if held:
            yield HELD_OUT, replace(recipe, datasets=tuple(held))

    def validate(self, model_parts: list[nn.Module], step: int) -> None:
        """Validates on every set and logs a loss for each dataset, each set and all, weighted by tokens."""
        if not self.passes:
            raise TypeError("a ZephonValidator needs a ZephonTrainer, which says on what to validate")
        processor = self.metrics_processor
        sums: dict[str, list[float]] = {}
        for one in self.passes:
            listener = _Listener(processor)
            self.metrics_processor, self.dl_config = listener, one
            try:
                super().validate(model_parts, step)
            except ZeroDivisionError:  # on every rank: the number of labels is that of all
                raise ValueError(
                    f"validation set {one.set_name!r}, dataset {one.dataset!r}: no token has a label, as in "
                    "documents of one token; set eos in [tokenize], or leave the dataset out"
                ) from None
            finally:
                self.metrics_processor = processor
            tokens = self._total(one.tokens)
            for name in ("", f"{one.set_name}/", f"{one.set_name}/{one.dataset}/"):
                total = sums.setdefault(name, [0.0, 0.0])
                total[0] += listener.loss * tokens
                total[1] += tokens
        losses = {name: loss / tokens for name, (loss, tokens) in sums.items()}
        logger.info("validate: " + ", ".join(f"{name[:-1]} {losses[name]:.5f}" for name in sums if name))
        extra = {f"validation_metrics/{name}loss": loss for name, loss in losses.items() if name}
        extra |= {f"validation_metrics/{name}tokens": sums[name][1] for name in sums if name}
        processor.log_validation(loss=losses[""], step=step, extra_metrics=extra)

    def _total(self, tokens: int) -> int:
        """Returns the sum over data-parallel ranks."""
        if not self.parallel_dims.dp_enabled:
            return tokens
        mesh = self.parallel_dims.get_mesh("batch")
        total = torch.tensor(tokens, dtype=torch.int64, device=mesh.device_type)
        distributed.all_reduce(total, group=mesh.get_group())
        return int(total)
