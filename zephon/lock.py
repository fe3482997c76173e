"""The lock: hashes of what a recipe names; and what a restore says where they or the recipe are others.

Upstream: opened readers and tokenizer. Downstream: states hold its hashes, run folders the whole.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from zephon import plugins
from zephon.errors import StateError, shorten
from zephon.holdout import HeldOutDocuments
from zephon.readers import RandomReader
from zephon.recipe import Recipe, diff_configuration, hash_json
from zephon.tokenizer import TokenizerReport, tokenizer_lock

OF_SCHEDULES = "plugins.schedules."
"""What a lock records of schedules, for information."""
ALLOWANCES = ("data", "held_out", "tokenizer", "plugins", "schedule")
"""What a restore can be told to accept although it differs."""
MAX_FIELDS = 12
"""Fields of a recipe that a message names."""
MAX_FILES = 5
"""Files of a dataset that a message names."""
NOUNS = {
    "data": "dataset",
    "held_out": "documents held out of",
    "plugins": "plugin",
    "tokenizer": "tokenizer",
}
"""The tables that have hashes in a state, and what messages call their entries."""
_CAUTION = (
    "; a document that is begun, or that a packer holds, still stops the run if it changed: "
    "then begin a new run, or go on with the data of the state"
)
_HINT = "; with the `run_folder` of the run that the state is of, the files that differ are named here"


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
    """Returns one hash for each thing that the lock names: what a state holds of it.

    But for the plugin of a schedule: its compiled table decides, and the past of that has a hash of its own.
    """
    hashes = {f"data.{name}": hash_json(entry) for name, entry in lock["data"].items()}
    hashes |= {f"held_out.{name}": hash_json(entry) for name, entry in lock.get("held_out", {}).items()}
    hashes |= {f"tokenizer.{name}": str(value) for name, value in lock["tokenizer"].items()}
    hashes |= {f"plugins.{name}": hash_json(entry) for name, entry in lock["plugins"].items()}
    return {name: value for name, value in hashes.items() if not name.startswith(OF_SCHEDULES)}


def core_version() -> str:
    """Returns the version of the installed core, or `unknown`."""
    try:
        return metadata.version(plugins.CORE)
    except metadata.PackageNotFoundError:
        return "unknown"


def check_configuration(saved: Mapping[str, Any], recipe: Recipe, may_differ: Collection[str] = ()) -> None:
    """Refuses a configuration that is not that of `recipe`, but for the fields that begin as `may_differ`."""
    ours = json.loads(json.dumps(recipe.configuration()))  # a tuple comes back from JSON as a list
    free = tuple(may_differ)
    differences = [
        each for each in diff_configuration(saved, ours) if not (free and each[0].startswith(free))
    ]
    if differences:
        lines = "\n".join(
            f"    {name}: state has {shorten(was)}, this run has {shorten(now)}"
            for name, was, now in differences[:MAX_FIELDS]
        )
        lines += f"\n    and {len(differences) - MAX_FIELDS} more" if differences[MAX_FIELDS:] else ""
        verb = "field differs" if len(differences) == 1 else "fields differ"
        raise StateError.explained(
            "the recipe is not the one that the state was taken with",
            got=f"{len(differences)} {verb}:\n{lines}",
            rule="a phase reads on where the state stands: what says which documents it reads stays the same"
            if free
            else "a restore goes on with the same rows, so these fields must be the same",
            cure=_cure_configuration({name for name, _, _ in differences}),
        )


def _cure_configuration(fields: Collection[str]) -> str:
    cure = "restore them as the state has them, or begin a new run"
    if "datasets" in fields:
        cure += "; datasets keep their order, weight 0 retires one, and others are added at the end"
    if "continues" in fields:
        cure += "; `continues` is the state that the recipe was given by continue_from"
    return cure


def describe_difference(name: str, saved: str | None, found: str | None) -> str:
    """Returns one line on a lock entry that differs."""
    table, _, what = name.partition(".")
    noun = NOUNS[table]
    if saved is None:
        return f"{noun} {what}: not in the state"
    if found is None:
        return f"{noun} {what}: only in the state"
    return f"{noun} {what}: state has {saved[:12]}, this run has {found[:12]}"


def check_lock(
    saved: Mapping[str, str],
    found: Mapping[str, str],
    allow: Collection[str],
    cure: str,
    locks: tuple[Mapping[str, Any] | None, Mapping[str, Any]] | None = None,
) -> list[str]:
    """Returns notes on what differs and is accepted; refuses the rest with `cure`, which takes its names.

    `saved` and `found` are hashes of a lock. `locks` are the whole: the one that a run folder has, perhaps of
    `saved`, and that of `found`; files are named by them.
    """
    lines: dict[str, list[str]] = {}
    is_named = True
    for name in sorted({*saved, *found}):
        if saved.get(name) != found.get(name):
            table, _, what = name.partition(".")
            entries = _entries(name, saved.get(name), locks)
            differing = describe_dataset(what, *entries) if entries is not None else []
            is_named &= bool(differing) or table != "data" or table in allow
            lines.setdefault(table, []).extend(
                differing or [describe_difference(name, saved.get(name), found.get(name))]
            )
    refused = [line for table, found_lines in lines.items() if table not in allow for line in found_lines]
    if refused:
        cure = cure.format(", ".join(repr(table) for table in lines if table not in allow))
        raise StateError.explained(
            "what the recipe names has changed since the state was taken",
            got="\n    ".join(refused if len(refused) == 1 else [f"{len(refused)} differences:", *refused]),
            rule="the same files, tokenizer and plugins give the same rows",
            cure=f"bring them back, or {cure}" + (_HINT if locks is not None and not is_named else ""),
        )
    if "data" in lines:
        lines["data"][-1] += _CAUTION
    return [f"accepted: {line}" for found_lines in lines.values() for line in found_lines]


def _entries(
    name: str, saved: str | None, locks: tuple[Mapping[str, Any] | None, Mapping[str, Any]] | None
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Returns a dataset's entries in both locks; None where the first is not of the hash `saved`.

    None, too, where a plugin's reader lists its files in a way of its own.
    """
    table, _, what = name.partition(".")
    if table != "data" or locks is None or locks[0] is None:
        return None
    was, now = locks[0]["data"].get(what), locks[1]["data"].get(what)
    is_known = was and now and hash_json(was) == saved and _lists_files(was) and _lists_files(now)
    return (was, now) if is_known else None


