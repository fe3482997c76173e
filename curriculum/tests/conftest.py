"""What the tests of the curriculum share: its own plugins are let in, whatever other tests left out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _own_plugins() -> Iterator[None]:
    """Lets in the plugins of zephon-curriculum and no stray ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZEPHON_PLUGINS", "zephon-curriculum")
        yield
