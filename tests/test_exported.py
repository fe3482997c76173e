"""The table of contents: what users may rely on, name by name."""

from __future__ import annotations

import subprocess
import sys

import zephon

EXPORTED = [
    "ALLOWANCES",
    "PARTS",
    "Batch",
    "Change",
    "CheckError",
    "CheckReport",
    "Chunks",
    "Column",
    "Constant",
    "ControllerContext",
    "DataError",
    "DataFile",
    "Dataset",
    "DescribedPiece",
    "DescribedRow",
    "Drop",
    "Fault",
    "Ledger",
    "Loader",
    "LoaderKeywords",
    "LoaderOptions",
    "LoggedRows",
    "MixtureWorkSource",
    "Opened",
    "Origin",
    "Packer",
    "PackerPlan",
    "Packing",
    "PartReader",
    "Pipeline",
    "PluginError",
    "RandomReader",
    "Reader",
    "Recipe",
    "RecordSource",
    "Schedule",
    "ScheduleContext",
    "ScheduleTable",
    "ScheduleUpdates",
    "Stages",
    "StateError",
    "Texts",
    "Tokenize",
    "Tokens",
    "WorkSource",
    "WorkerError",
    "ZephonError",
    "changed_lock",
    "check_file",
    "check_recipe",
    "check_weights",
    "check_whole",
    "compile_schedule",
    "default_cache",
    "describe_rows",
    "digest",
    "find_documents",
    "find_plugin",
    "find_snapshot",
    "find_state",
    "last_steps",
    "newest_table",
    "open_file",
    "open_recipe",
    "read_lock",
    "read_log_files",
    "read_range",
    "read_state_file",
    "saved_steps",
    "shares_of",
    "step_digest",
    "unknown_field",
    "write_atomically",
    "write_state_file",
]


def test_the_exported_names() -> None:
    """A name taken away breaks users; a name added must be kept for ever."""
    assert zephon.__all__ == EXPORTED
    assert all(hasattr(zephon, name) for name in EXPORTED)


def test_nothing_else_is_public() -> None:
    code = "import zephon\nprint(*(n for n, v in vars(zephon).items() if type(v) is not type(zephon)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    public = {name for name in found.stdout.split() if not name.startswith("_")} - {"annotations"}
    assert public == set(EXPORTED)


def test_importing_does_not_import_torch_or_the_command_line() -> None:
    code = "import sys, zephon; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(found.stdout.split())
    assert "zephon.loader" in loaded
    assert not loaded & {"torch", "typer", "rich", "click", "fastokens", "zephon.testing"}
