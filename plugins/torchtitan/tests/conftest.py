"""Takes the fixtures in; without TorchTitan there is nothing to test, and the other members' tests go on."""

from __future__ import annotations

try:
    import torchtitan  # noqa: F401
except ImportError:
    collect_ignore_glob = ["test_*.py"]
else:
    from plugins.torchtitan.tests.fixtures import _cache, corpus, seeded, titan, unbroken  # noqa: F401
