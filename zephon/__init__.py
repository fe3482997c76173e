"""Zephon: the same global batches on any number of GPUs, from text, inside the training job.

The table of contents; each name's module says more. Describe (`Dataset`, `Stages`, `MixtureWorkSource`,
`Pipeline`, `Recipe`), load (`Loader`, `Batch`), prove (`digest`, `step_digest`), extend (the protocols, and
what readers of plugins are made of: `Origin`, `DataFile`, `Chunks`, `Column`, `read_range`).
"""

from __future__ import annotations

from importlib import metadata as _metadata

from zephon.batch import Batch, digest, step_digest
from zephon.batchlog import last_steps, read_log_files
from zephon.cachefiles import write_atomically
from zephon.changes import Change, changed_lock
from zephon.check import CheckReport, check_recipe
from zephon.dataset import Dataset
from zephon.described import DescribedPiece, DescribedRow, describe_rows
from zephon.dropped import find_documents
from zephon.errors import (
    CheckError,
    DataError,
    Fault,
    PluginError,
    StateError,
    WorkerError,
    ZephonError,
    check_whole,
    unknown_field,
)
from zephon.files import check_file, open_file, read_range
from zephon.loader import Loader
from zephon.lock import ALLOWANCES
from zephon.logged import LoggedRows, newest_table
from zephon.mixture import Ledger, MixtureWorkSource, WorkSource
from zephon.opened import Opened, default_cache, open_recipe
from zephon.options import LoaderKeywords, LoaderOptions
from zephon.packing import Packer, PackerPlan, Packing
from zephon.paths import DataFile
from zephon.pipeline import Pipeline
from zephon.plugins import find as find_plugin
from zephon.readers.base import Chunks, Column, Origin, RandomReader, Reader, Texts, Tokens
from zephon.readers.parts import RecordSource
from zephon.readers.subset import PartReader
from zephon.recipe import Recipe
from zephon.runfolder import read_lock
from zephon.schedule import (
    ControllerContext,
    Drop,
    Schedule,
    ScheduleContext,
    ScheduleTable,
    ScheduleUpdates,
    compile_schedule,
)
from zephon.shares import PARTS, check_weights, shares_of
from zephon.snapshots import find_snapshot
from zephon.stages import Constant, Stages
from zephon.state import saved_steps
from zephon.statefile import find_state, read_state_file, write_state_file
from zephon.tokenizer import Tokenize

__version__ = "0.1.0"


def _refuse_namesake() -> None:
    """Refuses to work beside the package of the same import name, of which parts would be mixed with ours."""
    try:
        version = _metadata.version("zephon")
    except _metadata.PackageNotFoundError:
        return
    raise ImportError(
        f"two installed distributions claim `import zephon`, zephon-core {__version__} and zephon {version}; "
        "uninstall one of them, for instance by `pip uninstall zephon`"
    )


_refuse_namesake()

__all__ = [
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
