"""`ZephonTrainer`: TorchTitan's trainer with what a loader alone cannot do.

Upstream: a config function, or `with_zephon` over a stock config. Downstream: TorchTitan's training loop, of
which only public methods are extended: the launch check runs before a model is built, the data's step must be
the trainer's, ranks end together where data is finite, shares and waits go to TorchTitan's own logger.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torchtitan.components.checkpointer.base import DATALOADER, LR_SCHEDULER, OPTIMIZER, TRAIN_STATE
from torchtitan.config.override import derive
from torchtitan.distributed import ParallelDims
from torchtitan.tools.logging import logger
from torchtitan.trainer import Trainer

from zephon import Recipe, ZephonError
from zephon_torchtitan.dataloader import Placed, ZephonDataLoader, recipe_of
from zephon_torchtitan.dataset_loss import ObservedLoss, StepLosses, why_unseen
from zephon_torchtitan.ending import end_rank, ends_with_others, forget_word
from zephon_torchtitan.launch import STATE, check_rank, check_vocabulary, refuse_together, together
from zephon_torchtitan.metrics import DataMetrics
from zephon_torchtitan.recipes import TrainerValues
from zephon_torchtitan.validate import ValidationSets, ZephonValidator

NEEDED = (DATALOADER, TRAIN_STATE, OPTIMIZER, LR_SCHEDULER)
"""The parts of a checkpoint without which a run cannot go on."""
NO_STEP = """the data end before the first step
  rule: a step takes rows of every lane, and each lane has its own part of the documents
  cure: use fewer lanes or a smaller global batch, more documents or epochs, or leave max_epochs out"""
DATA_FOLDER = "data"
"""The run folder's name in the dump folder."""


