"""Configs for `--module experiment --config NAME`: one model, once with each loader, one validator for both.

Upstream: TorchTitan imports this module by its name. `stock` is TorchTitan's own trainer and loader; `zephon`
differs from it by the trainer and the loader alone. `debug_...` are the same with TorchTitan's debug model.
"""

from __future__ import annotations

from dataclasses import replace

from torchtitan.components.optimizer import default_adamw
from torchtitan.components.validate import Validator
from torchtitan.models import llama3
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.llama3 import config_registry as registry
from torchtitan.trainer import Trainer

from zephon_torchtitan import ZephonDataLoader, ZephonTrainer, with_zephon

VOCAB_SIZE = 2048
SEQ_LEN = 128
GLOBAL_BATCH_SIZE = 8
DIM, NUM_LAYERS, NUM_HEADS = 128, 2, 4
LEARNING_RATE = 4e-3


def debug_stock() -> Trainer.Config:
    """Returns TorchTitan's debug model (6.2 M parameters) and its stock loader, in 32 bits."""
    config = registry.llama3_debugmodel()
    config.training.seq_len = SEQ_LEN
    config.training.global_batch_size = GLOBAL_BATCH_SIZE
    config.training.mixed_precision_param = "float32"  # one precision whatever shards the model
    config.metrics.enable_tensorboard = True
    config.metrics.disable_color_printing = True
    config.checkpoint.enable = True
    config.activation_checkpoint = None
    config.debug.enable_structured_logging = False
    config.validator = Validator.Config(
        steps=-1, dataloader=ZephonDataLoader.Config(executor="inline", infinite=False)
    )
    return config


def debug_zephon() -> ZephonTrainer.Config:
    """Returns the debug model with zephon's loader."""
    return _zephon(debug_stock())


def stock() -> Trainer.Config:
    """Returns a model of 0.9 M parameters and TorchTitan's stock loader, in 32 bits."""
    config = debug_stock()
    spec = config.model_spec
    assert spec is not None
    config.model_spec = replace(spec, flavor="tiny", model=_tiny())
    config.optimizer = default_adamw(lr=LEARNING_RATE)
    return config


def zephon() -> ZephonTrainer.Config:
    """Returns the tiny model with zephon's loader."""
    return _zephon(stock())


def _zephon(config: Trainer.Config) -> ZephonTrainer.Config:
    validator = config.validator
    changed = with_zephon(config, executor="inline")
    changed.validator = validator  # TorchTitan's own, so that both are validated by the same code
    return changed


def _tiny() -> llama3.Llama3Model.Config:
    """Returns the debug model's config with fewer and narrower layers."""
    return llama3.Llama3Model.Config(
        dim=DIM,
        vocab_size=VOCAB_SIZE,
        tok_embeddings=Embedding.Config(
            num_embeddings=VOCAB_SIZE, embedding_dim=DIM, param_init=llama3._EMBEDDING_INIT
        ),
        norm=RMSNorm.Config(normalized_shape=DIM, param_init=llama3._NORM_INIT),
        lm_head=Linear.Config(
            in_features=DIM, out_features=VOCAB_SIZE, param_init=llama3._output_linear_init(DIM)
        ),
        layers=llama3._build_llama3_layers(
            fuse_qkv=True,
            n_layers=NUM_LAYERS,
            dim=DIM,
            n_heads=NUM_HEADS,
            hidden_dim=2 * DIM,
            rope=ComplexRoPE.Config(dim=DIM // NUM_HEADS, max_seq_len=4096, theta=10000, scaling="llama"),
            attn_backend="flex",
        ),
    )
