"""TorchTitan trains from zephon's loader; no fork.

`with_zephon` puts the loader into a stock config; `ZephonTrainer`, `ZephonDataLoader`, `ZephonValidator` are
its parts; `override.dataloader` is for a config that is not ours. All need TorchTitan, so nothing is imported
before a name is asked for.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
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
    place = _PLACES[name]
    if place == "dataloader" and find_spec("torchtitan.components.data") is not None:
        place = "next_contract"  # the contract after 0.3.0, told by where its loaders lie
    return getattr(import_module(f"{__name__}.{place}"), name)
