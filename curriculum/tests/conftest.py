"""What the tests of the curriculum share: its own plugins are let in, no stop-watch, no dice."""

from __future__ import annotations

import csv
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.conftest import _no_terminal, _probed, probed_once  # noqa: F401

settings.register_profile(
    "zephon", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", settings.get_profile("zephon"), derandomize=False)
settings.load_profile("zephon")


@pytest.fixture(scope="module", autouse=True)
def _own_plugins() -> Iterator[None]:
    """Lets in the plugins of zephon-curriculum and no stray ones, whatever other tests left out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZEPHON_PLUGINS", "zephon-curriculum")
        yield


@pytest.fixture(autouse=True)
def _csv_limit() -> Iterator[None]:
    """Gives the fields of CSV files the limit that Python begins with, whatever has been read before."""
    before = csv.field_size_limit(131072)
    yield
    csv.field_size_limit(before)
