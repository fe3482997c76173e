"""TorchTitan trains from zephon's loader; no fork.

`with_zephon` puts the loader into a stock config; `ZephonTrainer`, `ZephonDataLoader` and `ZephonValidator` are its
parts; `dataloader` is the override for a config that is not ours. Needs TorchTitan, so nothing is imported before a
name is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zephon_torchtitan.dataloader import ZephonDataLoader
    from zephon_torchtitan.trainer import ZephonTrainer, with_zephon
    from zephon_torchtitan.validate import ValidationSets, ZephonValidator

_PLACES = {
    "ValidationSets": "validate",
    "ZephonDataLoader": "dataloader",
    "ZephonTrainer": "trainer",
    "ZephonValidator": "validate",
    "with_zephon": "trainer",
}

__all__ = ["ValidationSets", "ZephonDataLoader", "ZephonTrainer", "ZephonValidator", "with_zephon"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
