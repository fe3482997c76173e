"""The base class, with the protocol that the trainer of the main branch relies on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.distributed.checkpoint.stateful import Stateful
from torchtitan.config import Configurable


class BaseDataLoader(Stateful, ABC, Configurable):
    """What every loader is."""

    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        """Empty."""

    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...

    def close(self) -> None:
        """Is called by the trainer at its end."""
