"""What all tests share: no stray plugins, Ctrl-C as at a terminal, no stop-watch and no dice."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from zephon import tokenizer
from zephon.tokenizer.file import TokenizerFile
from zephon.tokenizer.probe import Columns

# A loaded machine must not fail a property, nor a change of something else: the examples are the same at
# every run. `--hypothesis-profile=search` looks for others.
settings.register_profile(
    "zephon", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", settings.get_profile("zephon"), derandomize=False)
settings.load_profile("zephon")


@pytest.fixture(scope="session", autouse=True)
def _no_plugins() -> Iterator[None]:
    """Leaves plugins out; a test lets them in with `monkeypatch.delenv("ZEPHON_PLUGINS")`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZEPHON_PLUGINS", "none")
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_terminal() -> Iterator[None]:
    """Lets tables be as wide as where there is no terminal, whatever starts the tests says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COLUMNS", raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _interrupts() -> None:
    """Lets SIGINT reach the programs that tests start; a shell's background job, such as CI, ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def _probed() -> dict[object, tuple[tokenizer.Encoder, list[Columns]]]:
    """Returns what the probe found, by tokenizer and texts."""
    return {}


@pytest.fixture(scope="module")
def probed_once(
    _probed: dict[object, tuple[tokenizer.Encoder, list[Columns]]],
) -> Iterator[None]:
    """Probes the same tokenizer once and not at every opening: without merges that takes a second."""
    build = tokenizer._build_reference

    def build_once(file: TokenizerFile, batches: list[list[str]]) -> tuple[tokenizer.Encoder, list[Columns]]:
        key = (file.file_hash, file.bos_token, file.eos_token, file.blueprint, str(batches))
        if key not in _probed:
            _probed[key] = build(file, batches)
        encoder, expected = _probed[key]
        return encoder, list(expected)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "_build_reference", build_once)
        yield
