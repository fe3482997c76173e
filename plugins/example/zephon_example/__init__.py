"""The plugin to copy: registers the schedule `alternate` and the kind of dataset `cards` with zephon.

`pyproject.toml` names `Alternate.from_config` under `zephon.schedules` and `CardsReader` under
`zephon.datasets`; neither runs until a recipe asks for it. `zephon_api` says for which version of the plugin
interface this is made.
"""

from __future__ import annotations

from zephon_example.alternate import Alternate
from zephon_example.cards import CardsReader

__all__ = ["Alternate", "CardsReader", "zephon_api"]

zephon_api = 1
