"""Curricula on top of zephon: mixture weights that change at exact optimizer steps.

To come: richer schedules, plan and preview, the curriculum log, controllers and mixing laws.
"""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
