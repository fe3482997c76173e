"""What the fork server imports once: torch, TorchTitan on CPUs, the plugin."""

from __future__ import annotations

from zephon_torchtitan import cpu

cpu.prepare()

import torchtitan.models.llama3.config_registry  # noqa: E402
import torchtitan.train  # noqa: E402
import torchtitan.trainer  # noqa: E402, F401

import zephon_torchtitan.cpu_attention  # noqa: E402
import zephon_torchtitan.trainer  # noqa: E402, F401