class ZephonTrainer(Trainer):
    """Trains from a `ZephonDataLoader`."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        """As the trainer's; `dataloader` is a `ZephonDataLoader.Config`."""

    loss_fn: Any

    def __init__(self, config: Config) -> None:
        """Builds the job; refuses it on all ranks, before the model, where the launch check finds a fault."""
        super().__init__(config)
        self._first_step = 0
        self.data_metrics = DataMetrics(self.data, self.parallel_dims, self.device)
        self.dataset_losses = self._hear_losses()
        if config.validator.enable and isinstance(self.validator, ZephonValidator):
            self.validator.use(self.data.rank)
        forget_word()
        # An override puts its loader in place after the launch check.
        encoder = self.data.rank.loader.opened.encoder
        together(lambda: check_vocabulary(encoder.vocab_size, self.model_config))

    @property
    def data(self) -> ZephonDataLoader:
        """Returns the loader; refuses another kind."""
        if not isinstance(self.dataloader, ZephonDataLoader):
            raise TypeError(
                f"a ZephonTrainer takes a ZephonDataLoader.Config as `dataloader`, got "
                f"{type(self.dataloader).__name__}; use TorchTitan's own Trainer with that"
            )
        return self.dataloader

    # Before the first step --------------------------------------------------------------------------------

    def init_distributed(self) -> ParallelDims:
        """Returns the job's dimensions, after the launch check on every rank."""
        dims = super().init_distributed()
        loading = self.config.dataloader
        if not isinstance(loading, ZephonDataLoader.Config):
            return dims  # an override may still put ours in its place
        ranks = dims.dp_replicate * dims.dp_shard
        training = self.config.training
        total = training.global_batch_size
        rows = total if total > 0 else training.local_batch_size * ranks
        loading.placed = Placed(global_batch_size=rows)
        if loading.run_folder is None:
            loading.run_folder = os.path.join(self.config.dump_folder, DATA_FOLDER)
        together(lambda: self._check(loading, ranks))
        return dims

    def _check(self, loading: ZephonDataLoader.Config, ranks: int) -> None:
        assert loading.placed is not None
        if not os.path.exists(self.config.hf_assets_path):
            raise ValueError(
                f"--hf-assets-path must be the folder of the model's tokenizer, and nothing is at "
                f"{self.config.hf_assets_path!r}; the trainer reads it there, whatever a recipe names"
            )
        rows = self.config.training.local_batch_size
        if self.config.parallelism.pipeline_parallel_degree > 1:
            rows = self.config.parallelism.pipeline_parallel_microbatch_size
        values = TrainerValues(
            seq_len=self.config.training.seq_len,
            global_batch_size=loading.placed.global_batch_size,
            tokenizer=self.config.hf_assets_path,
        )
        recipe = recipe_of(loading, values)
        self._check_losses(recipe)
        found = check_rank(recipe, ranks, rows, cache=loading.cache, probe_s=loading.check_seconds)
        assert self.config.model_spec is not None
        check_vocabulary(found.vocab_size, self.config.model_spec.model)

    # The losses of datasets -------------------------------------------------------------------------------

    def _check_losses(self, recipe: Recipe) -> None:
        """Refuses a controller that would wait in vain for the losses of datasets."""
        why = why_unseen(self.config)
        if recipe.controller is not None and recipe.when_exhausted != "pad" and why:
            kind = recipe.controller.get("kind")
            raise ValueError(
                f"the controller {kind!r} needs the loss of each dataset, which cannot be measured: {why}; "
                "or leave [controller] out of the recipe"
            )

    def _hear_losses(self) -> StepLosses | None:
        """Returns what measures the losses of datasets, with an ear at the loss; None where nobody asks."""
        rank, asked = self.data.rank, self.data.config.dataset_loss_every
        together(lambda: self._check_losses(rank.recipe))
        every = tuple(number for number in (asked, rank.controller_every) if number)
        if not every:
            return None
        if why := why_unseen(self.config):
            logger.warning(f"zephon: the losses of datasets are not measured: {why}")
            return None
        losses = StepLosses(rank, self.parallel_dims, self.device, every)
        self.loss_fn = ObservedLoss(self.loss_fn, losses.sums)
        return losses

    def forward_backward_step(self, **given: Any) -> torch.Tensor:
        """Returns the loss of a micro-batch; of one that is measured its datasets are known first."""
        if self.dataset_losses is not None:
            self.dataset_losses.next_batch()
        return super().forward_backward_step(**given)

    # Training ---------------------------------------------------------------------------------------------

    def train(self) -> None:
        """Trains to the last step, or to the end of finite data; where one rank cannot go on all end."""
        try:
            self._train()
        except SystemExit:
            self.close()  # which TorchTitan does where an error is raised
            raise

    def _train(self) -> None:
        try:
            with ends_with_others():
                super().train()
        except CheckpointException as error:
            said = "\n".join(str(found) for found, _ in error.failures.values())  # without their code lines
            missing = re.search(r"Missing key in checkpoint state_dict: (\S+?)\.?$", said, re.MULTILINE)
            if missing is None or missing[1].partition(".")[0] not in NEEDED:
                raise
            refuse_together([_no_state(self.config, f"lacks {missing[1]!r}", missing[1])], STATE)
        except ZephonError as error:
            rank = self.data.rank
            step, shown = rank.loader.num_steps, rank.trainer_step + 1
            end_rank(error, f"the run ends before step {step} (the trainer logs it as {shown})")

    def batch_generator(
        self, data_iterable: Iterable[tuple[dict[str, torch.Tensor], torch.Tensor]]
    ) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        """Returns the trainer's iterator, once the data stands where the trainer does."""
        refuse_together(self._misplaced(), STATE)
        self._first_step = self.step
        recipe, loader = self.data.rank.recipe, self.data.rank.loader
        logger.info(
            f"zephon: recipe {recipe.fingerprint()[:12]}, {recipe.lanes} lanes on "
            f"{loader.options.dp_world_size} ranks, data after step {loader.num_steps}, "
            f"run folder {loader.options.run_folder}{self.data.rank.log_line()}"
        )
        return super().batch_generator(data_iterable)

    def _misplaced(self) -> list[str]:
        """Returns what is wrong with the place that data and trainer would go on from."""
        rank = self.data.rank
        if rank.refusal is not None:
            asked = re.search(r"allow=\[(.+?)\]", rank.refusal)
            names = "" if asked is None else asked[1].replace("'", "").replace(",", "")
            return [rank.refusal + (f"\n  here: --dataloader.allow {names}" if names else "")]
        if not rank.restored and self.data.config.restart_data:
            rank.began_at = self.step
        if rank.trainer_step == self.step:
            return []
        if not rank.restored:
            return [_no_state(self.config, "has no state of the data")]
        return [
            f"the trainer stands after step {self.step} and the data after {rank.trainer_step}\n"
            "  rule: a step of the trainer is a step of the data\n"
            "  cure: go on from a checkpoint of one run; with another global batch size begin a new one"
        ]

    def should_continue_training(self) -> bool:
        """Returns whether another step is to be taken and its data is there; the same on all ranks."""
        if not super().should_continue_training():
            return False
        started = time.perf_counter()
        there = self.data.rank.has_next()
        if self.data.rank.recipe.is_finite:  # the rows of the step were made here, not in `batch_generator`
            self.metrics_processor.data_loading_times.append(time.perf_counter() - started)
        if there:
            return True
        if not self.step:
            refuse_together([NO_STEP])
        logger.warning(
            f"The data ended: {self.step} steps of {self.config.training.steps} were taken on all ranks."
        )
        if self.step > self._first_step:  # where no step was taken the checkpoint is there
            self.checkpointer.save(self.step, last_step=True)
        return False

    def train_step(self, data_iterator: Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]) -> None:
        """Takes a step; where TorchTitan logs, the data's metrics go to the same logger."""
        losses, log = self.dataset_losses, self.metrics_processor.logger
        if losses is None or not losses.begin(self.step):
            super().train_step(data_iterator)
        else:
            super().train_step(data_iterator)
            log.log(losses.end(), self.step)
        if self.metrics_processor.should_log(self.step):
            log.log(self.data_metrics.collect(), self.step)

    def close(self) -> None:
        """Ends the loader's workers, then the trainer."""
        if isinstance(getattr(self, "dataloader", None), ZephonDataLoader):
            self.data.close()
        super().close()


