"""TorchTitan on CPUs: `python -m zephon_torchtitan.cpu --processes 2 --module M --config F ...`.

TorchTitan 0.3.0 is made for GPUs. What stands in the way on a machine without one is put right here, for this
process alone and without an edit of TorchTitan, so that a recipe, a resume or a mixture can be tried on a
laptop with the trainer that will run it. Each workaround says what it is for and when it can go. Arguments
are TorchTitan's own; under torchrun leave `--processes` out.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

PROCESSES = "--processes"
ATTENTION = "zephon_torchtitan.cpu_attention.dense_attention"


def main() -> None:
    """Trains as `torchrun -m torchtitan.train` does, on CPUs."""
    arguments = sys.argv[1:]
    if PROCESSES in arguments:
        _start_processes(arguments)
    _check_named(arguments)
    os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
    """Compiling the mask builder takes a C++ compiler and half a minute. Can go where a run is long."""
    prepare()
    from torchtitan import train

    train.ConfigManager = _config_manager(train.ConfigManager)
    train.main()


def _start_processes(arguments: list[str]) -> None:
    """Replaces this process by torchrun with so many processes of the same command."""
    place = arguments.index(PROCESSES)
    number = arguments[place + 1] if place + 1 < len(arguments) else ""
    if not number.isdecimal() or int(number) < 1:
        sys.exit(f"{PROCESSES} takes a number of processes >= 1, got {number!r}")
    rest = arguments[:place] + arguments[place + 2 :]
    _check_named(rest)
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", number, "--local_addr", "localhost"]
    launcher += ["--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"]
    launcher += ["--local_ranks_filter", "0", "--role", "rank", "--tee", "3", "-m", __spec__.name]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.execv(sys.executable, [sys.executable, *launcher, *rest])


def _check_named(arguments: list[str]) -> None:
    if not any(argument.partition("=")[0] == "--module" for argument in arguments):
        sys.exit("name a config: --module MODULE --config FUNCTION; --help behind them lists its fields")


def prepare() -> None:
    """Makes the CPU TorchTitan's device; before `torchtitan.trainer` is imported, which binds it by value.

    Two patches of module attributes, as 0.3.0 has no public hook for either.
    """
    from datetime import timedelta

    import torch
    from torch.distributed import distributed_c10d
    from torchtitan.tools import utils

    # `get_device_info` falls back to "cuda" where there is no accelerator. Can go when it knows "cpu".
    utils.device_type, utils.device_module = "cpu", _CpuModule("zephon_torchtitan.cpu.device")
    if not hasattr(torch.distributed, "set_timeout"):
        # 0.3.0 calls a function that torch 2.13 has only in private. Can go with the torch that exports it.
        def set_timeout(timeout: timedelta, group: Any = None) -> None:
            distributed_c10d._set_pg_timeout(timeout, group)

        torch.distributed.set_timeout = set_timeout


class _Properties:
    name = "cpu"
    total_memory = 1 << 30  # only ever a divisor of what is not measured on a CPU


class _CpuModule(ModuleType):
    """`torch.cpu` with what TorchTitan asks of a device module; what cannot be measured is empty."""

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch.cpu, name)

    def current_device(self) -> int:
        return 0  # torch.cpu gives a string, which `barrier(device_ids=)` refuses

    def get_device_name(self, device: Any = None) -> str:
        return "cpu"

    def get_device_properties(self, device: Any = None) -> type[_Properties]:
        return _Properties

    def reset_peak_memory_stats(self, device: Any = None) -> None: ...

    def empty_cache(self) -> None: ...

    def memory_stats(self, device: Any = None) -> dict[str, int]:
        return {"num_alloc_retries": 0, "num_ooms": 0}


def _config_manager(base: Any) -> Any:
    """Returns a `ConfigManager` whose configs run on CPUs."""

    class CpuConfigManager(base):
        def parse_args(self, args: list[str] | None = None) -> Any:
            config = super().parse_args(args)
            adapt(config)
            return config

    return CpuConfigManager


def adapt(config: Any) -> None:
    """Changes a `Trainer.Config` in place so that it runs on CPUs, all by public fields."""
    # FlexAttention has no backward on CPUs. Can go when it has.
    config.override.imports = [*config.override.imports, ATTENTION]
    # With "spmd_types", FSDP of torch 2.13 refuses plain parameters. Can go with the torch of 0.3.0's CI.
    if config.parallelism.spmd_backend == "spmd_types":
        config.parallelism.spmd_backend = "partial_dtensor"
    # No CUDA graphs without CUDA; TorchTitan would warn at every step.
    config.training.disable_cuda_graphs = True
    config.model_spec.parallelize_fn = _SumReduction(config.model_spec.parallelize_fn)


class _SumReduction:
    """A `parallelize_fn` after which FSDP divides by itself: Gloo has no PREMUL_SUM. Can go when it has."""

    def __init__(self, parallelize: Any) -> None:
        self._parallelize = parallelize

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from torch.distributed.fsdp import FSDPModule

        model = self._parallelize(*args, **kwargs)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
        return model


if __name__ == "__main__":
    main()
