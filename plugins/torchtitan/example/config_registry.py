"""Configs for `--module example --config NAME`: stock configs of TorchTitan with zephon's loader in them.

Upstream: TorchTitan imports this module by its name. Copy the folder, change `RECIPE`, keep what you need.
"""

from __future__ import annotations

from pathlib import Path

from torchtitan.models.llama3 import config_registry as llama3
from torchtitan.protocols.model_spec import ModelSpec

from zephon_torchtitan import ZephonTrainer, with_zephon

RECIPE = str(Path(__file__).parent / "recipe.toml")


def llama3_8b() -> ZephonTrainer.Config:
    """Returns TorchTitan's 8B model on the recipe; for GPUs."""
    return with_zephon(llama3.llama3_8b(), recipe=RECIPE)


def laptop() -> ZephonTrainer.Config:
    """Returns the debug model, small enough for CPUs: `python -m zephon_torchtitan.cpu --processes 2 ...`."""
    config = with_zephon(llama3.llama3_debugmodel(), recipe=RECIPE, workers=1)
    config.model_spec = with_vocabulary(config.model_spec, 8192)
    config.training.seq_len = 128
    config.training.local_batch_size = 2
    config.training.global_batch_size = 8
    config.training.mixed_precision_param = "float32"  # one precision whatever shards the model
    config.metrics.enable_tensorboard = True
    config.checkpoint.enable = True
    config.checkpoint.interval = 3
    config.hf_assets_path = "zephon-demo"
    return config


def with_vocabulary(spec: ModelSpec | None, size: int) -> ModelSpec:
    """Returns the model's spec with `size` token ids, for a tokenizer that is not the model's own."""
    assert spec is not None
    model = spec.model
    model.vocab_size = model.tok_embeddings.num_embeddings = model.lm_head.out_features = size
    return spec
