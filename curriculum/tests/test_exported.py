"""What `import zephon_curriculum as zc` gives: the names it lists, no more and no fewer."""

from __future__ import annotations

from types import ModuleType

import zephon_curriculum as zc


def test_what_is_listed_is_what_is_there() -> None:
    there = {name for name, value in vars(zc).items() if not isinstance(value, ModuleType)}
    assert {name for name in there if not name.startswith("_")} - {"annotations"} == set(zc.__all__)
    assert zc.__all__ == sorted(zc.__all__)
