"""`zephon index`: looks at every file of a recipe once, and writes a catalogue for all launches to come.

Upstream: the shell. Downstream: `zephon.indexing`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from zephon.catalogue import MANIFEST, superseded
from zephon.check.report import format_bytes
from zephon.cli.common import CacheOption, JsonOption, RecipeArgument, SetOption, Source
from zephon.cli.output import LateProgress, add_row, new_table, visible, write, write_json, write_table
from zephon.indexing import Indexed, index_recipe
from zephon.opened import default_cache
from zephon.paths import absolute
from zephon.urls import is_url, redact


def index(
    recipe: RecipeArgument,
    out: Annotated[
        str, typer.Option("--out", metavar="URL", help="Folder or URL to write the catalogue to.")
    ],
    settings: SetOption = None,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look at every file once, and write what a launch needs to know of them.

    Reads footers, counts the records of formats that do not say how many they have, and finds the documents
    that `where` and sorted orders ask for. Stopped and started again with the same cache it goes on where it
    was. A recipe with `catalogue = "URL"` then opens without listing or opening its files. Over an earlier
    catalogue runs that use that one go on with it. JSON: {hash, datasets: [{name, kind, num_files, num_bytes,
    num_chunks, num_documents}], left_out}; num_documents is null of a stream.
    """
    source = Source(recipe=recipe, settings=settings, cache=cache, backend="auto")
    with LateProgress() as progress:
        loaded, folder = source.load(), default_cache() if cache is None else Path(cache)
        catalogue_hash, found, left_out = index_recipe(loaded, out, cache=folder, report=progress)
    if as_json:
        datasets = [_to_json(one) for one in found]
        write_json({"hash": catalogue_hash, "datasets": datasets, "left_out": left_out})
        return
    table = new_table("dataset", "kind", "#files", "#bytes", "#chunks", "#documents")
    for one in found:
        documents = "not counted" if one.num_documents is None else f"{one.num_documents:,}"
        chunks = "-" if one.num_documents is None else f"{one.num_chunks:,}"
        size = format_bytes(one.num_bytes)
        add_row(table, one.name, one.kind, f"{one.num_files:,}", size, chunks, documents)
    write_table(table)
    place = absolute(out, Path.cwd())
    shown = visible(redact(out if is_url(place) else os.path.relpath(place, loaded.base)))
    if left_out:
        write(f"left out, as they have no files: {', '.join(map(visible, left_out))}")
    if old := [] if is_url(place) else superseded(Path(place)):
        size = format_bytes(sum(path.stat().st_size for path in old))
        write(f"{len(old)} files of earlier catalogues ({size}) are still there, for runs that use them:")
        write(f"  when none does, remove those that {shown}/{MANIFEST} does not name")
    write(f'catalogue {catalogue_hash[:12]} is written; name it in the recipe: catalogue = "{shown}"')


def _to_json(one: Indexed) -> dict[str, object]:
    return {name: getattr(one, name) for name in Indexed.__slots__}
