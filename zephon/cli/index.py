"""`zephon index`: looks at every file of a recipe once, and writes a catalogue for all launches to come.

Upstream: the shell. Downstream: `zephon.indexing`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zephon.check.report import format_bytes
from zephon.cli.common import (
    CacheOption,
    JsonOption,
    LateProgress,
    RecipeArgument,
    SetOption,
    Source,
    add_row,
    new_table,
    write,
    write_json,
    write_table,
)
from zephon.indexing import Indexed, index_recipe
from zephon.opened import default_cache


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
    that `where` and sorted orders ask for. Stopped and started again it goes on where it was. A recipe with
    `catalogue = "URL"` then opens without listing or opening its files.
    """
    source = Source(recipe=recipe, settings=settings, cache=cache, backend="auto")
    with LateProgress() as progress:
        folder = default_cache() if cache is None else Path(cache)
        catalogue_hash, found, left_out = index_recipe(source.load(), out, cache=folder, report=progress)
    if as_json:
        write_json(
            {"hash": catalogue_hash, "datasets": [_to_json(one) for one in found], "left_out": left_out}
        )
        return
    table = new_table("dataset", "kind", "#files", "#bytes", "#chunks", "#documents")
    for one in found:
        documents = "not counted" if one.num_documents is None else f"{one.num_documents:,}"
        chunks = "-" if one.num_documents is None else f"{one.num_chunks:,}"
        size = format_bytes(one.num_bytes)
        add_row(table, one.name, one.kind, f"{one.num_files:,}", size, chunks, documents)
    write_table(table)
    if left_out:
        write(f"left out, as they have no files: {', '.join(left_out)}")
    write(f'catalogue {catalogue_hash[:12]} in {out}; name it in the recipe: catalogue = "{out}"')


def _to_json(one: Indexed) -> dict[str, object]:
    return {name: getattr(one, name) for name in Indexed.__slots__}
