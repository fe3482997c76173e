"""The plugin to copy: registers the schedule `alternate` with zephon.

`pyproject.toml` names `Alternate.from_config` under `zephon.schedules`; nothing here runs until a recipe asks
for it. `zephon_api` says for which version of the plugin interface this is made.
"""

from __future__ import annotations

from zephon_example.alternate import Alternate

__all__ = ["Alternate", "zephon_api"]

zephon_api = 1
