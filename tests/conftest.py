"""What all tests share: no plugins that happen to be installed, Ctrl-C, property tests without a stop-watch."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A loaded machine must not fail a property; in CI the examples are the same at every run.
settings.register_profile("zephon", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("zephon")


@pytest.fixture(scope="session", autouse=True)
def _no_plugins() -> Iterator[None]:
    """Leaves plugins out; a test lets them in with `monkeypatch.delenv("ZEPHON_PLUGINS")`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZEPHON_PLUGINS", "none")
        yield


@pytest.fixture(scope="session", autouse=True)
def _interrupts() -> None:
    """Lets SIGINT reach the programs that tests start; a shell's background job, such as CI, ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
