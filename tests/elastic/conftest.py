"""Registers the plugins of `strangers.py` for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.elastic import strangers


@pytest.fixture(scope="module", autouse=True)
def _strangers(tmp_path_factory: pytest.TempPathFactory, _no_plugins: None) -> Iterator[None]:
    """Lets in the distribution `strangers`, and no other, until the module ends."""
    site = tmp_path_factory.mktemp("site")
    info = site / "strangers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(strangers.entry_points_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        patch.setenv("ZEPHON_PLUGINS", "strangers")
        yield
