"""Random numbers of a name: the same names give the same numbers, whatever else was drawn.

Upstream: samples, designs and bootstraps, which name what they draw. Nothing has a state that is shared.
"""

from __future__ import annotations

import hashlib

import numpy as np


def philox(*names: object) -> np.random.Philox:
    """Returns the raw bits whose key is the SHA-256 of the names; all versions of numpy give the same."""
    key = hashlib.sha256("\0".join(map(str, names)).encode()).digest()
    return np.random.Philox(key=int.from_bytes(key[:16], "little"))


def generator(*names: object) -> np.random.Generator:
    """Returns the random numbers of the names."""
    return np.random.Generator(philox(*names))
