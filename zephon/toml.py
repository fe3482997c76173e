"""Recipes as TOML: read with all the strictness of the Python form, and written so that they read back equal.

Upstream: files and `--set` values. Downstream: `recipe.py`. Unknown fields are refused by name.
"""

from __future__ import annotations

import difflib
import importlib
import json
import numbers
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zephon.dataset import STOP, Dataset, HeldOut
from zephon.errors import CheckError, unknown_field
from zephon.packing import FIELDS as PACKING
from zephon.packing import Packing
from zephon.recipe import Recipe
from zephon.tokenizer import Tokenize

WHOLE = (
    "seed", "lanes", "global_batch_size", "total_steps", "flush_every", "when_exhausted", "catalogue",
)  # fmt: skip
"""Fields of `Recipe` that are taken as they are."""
TOP = (
    *WHOLE, "tokenize", "packing", "schedule", "work_source", "controller", "datasets", "continue_from",
)  # fmt: skip
SETTINGS = (
    "kind", "text", "tokens", "dtype", "columns", "where", "limit", "stream",
    "on_error", "max_bad", "order", "max_epochs",
)  # fmt: skip
"""Fields of `Dataset` that are taken as they are."""
DATASET = ("name", "path", *SETTINGS)
CONTINUE = ("path", "allow")
HOLDOUT = ("documents", "seed", "part")
PARTITION = ("by", "edges", "nulls", "names")
TOKENIZE = ("tokenizer", "bos", "eos", "parse_special")


def read_recipe(path: Path, settings: Mapping[str, Any]) -> Recipe:
    """Returns the recipe at `path`, a TOML file, or at `module:function` that returns a `Recipe`."""
    if ":" in str(path) and not path.exists():
        if settings:
            raise ValueError(f"--set works on TOML recipes, got {path}; change the function instead")
        return _call_factory(str(path))
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise missing_recipe(path, "a recipe is a TOML file or module:function") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise CheckError.explained(
            f"recipe {str(path)!r} cannot be read",
            got=str(error),
            rule="a recipe is a TOML file",
            cure="mend it",
        ) from None
    for name, value in settings.items():
        _set(table, name, value)
    return recipe_from_table(table, path.resolve().parent)


def missing_recipe(path: Path, rule: str) -> CheckError:
    """Returns the error of a recipe that is not there, with those that lie beside it."""
    folder = path.absolute().parent
    there = sorted(p.name for p in folder.glob("*.toml"))[:5] if folder.is_dir() else []
    beside = ", ".join(there) or "none"
    return CheckError.explained(
        f"recipe {str(path)!r} does not exist",
        got=str(path.absolute()),
        rule=rule,
        cure=f"recipes in that folder: {beside}; `zephon init DATA` writes a first one",
    )


def _call_factory(name: str) -> Recipe:
    module, _, function = name.partition(":")
    recipe = getattr(importlib.import_module(module), function)()
    if not isinstance(recipe, Recipe):
        raise TypeError(f"recipe {name!r} must return a zephon.Recipe, got {type(recipe).__name__}")
    return recipe


