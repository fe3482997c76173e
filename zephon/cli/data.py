"""`zephon data ls|stats|sample`: what there is of a recipe's datasets, before anything is trained on it.

Upstream: the shell. Downstream: `zephon.survey`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from zephon.catalogue import open_catalogue
from zephon.check.report import format_bytes
from zephon.cli.common import (
    BackendOption,
    CacheOption,
    JsonOption,
    LateProgress,
    RecipeArgument,
    SetOption,
    Source,
    add_row,
    cut,
    new_table,
    write,
    write_json,
    write_table,
)
from zephon.dataset import Dataset
from zephon.opened import SPOOL_BYTES, OpenedDataset, default_cache, open_dataset
from zephon.recipe import Recipe
from zephon.runfolder import read_lock
from zephon.streaming import StreamReader
from zephon.survey import Seen, Survey, histogram, look
from zephon.tokenizer import load_tokenizer
from zephon.urls import redact

TOP_VALUES = 8
BAR_WIDTH = 40
TEXT_WIDTH = 300

app = typer.Typer(no_args_is_help=True, help="Look at the datasets of a recipe: files, lengths, documents.")

DatasetOption = Annotated[
    list[str] | None, typer.Option("--dataset", metavar="NAME", help="Only this dataset; may be repeated.")
]


@app.command("ls")
def list_datasets(
    recipe: RecipeArgument,
    files: Annotated[bool, typer.Option("--files", help="Every file, too.")] = False,
    datasets: DatasetOption = None,
    settings: SetOption = None,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """List datasets: kind, files, bytes, chunks and documents; with --files each file."""
    source = Source(recipe=recipe, settings=settings, cache=cache, backend="auto")
    with LateProgress() as progress:
        opened = _open(source, datasets, progress)
        found = [_describe(dataset, one) for dataset, one in opened]
        for _, one in opened:
            one.reader.close()
    if as_json:
        write_json({"datasets": found if files else [_without_files(entry) for entry in found]})
        return
    table = new_table("dataset", "kind", "#files", "#bytes", "#chunks", "#documents", "path")
    for entry in found:
        counts = ["not counted" if entry[n] is None else f"{entry[n]:,}" for n in ("chunks", "documents")]
        add_row(
            table, entry["name"], entry["kind"], f"{len(entry['files']):,}", format_bytes(entry["bytes"]),
            *counts, ", ".join(entry["paths"]),
        )  # fmt: skip
    write_table(table)
    if files:
        listed = new_table("dataset", "#documents", "#bytes", "file")
        for entry in found:
            for name, size, count in entry["files"]:
                number = "not counted" if count is None else f"{count:,}"
                add_row(listed, entry["name"], number, f"{size:,}", name)
        write("")
        write_table(listed)


@app.command("stats")
def statistics(
    recipe: RecipeArgument,
    documents: Annotated[
        int, typer.Option("--documents", min=0, help="How many of each dataset to look at; 0: all.")
    ] = 1000,
    tokens: Annotated[bool, typer.Option("--tokens/--no-tokens", help="Count tokens, too.")] = True,
    datasets: DatasetOption = None,
    settings: SetOption = None,
    cache: CacheOption = None,
    backend: BackendOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Show lengths, faults and the values of `columns`, from documents spread over each dataset."""
    source = Source(recipe=recipe, settings=settings, cache=cache, backend=backend)
    found: list[tuple[Survey, int | None]] = []
    with (
        LateProgress() as progress,
        _looking(source, datasets, progress, tokens) as (loaded, opened, encoder),
    ):
        for dataset, one in opened:
            survey = Survey(dataset.name)
            for seen in look(
                dataset, one.reader, seed=loaded.seed, num_documents=documents or None, encoder=encoder,
                report=progress,
            ):  # fmt: skip
                survey.add(seen)
            found.append((survey, _count(one)))
    if as_json:
        write_json({"datasets": [_survey_json(survey, count) for survey, count in found]})
        return
    _draw_lengths(found)
    for survey, _ in found:
        _draw_survey(survey)


