"""One rank of a job: what a process forked from the prepared server does.

Upstream: `jobs.py` preloads this module, so TorchTitan is imported once for all ranks of all jobs.
Downstream: `zephon_torchtitan.cpu`, as from a command line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from zephon_torchtitan import cpu

cpu.prepare()

import torchtitan.train  # noqa: E402, F401

import experiment.config_registry  # noqa: E402, F401  (imported before the fork, for all ranks)


def run_rank(arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
    """Trains as the command line does; what it writes goes to `log`."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    os.environ.update(environment)
    sys.argv = ["zephon_torchtitan.cpu", *arguments]
    cpu.main()
