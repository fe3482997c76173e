"""The lock: hashes of what a recipe names, so that a restore can say what is no longer the same.

Upstream: opened readers and tokenizer. Downstream: states hold its hashes, run folders the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from zephon import plugins
from zephon.holdout import HeldOutDocuments
from zephon.readers import RandomReader
from zephon.recipe import Recipe, hash_json
from zephon.tokenizer import TokenizerReport, tokenizer_lock

ALLOWANCES = ("data", "held_out", "tokenizer", "plugins", "schedule")
"""What a restore can be told to accept although it differs."""


def make_lock(
    recipe: Recipe,
    readers: Sequence[RandomReader],
    tokenizer: TokenizerReport,
    held_out: Sequence[HeldOutDocuments | None] = (),
    *,
    catalogue: str = "",
    commits: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """Returns the lock as JSON data: tables `data`, `tokenizer`, `plugins`; no paths, no times.

    Where a dataset is split, also `held_out`: the documents, the same for both parts. `catalogue` is the hash
    of the catalogue that the tables of datasets are from; a run may go on with another, or with none.
    `commits` are those at which `hf://` entries are read, by dataset and entry; a run goes on at these.
    """
    named = zip(recipe.names, readers, strict=True)
    kept = {d.name: found.to_json() for d, found in zip(recipe.datasets, held_out, strict=False) if found}
    at = {d.name: dict(found) for d, found in zip(recipe.datasets, commits, strict=False) if found}
    where_given = {"held_out": kept, "catalogue": catalogue, "commits": at}
    return {
        "version": 1,
        "data": {name: reader.identity() for name, reader in named},
        "tokenizer": tokenizer_lock(tokenizer),
        "plugins": _plugins(recipe),
    } | {name: value for name, value in where_given.items() if value}


def _plugins(recipe: Recipe) -> dict[str, dict[str, str]]:
    """Returns an entry for every plugin that the recipe names and that is not the core's own."""
    used = {("work_sources", str(recipe.work_source.get("kind"))), ("packers", recipe.packing.kind)}
    used |= {("datasets", dataset.kind) for dataset in recipe.datasets if dataset.kind}
    if isinstance(recipe.schedule, Mapping):
        used.add(("schedules", str(recipe.schedule.get("kind"))))
    entries = {f"{role}.{kind}": plugins.lock_entry(role, kind) for role, kind in sorted(used)}
    return {name: entry for name, entry in entries.items() if entry}


def lock_hashes(lock: Mapping[str, Any]) -> dict[str, str]:
    """Returns one hash for each thing that the lock names: what a state holds of it."""
    hashes = {f"data.{name}": hash_json(entry) for name, entry in lock["data"].items()}
    hashes |= {f"held_out.{name}": hash_json(entry) for name, entry in lock.get("held_out", {}).items()}
    hashes |= {f"tokenizer.{name}": str(value) for name, value in lock["tokenizer"].items()}
    hashes |= {f"plugins.{name}": hash_json(entry) for name, entry in lock["plugins"].items()}
    return hashes


def core_version() -> str:
    """Returns the version of the installed core, or `unknown`."""
    try:
        return metadata.version(plugins.CORE)
    except metadata.PackageNotFoundError:
        return "unknown"


def describe_difference(name: str, saved: str | None, found: str | None) -> str:
    """Returns one line on a lock entry that differs."""
    table, _, what = name.partition(".")
    noun = {
        "data": "dataset",
        "held_out": "documents held out of",
        "plugins": "plugin",
        "tokenizer": "tokenizer",
    }[table]
    if saved is None:
        return f"{noun} {what}: not in the state"
    if found is None:
        return f"{noun} {what}: only in the state"
    return f"{noun} {what}: state has {saved[:12]}, this run has {found[:12]}"
