"""`zephon data ls|stats|sample`: what there is of a recipe's datasets, before anything is trained on it.

Upstream: the shell. Downstream: `zephon.survey`, and `data_output.py`, which draws what is found. Each
dataset is opened on its own, so a fault of one does not hide the others; the exit code is the first one's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from zephon.catalogue import open_catalogue
from zephon.cli import data_output
from zephon.cli.common import (
    BackendOption,
    CacheOption,
    Command,
    JsonOption,
    RecipeArgument,
    SetOption,
    Source,
)
from zephon.cli.exits import EXIT_TEXT, MEANING, exit_code
from zephon.cli.output import LateProgress, visible, visible_lines, write_json
from zephon.dataset import TRAIN, Dataset
from zephon.errors import ZephonError
from zephon.opened import SPOOL_BYTES, OpenedDataset, default_cache, open_dataset
from zephon.runfolder import read_lock
from zephon.streaming import StreamReader
from zephon.survey import Seen, Survey, look, mean_bytes
from zephon.tokenizer import Encoder, load_tokenizer
from zephon.urls import redact

TEXT_WIDTH = 300
REFUSALS = (ZephonError, ValueError, TypeError, LookupError, OSError)

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, help="Look at the datasets of a recipe: files, lengths, documents.")

DatasetOption = Annotated[
    list[str] | None, typer.Option("--dataset", metavar="NAME", help="Only this dataset; may be repeated.")
]
TokensOption = Annotated[bool, typer.Option("--tokens/--no-tokens", help="Count tokens, too.")]


@app.command("ls", cls=Command, epilog=EXIT_TEXT)
def list_datasets(
    recipe: RecipeArgument,
    files: Annotated[bool, typer.Option("--files", help="Every file, too.")] = False,
    datasets: DatasetOption = None,
    settings: SetOption = None,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """List datasets: kind, files, bytes, chunks and documents; with --files each file.

    Documents are those that `where`, `limit` and `holdout` leave. JSON: {datasets: [{name, kind, num_files,
    bytes, chunks, documents, documents_in_files, paths, files: [{name, bytes, documents}]}], errors:
    [{subject, kind, message, exit_code}]}; `files` only with --files; null where nobody counted.
    """
    source = Source(recipe=recipe, settings=settings, cache=cache, backend="auto")
    with LateProgress() as progress:
        looking = _Looking(source, datasets, progress)
        found = looking.each(lambda dataset, one: _describe(dataset, one, files))
    looking.end(as_json, lambda: {"datasets": found}, lambda: data_output.draw_list(found))


@app.command("stats", cls=Command, epilog=EXIT_TEXT)
def statistics(
    recipe: RecipeArgument,
    documents: Annotated[
        int, typer.Option("--documents", min=0, help="How many of each dataset to look at; 0: all.")
    ] = 1000,
    tokens: TokensOption = True,
    datasets: DatasetOption = None,
    settings: SetOption = None,
    cache: CacheOption = None,
    backend: BackendOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Show lengths, faults and the values of `columns`, from documents spread over each dataset.

    Lengths are of documents without a fault. About tokens: tokens per byte of these documents, and the bytes
    of 64 MiB in whole chunks. Of a stream the first 1,024 records of some files are looked at.
    JSON: {datasets: [{name, documents, looked_at, empty, faults:
    {kind: number}, bytes: {total, mean, least, p5, median, p95, greatest}, tokens: the same, about_tokens,
    columns: {name: {values: {value: number}, others, missing, numbers: {least, ..., greatest}}}}], errors};
    null where there is none.
    """
    source = Source(recipe=recipe, settings=settings, cache=cache, backend=backend)
    with LateProgress() as progress:
        looking = _Looking(source, datasets, progress, tokens=tokens)

        def survey(dataset: Dataset, one: OpenedDataset) -> tuple[Survey, int | None]:
            found = Survey(dataset.name)
            for seen in looking.look(dataset, one, documents or None):
                found.add(seen)
            count = _count(one)
            if found.tokens and found.num_seen != count:
                found.mean_bytes = mean_bytes(dataset, one.reader, seed=looking.recipe.seed)
            return found, count

        found = looking.each(survey)
    looking.end(
        as_json,
        lambda: {"datasets": [data_output.survey_json(survey, count) for survey, count in found]},
        lambda: data_output.draw_surveys(found),
    )