def parse_setting(text: str) -> tuple[str, Any]:
    """Returns (dotted name, value) of `name=value`; the value is TOML where it can be, else a string."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ValueError(
            f"--set takes NAME=VALUE, got {text!r}; for instance --set datasets.web.path=data/web"
        )
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value


def _set(table: dict[str, Any], name: str, value: Any) -> None:
    place: Any = table
    parts = name.split(".")
    for part in parts[:-1]:
        if isinstance(place, list):
            found = [entry for entry in place if entry.get("name") == part]
            if not found:
                raise ValueError(f"--set {name}: no dataset is named {part!r}")
            place = found[0]
        else:
            place = place.setdefault(part, {})
        if not isinstance(place, dict | list):
            raise ValueError(f"--set {name}: {part!r} is a value, not a table")
    if not isinstance(place, dict):
        raise ValueError(f"--set {name}: name a field of one dataset, as datasets.NAME.FIELD")
    place[parts[-1]] = value


def recipe_from_table(table: Mapping[str, Any], base: Path) -> Recipe:
    """Returns the recipe of parsed TOML; relative paths start at `base`."""
    _refuse_unknown(table, TOP, "the recipe")
    for name in ("global_batch_size", "tokenize", "packing", "schedule", "datasets"):
        if name not in table:
            raise ValueError(f"the recipe lacks `{name}`")
    entries = table["datasets"]
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise ValueError(f"`datasets` must be a list of tables ([[datasets]]), got {entries!r}")
    tokenize, packing = _table(table, "tokenize"), _table(table, "packing")
    _refuse_unknown(tokenize, TOKENIZE, "[tokenize]")
    _refuse_misspelt(packing)
    if "tokenizer" not in tokenize or "seq_len" not in packing:
        raise ValueError("[tokenize] must have `tokenizer` and [packing] must have `seq_len`")
    known = {name: packing[name] for name in PACKING if name in packing}
    options = {name: value for name, value in packing.items() if name not in PACKING}
    whole = {name: table[name] for name in WHOLE if name in table}
    whole |= {name: _table(table, name) for name in ("work_source", "controller") if name in table}
    recipe = Recipe(
        seed=whole.pop("seed", 0),
        global_batch_size=whole.pop("global_batch_size"),
        datasets=tuple(dataset for entry in entries for dataset in _datasets(entry)),
        schedule=_table(table, "schedule"),
        tokenize=Tokenize(**tokenize),
        packing=Packing(**known, options=options),
        base=base,
        **whole,
    )
    return _continued(recipe, table["continue_from"]) if "continue_from" in table else recipe


def _continued(recipe: Recipe, given: object) -> Recipe:
    """Returns the recipe as a phase that begins with the state of a file: a path, or a table with `path`."""
    entry = given if isinstance(given, Mapping) else {"path": given}
    _refuse_unknown(entry, CONTINUE, "continue_from")
    path, allow = entry.get("path"), entry.get("allow", [])
    if not isinstance(path, str) or not path or not isinstance(allow, list):
        raise ValueError(
            "`continue_from` must be the path of a state file, or { path = ..., allow = [...] }, "
            f"got {given!r}"
        )
    return recipe.continue_from(path, allow=allow)


def _table(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(table[name], Mapping):
        raise ValueError(f"`{name}` must be a table ([{name}]), got {table[name]!r}")
    return dict(table[name])


def _datasets(entry: Mapping[str, Any]) -> list[Dataset]:
    """Returns the dataset of an entry, or its parts; each part of a partition holds out its own documents."""
    where = f"dataset {entry.get('name', '?')!r}"
    _refuse_unknown(entry, (*DATASET, "holdout", "partition"), where)
    for name in ("name", "path"):
        if name not in entry:
            raise ValueError(f"{where}: lacks `{name}`")
    fields = {name: entry[name] for name in SETTINGS if name in entry}
    datasets = [Dataset.from_path(entry["name"], entry["path"], **fields)]
    if "partition" in entry:
        partition = _table(entry, "partition")
        _refuse_unknown(partition, PARTITION, f"{where}, partition")
        if "by" not in partition or "edges" not in partition:
            raise ValueError(f"{where}: `partition` must have `by`, a column, and `edges`")
        datasets = list(datasets[0].partition(**partition))
    if "holdout" not in entry:
        return datasets
    holdout = _table(entry, "holdout")
    _refuse_unknown(holdout, HOLDOUT, f"{where}, holdout")
    if "documents" not in holdout:
        raise ValueError(f"{where}: `holdout` must say how many `documents`")
    return [replace(dataset, held_out=HeldOut(**holdout)) for dataset in datasets]


def _refuse_unknown(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for name in table:
        if name not in known:
            raise unknown_field(where, name, known)


def _refuse_misspelt(packing: Mapping[str, Any]) -> None:
    """Refuses what stands for a missing `kind` or `seq_len`; other fields are for the packer to know."""
    absent = [name for name in ("kind", "seq_len") if name not in packing]
    for name in packing:
        if name not in PACKING and difflib.get_close_matches(name, absent, cutoff=0.7):
            raise unknown_field("[packing]", name, PACKING)


def write_recipe(recipe: Recipe) -> str:
    """Returns the recipe as TOML text, defaults left out."""
    lines = [
        f"seed = {recipe.seed}",
        f"lanes = {recipe.lanes}",
        f"global_batch_size = {recipe.global_batch_size}",
    ]
    rare = {
        "total_steps": recipe.total_steps,
        "flush_every": recipe.flush_every,
        "when_exhausted": "" if recipe.when_exhausted == STOP else recipe.when_exhausted,
        "catalogue": recipe.catalogue,
        "continue_from": _start_config(recipe),
    }
    lines += [f"{name} = {toml_value(value)}" for name, value in rare.items() if value]
    tables = {
        "tokenize": _without_defaults(Tokenize(tokenizer="?"), recipe.tokenize, TOKENIZE),
        "packing": _without_defaults(Packing(seq_len=1), recipe.packing, PACKING[1:]),
        "schedule": _schedule_config(recipe),
        "work_source": dict(recipe.work_source),
    }
    if recipe.controller is not None:
        tables["controller"] = dict(recipe.controller)
    tables["packing"] = {"kind": recipe.packing.kind, "seq_len": recipe.packing.seq_len} | tables["packing"]
    tables["packing"] |= dict(recipe.packing.options)
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{_key(k)} = {toml_value(v)}" for k, v in table.items())]
    for dataset in recipe.datasets:
        table = _dataset_config(dataset)
        lines += ["", "[[datasets]]", *(f"{field} = {toml_value(value)}" for field, value in table.items())]
    return "\n".join(lines) + "\n"


def _dataset_config(dataset: Dataset) -> dict[str, Any]:
    if dataset.documents is not None:
        raise ValueError(f"dataset {dataset.name!r} is in memory and has no TOML form; write it to a file")
    path: Any = dataset.paths[0] if len(dataset.paths) == 1 else list(dataset.paths)
    plain = Dataset.from_path("?", "?")
    table = {"name": dataset.name, "path": path} | _without_defaults(plain, dataset, SETTINGS)
    if dataset.held_out is not None:
        default = HeldOut(documents=dataset.held_out.documents)
        given = _without_defaults(default, dataset.held_out, HOLDOUT)
        table["holdout"] = {"documents": default.documents} | given
    return table


def _without_defaults(plain: object, given: object, fields: Iterable[str]) -> dict[str, Any]:
    return {f: getattr(given, f) for f in fields if getattr(given, f) != getattr(plain, f)}


def _start_config(recipe: Recipe) -> str | dict[str, Any]:
    start = recipe.continues
    if start is None:
        return ""
    if not start.path:
        raise ValueError(
            "the recipe continues a state in memory and has no TOML form; write the state to a file, "
            "zephon.write_state_file(state, path), and use recipe.continue_from(path)"
        )
    return {"path": start.path, "allow": list(start.allow)} if start.allow else start.path


def _schedule_config(recipe: Recipe) -> dict[str, Any]:
    if isinstance(recipe.schedule, Mapping):
        return dict(recipe.schedule)
    to_config = getattr(recipe.schedule, "to_config", None)
    if to_config is None:
        kind = type(recipe.schedule).__name__
        raise ValueError(f"schedule {kind} has no `to_config()`, so the recipe has no TOML form")
    return dict(to_config())


def _key(name: str) -> str:
    bare = name.replace("-", "").replace("_", "")
    return name if bare.isascii() and bare.isalnum() else toml_value(name)


def toml_value(value: Any) -> str:
    """Returns a value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, numbers.Integral):
        return repr(int(value))
    if isinstance(value, numbers.Real):  # numpy's too, of which the repr is no TOML
        return repr(float(value))
    if isinstance(value, str | os.PathLike):
        return json.dumps(os.fspath(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(str(k))} = {toml_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(v) for v in value) + "]"
    raise ValueError(f"{value!r} has no TOML form")
