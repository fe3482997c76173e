"""`with_zephon`: what becomes of a stock config, in a process that has TorchTitan's trainer imported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from plugins.torchtitan.tests.fixtures import Titan


def refuses_what_it_would_lose() -> None:
    """Calls it with the config of another trainer."""
    from torchtitan.trainer import Trainer

    from zephon_torchtitan import with_zephon

    class Other(Trainer):
        @dataclass(kw_only=True, slots=True)
        class Config(Trainer.Config):
            of_its_own: int = 3

    with pytest.raises(TypeError, match=r"got .*Other\.Config; derive a class from that"):
        with_zephon(Other.Config())


def keeps_what_is_ours() -> None:
    """Calls it with a config that has our parts already."""
    from plugins.torchtitan.tests.tiny import stock
    from zephon_torchtitan import ValidationSets, ZephonTrainer, ZephonValidator, with_zephon

    given = stock()
    given.validator = ZephonValidator.Config(
        enable=True, freq=7, dataloader=ValidationSets.Config(recipes={"web": "web.toml"})
    )
    first = with_zephon(given, recipe="first.toml", workers=3)
    again = with_zephon(first, recipe="again.toml")
    for config in (first, again):
        assert type(config) is ZephonTrainer.Config
        assert config.validator == given.validator
        assert config.training == given.training
    assert (again.dataloader.recipe, again.dataloader.workers) == ("again.toml", 3)


def makes_a_stock_validator_ours() -> None:
    """Calls it with a config that has TorchTitan's validator."""
    from plugins.torchtitan.tests.tiny import stock
    from zephon_torchtitan import ValidationSets, ZephonValidator, with_zephon

    given = stock()
    given.validator.freq = 7
    validator = with_zephon(given).validator
    assert isinstance(validator, ZephonValidator.Config)
    assert isinstance(validator.dataloader, ValidationSets.Config)
    assert validator.freq == 7


@pytest.mark.parametrize(
    "call", [refuses_what_it_would_lose, keeps_what_is_ours, makes_a_stock_validator_ours]
)
def test_with_zephon(titan: Titan, tmp_path: Path, call: object) -> None:
    titan.call(1, tmp_path, call).ok()  # type: ignore[arg-type]