@app.command("sample")
def sample(
    recipe: RecipeArgument,
    documents: Annotated[
        int, typer.Option("-n", "--documents", min=1, help="Documents of each dataset.")
    ] = 5,
    width: Annotated[int, typer.Option("--width", min=20, help="Characters of each text.")] = TEXT_WIDTH,
    datasets: DatasetOption = None,
    settings: SetOption = None,
    cache: CacheOption = None,
    backend: BackendOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Show some documents of each dataset, with file, record, tokens and `columns`."""
    source = Source(recipe=recipe, settings=settings, cache=cache, backend=backend)
    shown: list[tuple[str, Seen]] = []
    with LateProgress() as progress, _looking(source, datasets, progress, True) as (loaded, opened, encoder):
        assert encoder is not None
        for dataset, one in opened:
            shown += [
                (dataset.name, seen)
                for seen in look(
                    dataset, one.reader, seed=loaded.seed, num_documents=documents, encoder=encoder,
                    decode=encoder.decode, report=progress,
                )
            ]  # fmt: skip
    if as_json:
        write_json({"documents": [{"dataset": name} | asdict(seen) for name, seen in shown]})
        return
    for name, seen in shown:
        columns = "".join(f", {column} = {value!r}" for column, value in seen.columns.items())
        write(f"{name}: {seen.file}, record {seen.record:,}, {seen.num_tokens:,} tokens{columns}")
        text = (
            f"cannot be used ({seen.fault.kind}): {seen.fault.got}" if seen.fault else cut(seen.text, width)
        )
        write(f"  {text}\n")


def _open(
    source: Source, names: Sequence[str] | None, progress: LateProgress
) -> list[tuple[Dataset, OpenedDataset]]:
    """Returns the datasets that are asked for, opened; of a run folder, as its lock says."""
    recipe, folder = source.load(), Path(source.recipe)
    unknown = [name for name in names or () if name not in recipe.names]
    if unknown:
        raise typer.BadParameter(f"no dataset is named {unknown[0]!r}; there are {', '.join(recipe.names)}")
    cache = default_cache() if source.cache is None else Path(source.cache)
    lock = read_lock(folder) if recipe.follows_lock and folder.is_dir() else None
    catalogue = open_catalogue(recipe.catalogue, recipe.base, cache) if recipe.catalogue else None
    return [
        (
            dataset,
            open_dataset(
                recipe, dataset, cache=cache, spool_bytes=SPOOL_BYTES, report=progress, lock=lock,
                catalogue=catalogue,
            ),
        )
        for dataset in recipe.datasets
        if not names or dataset.name in names
    ]  # fmt: skip


@contextmanager
def _looking(
    source: Source, names: Sequence[str] | None, progress: LateProgress, with_tokens: bool
) -> Iterator[tuple[Recipe, list[tuple[Dataset, OpenedDataset]], Any]]:
    """Gives the recipe, the datasets that are asked for and the encoder, if any; closes the datasets."""
    recipe = source.load()
    opened = _open(source, names, progress)
    try:
        encoder = None
        if with_tokens:
            encoder, _ = load_tokenizer(recipe.tokenize, base=recipe.base, backend=source.backend)
        yield recipe, opened, encoder
    finally:
        for _, one in opened:
            one.reader.close()


def _count(one: OpenedDataset) -> int | None:
    """Returns the documents of a dataset; None where nobody counted them."""
    return None if isinstance(one.reader, StreamReader) else int(one.reader.chunks().num_documents.sum())


def _describe(dataset: Dataset, one: OpenedDataset) -> dict[str, Any]:
    identity, count = one.reader.identity(), _count(one)
    files = [[entry[0], entry[1], None if count is None else entry[2]] for entry in identity.get("files", [])]
    return {
        "name": dataset.name,
        "kind": identity["kind"],
        "bytes": sum(entry[1] for entry in files),
        "chunks": None if count is None else len(one.reader.chunks().num_documents),
        "documents": count,
        "paths": [redact(path) for path in dataset.paths],
        "files": files,
    }


def _without_files(entry: dict[str, Any]) -> dict[str, Any]:
    return entry | {"files": len(entry["files"])}


def _survey_json(survey: Survey, count: int | None) -> dict[str, Any]:
    return {
        "name": survey.name,
        "documents": count,
        "looked_at": survey.num_seen,
        "empty": survey.num_empty,
        "faults": dict(survey.faults),
        "bytes": _quantiles(survey.bytes),
        "tokens": _quantiles(survey.tokens),
        "columns": {name: dict(values.most_common()) for name, values in survey.columns.items()},
    }


def _quantiles(lengths: Sequence[int]) -> dict[str, int] | None:
    """Returns the total, and lengths in whole numbers that are met: least, 5%, median, 95%, greatest."""
    if not lengths:
        return None
    points = np.quantile(lengths, [0, 0.05, 0.5, 0.95, 1], method="lower").tolist()
    names = ("least", "p5", "median", "p95", "greatest")
    return {"total": sum(lengths)} | dict(zip(names, points, strict=True))


def _draw_lengths(found: Sequence[tuple[Survey, int | None]]) -> None:
    table = new_table(
        "dataset", "#documents", "#looked at", "#empty", "#faulty", "length in", "#mean", "#least", "#5%",
        "#median", "#95%", "#greatest",
    )  # fmt: skip
    for survey, count in found:
        documents = "not counted" if count is None else f"{count:,}"
        head = [survey.name, documents, f"{survey.num_seen:,}", f"{survey.num_empty:,}"]
        head.append(f"{survey.faults.total():,}")
        for unit, lengths in (("bytes", survey.bytes), ("tokens", survey.tokens)):
            if points := _quantiles(lengths):
                numbers = [f"{points[n]:,}" for n in ("least", "p5", "median", "p95", "greatest")]
                add_row(table, *head, unit, f"{points['total'] / len(lengths):,.0f}", *numbers)
                head = [""] * len(head)
    write_table(table)


def _draw_survey(survey: Survey) -> None:
    """Draws the lengths of a dataset's documents, what is wrong with some, and the values of its columns."""
    unit, lengths = ("tokens", survey.tokens) if survey.tokens else ("bytes", survey.bytes)
    bins = histogram(lengths)
    if bins:
        write("")
        table = new_table(f"#{survey.name}: {unit}", "#documents", "")
        most = max(number for _, _, number in bins)
        for first, last, number in bins:
            bar = "#" * -(-BAR_WIDTH * number // most)
            add_row(table, f"{first:,} to {last - 1:,}", f"{number:,}", bar)
        write_table(table)
    for kind, number in sorted(survey.faults.items()):
        write(f"{survey.name}: {number:,} documents cannot be used ({kind})")
    for column, values in survey.columns.items():
        write("")
        table = new_table(f"{survey.name}: {column}", "#documents", "#share")
        for value, number in sorted(values.items(), key=lambda item: (-item[1], item[0]))[:TOP_VALUES]:
            add_row(table, cut(value, BAR_WIDTH), f"{number:,}", f"{number / survey.num_seen:.1%}")
        if len(values) > TOP_VALUES:
            rest = len(values) - TOP_VALUES
            add_row(table, f"{rest:,} others", "", "")
        write_table(table)