def _lists_files(entry: Mapping[str, Any]) -> bool:
    rows = entry.get("files", ())
    return all(
        isinstance(row, list | tuple) and len(row) > 1 and all(type(n) is int for n in row[1:3])
        for row in rows
    )


def describe_dataset(name: str, saved: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Returns a line for each file of a dataset that is not as it was, of many the first, then what else is.

    `saved` and `found` are its entries in two locks.
    """
    was, now = (dict(_files(entry)) for entry in (saved, found))
    keys = sorted({*was, *now})
    lines = [line for key in keys if (line := _describe_file(key[0], was.get(key), now.get(key)))]
    apart = {"files", "num_documents"} if lines else {"files"}
    if lines[MAX_FILES:]:
        lines[MAX_FILES:] = [f"and {len(lines) - MAX_FILES:,} more files"]
    lines += [
        f"{field}: {shorten(found.get(field))}; it had {shorten(saved.get(field))}"
        for field in sorted({*saved, *found} - apart)
        if saved.get(field) != found.get(field)
    ]
    return [f"dataset {name}: {line}" for line in lines]


def _files(entry: Mapping[str, Any]) -> Iterator[tuple[tuple[str, int], list[Any]]]:
    """Yields the files of a dataset's entry under (name, how many of that name are ahead of it)."""
    ahead: Counter[str] = Counter()
    for row in entry.get("files", ()):
        name = str(row[0])
        yield (name, ahead[name]), list(row)
        ahead[name] += 1


def _describe_file(name: str, was: Sequence[Any] | None, now: Sequence[Any] | None) -> str:
    """Returns what differs of a file, given (name, bytes, documents, sample) of it; empty if nothing."""
    if was == now:
        return ""
    if was is None or now is None:
        return f"file {name} is {'new' if was is None else 'gone'}"
    if was[:3] == now[:3]:
        return f"file {name} has other content (sample)"
    return f"file {name}: {_size(now)}; it had {_size(was)}"


def _size(row: Sequence[Any]) -> str:
    return f"{row[1]:,} bytes" + (f", {row[2]:,} documents" if len(row) > 2 else "")