def _no_state(config: ZephonTrainer.Config, why: str, missing: str = "") -> str:
    folder = os.path.abspath(os.path.join(config.dump_folder, config.checkpoint.folder))
    weights = (
        "where it holds the weights alone (checkpoint.last_save_model_only), begin a new run from them with "
        f"--checkpoint.initial-load-path {folder}/step-N and a new dump folder"
    )
    anew = "begin the data anew with --checkpoint.exclude-from-loading dataloader --dataloader.restart-data"
    if not missing:
        cure = f"load the data's state, too (checkpoint.exclude_from_loading leaves it out); or {anew}"
    elif missing.startswith(f"{DATALOADER}.lane_"):
        other = "and, as a run folder is of one recipe, another --dataloader.run-folder"
        cure = f"set `lanes` to the number of lanes that wrote it; or {anew} {other}"
    elif missing.startswith(DATALOADER):
        cure = f"{weights}; where another loader wrote it, {anew}"
    else:
        cure = weights
    return (
        f"the checkpoint in {folder!r} {why}\n"
        "  rule: a run goes on with the data after the last step that was trained\n"
        f"  cure: {cure}"
    )


def with_zephon(config: Trainer.Config, **loading: Any) -> ZephonTrainer.Config:
    """Returns a stock config with our loader in it; the keywords are `ZephonDataLoader.Config`'s.

    A subclass of TorchTitan's trainer is refused, as what it adds would be lost; combine the classes instead.
    """
    if type(config) not in (Trainer.Config, ZephonTrainer.Config):
        raise TypeError(
            f"`config` must be a Trainer.Config, got {type(config).__qualname__}; derive a class from that "
            "trainer and ZephonTrainer, and set its `dataloader`"
        )
    given, validator = config.dataloader, config.validator
    base = given if isinstance(given, ZephonDataLoader.Config) else ZephonDataLoader.Config()
    if not isinstance(validator, ZephonValidator.Config):
        validator = derive(validator, ZephonValidator.Config, dataloader=ValidationSets.Config())
    return derive(config, ZephonTrainer.Config, dataloader=replace(base, **loading), validator=validator)
