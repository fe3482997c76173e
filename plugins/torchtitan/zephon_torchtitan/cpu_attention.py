"""Attention for CPUs: the mask of FlexAttention made dense, for `scaled_dot_product_attention`.

Upstream: `cpu.py` names the override. The values are those of FlexAttention up to rounding; memory grows with
the square of the sequence. Can go when FlexAttention has a backward on CPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_mask
from torchtitan.config.override import derive, override
from torchtitan.models.common.attention import FlexAttention


class DenseMaskAttention(FlexAttention):
    """FlexAttention's inputs and outputs, computed densely."""

    @dataclass(kw_only=True, slots=True)
    class Config(FlexAttention.Config):
        """As FlexAttention's."""

    def forward(  # the first three names are those by which TorchTitan shards them
        self,
        q_BLNH: torch.Tensor,
        k_BLNH: torch.Tensor,
        v_BLNH: torch.Tensor,
        *,
        attention_masks: BlockMask,
        scale: float | None = None,
        enable_gqa: bool = False,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Returns the attention's output, (B, L, N, H)."""
        asked = sorted(name for name, value in kwargs.items() if value is not None)
        if asked:
            raise NotImplementedError(f"attention on CPUs takes no {asked[0]!r}; run this model on a GPU")
        num_rows, length = q_BLNH.shape[:2]
        mask = create_mask(attention_masks.mask_mod, num_rows, None, length, length, device="cpu")
        out = functional.scaled_dot_product_attention(
            q_BLNH.transpose(1, 2),
            k_BLNH.transpose(1, 2),
            v_BLNH.transpose(1, 2),
            attn_mask=mask,
            scale=scale,
            enable_gqa=enable_gqa,
        )
        return out.transpose(1, 2)


@override(target=FlexAttention.Config, description="dense attention for CPUs")
def dense_attention(config: FlexAttention.Config) -> DenseMaskAttention.Config:
    """Returns the config of the dense attention in place of FlexAttention's."""
    return derive(config, DenseMaskAttention.Config)
