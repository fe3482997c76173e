"""The [controller] table of a recipe: its fields read by name, refused by name.

Upstream: the recipe. Downstream: the `from_config` of the controllers.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from zephon_curriculum.schedules.fields import check_fields


def fields_of(kind: str, config: Mapping[str, Any], controller: Any) -> dict[str, Any]:
    """Returns the fields of `config`; refuses one that the class lacks, and a table without one it needs."""
    own = {field.name: field.default for field in fields(controller) if field.name != "context"}
    required = [name for name, default in own.items() if default is MISSING]
    check_fields(f"controller {kind}", config, required, [name for name in own if name not in required])
    return dict(config)


def check_number(kind: str, name: str, value: object, least: float, most: float = math.inf) -> None:
    """Refuses what is no finite number in [least, most]."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not math.isfinite(float(value)) or not least <= float(value) <= most:  # type: ignore[arg-type]
        rule = f">= {least:g}" if most == math.inf else f"in [{least:g}, {most:g}]"
        raise ValueError(f"controller {kind}: `{name}` must be a number {rule}, got {value!r}")


def check_whole(kind: str, controller: object, **fields: int) -> None:
    """Refuses the first of a controller's `fields` that is no whole number >= the least given for it."""
    for name, least in fields.items():
        value = getattr(controller, name)
        if type(value) is not int or value < least:
            raise ValueError(f"controller {kind}: `{name}` must be a whole number >= {least}, got {value!r}")


def check_floor(kind: str, floor: object, num_datasets: int) -> None:
    """Refuses a floor that is no number >= 0, or of which the datasets need more than the whole."""
    check_number(kind, "floor", floor, 0.0, 1.0)
    if float(floor) * num_datasets > 1:  # type: ignore[arg-type]
        raise ValueError(
            f"controller {kind}: `floor` must be <= 1/{num_datasets}, got {floor!r}; "
            f"each of {num_datasets} datasets gets as much"
        )