@app.command("sample", cls=Command, epilog=EXIT_TEXT)
def sample(
    recipe: RecipeArgument,
    documents: Annotated[
        int, typer.Option("-n", "--documents", min=1, help="Documents of each dataset.")
    ] = 5,
    width: Annotated[int, typer.Option("--width", min=20, help="Characters of each text.")] = TEXT_WIDTH,
    tokens: TokensOption = True,
    datasets: DatasetOption = None,
    settings: SetOption = None,
    cache: CacheOption = None,
    backend: BackendOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Show some documents of each dataset, with file, record, tokens and `columns`.

    The same ones each time: another `--set seed=N` shows others. Records are counted from 0. JSON, with whole
    texts: {documents: [{dataset, file, record, text, num_bytes, num_tokens, fault: {kind, got, rule} or null,
    columns: {name: value}}], errors}.
    """
    source = Source(recipe=recipe, settings=settings, cache=cache, backend=backend)
    with LateProgress() as progress:
        looking = _Looking(source, datasets, progress, tokens=tokens)

        def take(dataset: Dataset, one: OpenedDataset) -> list[tuple[str, Seen]]:
            return [(dataset.name, seen) for seen in looking.look(dataset, one, documents, decodes=True)]

        shown = [pair for pairs in looking.each(take) for pair in pairs]
    looking.end(
        as_json,
        lambda: {"documents": data_output.plain([{"dataset": name} | asdict(seen) for name, seen in shown])},
        lambda: data_output.draw_documents(shown, width),
    )


class _Looking:
    """A look at the datasets of a recipe, one after the other; each is closed before the next is opened."""

    def __init__(
        self, source: Source, names: Sequence[str] | None, progress: LateProgress, *, tokens: bool = False
    ) -> None:
        """With `tokens` the tokenizer is loaded; where that cannot be, it is kept as an error."""
        self.recipe, self._progress, folder = source.load(), progress, Path(source.recipe)
        recipe = self.recipe
        if unknown := [name for name in names or () if name not in recipe.names]:
            there = ", ".join(recipe.names)
            raise typer.BadParameter(f"no dataset is named {unknown[0]!r}; there are {there}")
        self._datasets = [dataset for dataset in recipe.datasets if not names or dataset.name in names]
        self._cache = default_cache() if source.cache is None else Path(source.cache)
        self._lock = read_lock(folder) if recipe.follows_lock and folder.is_dir() else None
        written = recipe.catalogue
        self._catalogue = open_catalogue(written, recipe.base, self._cache) if written else None
        self.errors: list[dict[str, Any]] = []
        self._encoder: Encoder | None = None
        try:
            if tokens:
                self._encoder, _ = load_tokenizer(recipe.tokenize, base=recipe.base, backend=source.backend)
        except REFUSALS as error:
            self._keep("tokenizer", error)

    def each(self, use: Callable[[Dataset, OpenedDataset], T]) -> list[T]:
        """Returns what `use` gives for each dataset that is asked for; what it or opening raises is kept."""
        found = []
        for dataset in self._datasets:
            try:
                one = open_dataset(
                    self.recipe, dataset, cache=self._cache, spool_bytes=SPOOL_BYTES, report=self._progress,
                    lock=self._lock, catalogue=self._catalogue,
                )  # fmt: skip
                try:
                    found.append(use(dataset, one))
                finally:
                    one.reader.close()
            except REFUSALS as error:
                self._keep(f"dataset {dataset.name}", error)
        return found

    def look(
        self, dataset: Dataset, one: OpenedDataset, num_documents: int | None, *, decodes: bool = False
    ) -> Iterator[Seen]:
        """Yields documents of a dataset, without those that its part leaves out."""
        if dataset.columns and isinstance(one.reader, StreamReader):
            typer.echo(f"{visible(dataset.name)}: a stream's `columns` are not shown", err=True)
        return look(
            dataset,
            one.reader,
            seed=self.recipe.seed,
            num_documents=num_documents,
            held_out=one.held_out if _leaves_out(one) else None,
            encoder=self._encoder,
            decode=self._encoder.decode if self._encoder is not None and decodes else None,
            report=self._progress,
        )

    def _keep(self, subject: str, error: Exception) -> None:
        code = exit_code(error)
        message = str(error) if str(error) and not isinstance(error, KeyError) else repr(error)
        entry = {"subject": subject, "kind": MEANING[code], "message": message, "exit_code": int(code)}
        self.errors.append(entry)

    def end(self, as_json: bool, to_json: Callable[[], dict[str, Any]], draw: Callable[[], None]) -> None:
        """Shows what was found, and what could not be looked at: exits with the code of the first of that."""
        if as_json:
            write_json(to_json() | {"errors": self.errors})
        else:
            draw()
            for error in self.errors:
                typer.echo(visible_lines(error["message"]), err=True)
        if self.errors:
            raise typer.Exit(self.errors[0]["exit_code"])


def _leaves_out(one: OpenedDataset) -> bool:
    return one.held_out is not None and one.held_out.held_out.part == TRAIN


def _count(one: OpenedDataset) -> int | None:
    """Returns the documents of a dataset, without those left out; None where nobody counted them."""
    if isinstance(one.reader, StreamReader):
        return None
    count = int(one.reader.chunks().num_documents.sum())
    return count - len(one.held_out.documents) if one.held_out and _leaves_out(one) else count


def _describe(dataset: Dataset, one: OpenedDataset, with_files: bool) -> dict[str, Any]:
    identity, count = one.reader.identity(), _count(one)
    is_counted, chunks = count is not None, one.reader.chunks()
    files = [
        {"name": entry[0], "bytes": entry[1], "documents": entry[2] if is_counted else None}
        for entry in identity.get("files", [])
    ]
    num_bytes = sum(file["bytes"] for file in files) if files else int(chunks.num_bytes.sum())
    return {
        "name": dataset.name,
        "kind": str(identity.get("kind", "?")),
        "num_files": len(files),
        "bytes": num_bytes,
        "chunks": len(chunks.num_documents) if is_counted else None,
        "documents": count,
        "documents_in_files": identity.get("num_documents"),
        "paths": [redact(path) for path in dataset.paths],
    } | ({"files": files} if with_files else {})
