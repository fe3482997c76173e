"""Configs for `--module plugins.torchtitan.tests.tiny`: TorchTitan's parts in a size for tests.

`tiny` has zephon's loader in it, `stock` TorchTitan's own trainer and loader; the recipe, the tokenizer and
the dump folder come from the command line.
"""

from __future__ import annotations

from torchtitan.components.checkpointer.dcp import CheckpointManager
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.models import llama3
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.llama3 import config_registry
from torchtitan.trainer import Trainer

from plugins.torchtitan.tests.corpus import GLOBAL_BATCH_SIZE, SEQ_LEN, STEPS, VOCABULARY
from zephon_torchtitan import ZephonTrainer, with_zephon


def stock() -> Trainer.Config:
    """Returns the debug model's config with a tiny model, in 32 bits."""
    config = config_registry.llama3_debugmodel()
    spec = config.model_spec
    assert spec is not None
    spec.model = _model()
    config.training.seq_len = SEQ_LEN
    config.training.local_batch_size = 2
    config.training.global_batch_size = GLOBAL_BATCH_SIZE
    config.training.steps = STEPS
    config.training.mixed_precision_param = "float32"
    config.activation_checkpoint = None
    config.metrics.enable_tensorboard = True
    config.metrics.disable_color_printing = True
    config.lr_scheduler.warmup_steps = 0
    config.lr_scheduler.decay_ratio = 0.0
    assert isinstance(config.checkpoint, CheckpointManager.Config)
    config.checkpoint.interval = 100
    return config


def tiny() -> ZephonTrainer.Config:
    """Returns the same with zephon's loader, which reads in the trainer's thread."""
    return with_zephon(stock(), executor="inline", check_seconds=0.2)


def plain() -> ZephonTrainer.Config:
    """Returns `tiny` with a loss that is given logits, of which losses of datasets can be measured."""
    config = tiny()
    config.loss = CrossEntropyLoss.Config()
    return config


def _model() -> llama3.Llama3Model.Config:
    dim, num_heads = 64, 4
    return llama3.Llama3Model.Config(
        dim=dim,
        vocab_size=VOCABULARY,
        tok_embeddings=Embedding.Config(
            num_embeddings=VOCABULARY, embedding_dim=dim, param_init=llama3._EMBEDDING_INIT
        ),
        norm=RMSNorm.Config(normalized_shape=dim, param_init=llama3._NORM_INIT),
        lm_head=Linear.Config(
            in_features=dim, out_features=VOCABULARY, param_init=llama3._output_linear_init(dim)
        ),
        layers=llama3._build_llama3_layers(
            fuse_qkv=True,
            n_layers=1,
            dim=dim,
            n_heads=num_heads,
            hidden_dim=128,
            rope=ComplexRoPE.Config(dim=dim // num_heads, max_seq_len=1024, theta=10000, scaling="llama"),
            attn_backend="flex",
        ),
    )
