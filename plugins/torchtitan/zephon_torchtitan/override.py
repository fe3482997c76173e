"""The loader as a TorchTitan override, for configs that are not ours.

    --override.imports 'zephon_torchtitan.override.dataloader={"recipe": "recipe.toml"}'

Upstream: TorchTitan's command line. Only the loader is replaced: a stock trainer tells it neither the global
batch size nor the dump folder, so what needs them is left to `ZephonTrainer`.
"""

from __future__ import annotations

from typing import Any

from torchtitan.config.override import override

from zephon_torchtitan import ZephonDataLoader

BaseDataLoader = ZephonDataLoader.__bases__[0]
"""That of the installed TorchTitan."""


@override(target=BaseDataLoader.Config, fqns=["dataloader"], description="zephon's loader")
def dataloader(config: Any, **fields: Any) -> Any:
    """Returns the config of zephon's loader; the keywords are its fields."""
    return ZephonDataLoader.Config(**fields)
