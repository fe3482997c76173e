"""`zephon init`: a first recipe for data that lies in files.

Upstream: `discover.py`, which says what lies there. Downstream: the recipe that all other commands read.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Protocol, cast

import typer

from zephon.cachefiles import write_atomically
from zephon.cli.common import JsonOption
from zephon.cli.discover import FoundDataset, LeftOut, find_datasets, find_tokenizer
from zephon.cli.discover_texts import TEXT
from zephon.cli.output import visible, write, write_json
from zephon.errors import CheckError, DataError
from zephon.plugins import load_all
from zephon.recipe import Recipe
from zephon.tokenizer.file import find_tokenizer_file, read_tokenizer_file
from zephon.toml import toml_value
from zephon.urls import is_url

SEQ_LEN = 2048
GLOBAL_BATCH_SIZE = 32
WEIGHTS_SUM = 100
PLACEHOLDER = "PATH/OF/YOUR/tokenizer.json"

TemplateOption = Annotated[
    str,
    typer.Option(
        "--template",
        metavar="NAME",
        help="A curriculum of a public recipe, by a plugin such as zephon-curriculum, as the schedule.",
    ),
]
RoleOption = Annotated[
    list[str] | None,
    typer.Option(
        "--role",
        metavar="ROLE=DATASET,...",
        help="Which datasets play a role of the template; else that of the same name.",
    ),
]


def init(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Folders, files, patterns or URLs of data.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The recipe to write.")] = Path("recipe.toml"),
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", help="A tokenizer.json or its folder; else looked for near the data."),
    ] = None,
    template: TemplateOption = "",
    role: RoleOption = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a recipe that is there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a first recipe for a folder of data, with comments that explain every line.

    One dataset for each PATH; a folder that holds only folders with data gives one for each of these.
    JSONL, CSV and text, also compressed, Parquet, Arrow, what Hugging Face `datasets` saved, and files of
    token ids are found, on disks and behind URLs; source code is text, each file one document. What cannot
    be read, or has no text column, is left out and named.
    Weights are in proportion to the size of the files, of Parquet to that of the texts uncompressed, or
    those of a template. Run folders are left out.
    """
    if out.exists() and not force:
        raise CheckError.explained(
            f"recipe {str(out)!r} is there already",
            got=f"a file of {out.stat().st_size} bytes",
            rule="init does not overwrite a recipe",
            cure="give another name with --out, or --force",
        )
    datasets, left_out = find_datasets(paths)
    for other in left_out:
        place = f" of {visible(other.part_of)}" if other.part_of else f": {visible(other.path)}"
        typer.echo(f"left out{place}: {visible(other.why)}", err=True)
    schedule = None
    if template or role:
        schedule = schedule_lines(find_template(template), role or (), [each.name for each in datasets])
    found = (
        find_tokenizer(paths, out) if tokenizer is None else find_tokenizer_file(str(tokenizer), Path.cwd())
    )
    new = out.with_name(f".{out.name}.new")  # in place only once it can be read
    write_atomically(new, recipe_text(datasets, left_out, found, out, schedule))
    try:
        Recipe.from_toml(new)
        os.replace(new, out)
    finally:
        new.unlink(missing_ok=True)
    _say(datasets, left_out, found, out, as_json=as_json)


class Template(Protocol):
    """A curriculum of roles; a plugin of `templates` is a function that returns some."""

    name: str
    summary: str
    source: str
    """Where its numbers are published."""
    roles: Mapping[str, str]
    """Role -> what plays it."""

    def table(self, datasets: Mapping[str, Sequence[str]]) -> Mapping[str, Any]:
        """Returns the `[schedule]` table with the datasets of each role; positions are parts of the run."""
        ...


def find_template(name: str) -> Template:
    """Returns the template of that name, of any plugin."""
    found = {each.name: each for given in load_all("templates").values() for each in given()}
    if name not in found:
        known = ", ".join(found) or "those of plugins, such as zephon-curriculum, and none is installed"
        raise typer.BadParameter(f"--template must be one of {known}, got {name!r}")
    return cast(Template, found[name])


def schedule_lines(template: Template, roles: Sequence[str], names: Sequence[str]) -> list[str]:
    """Returns the `[schedule]` of a template, of which every role is played and every dataset plays one."""
    played = {role: [role] for role in template.roles if role in names}
    played |= {role: players.split(",") for role, _, players in (each.partition("=") for each in roles)}
    playing = [name for players in played.values() for name in players]
    for what, wrong in (
        ("role {!r} is none of the template", [role for role in played if role not in template.roles]),
        ("role {!r} is played by no dataset", [role for role in template.roles if role not in played]),
        ("no dataset is named {!r}", [name for name in playing if name not in names]),
        ("dataset {!r} plays no role", [name for name in names if name not in playing]),
    ):
        if wrong:
            raise typer.BadParameter(
                f"{what.format(wrong[0])}; --role takes ROLE=DATASET,... for roles "
                f"{', '.join(template.roles)} and datasets {', '.join(names)}"
            )
    lines = [f"# {template.name}: {template.summary}", f"# Source: {template.source}", "[schedule]"]
    for field, value in template.table(played).items():
        is_list = isinstance(value, list)
        entries = [f"    {toml_value(entry)}," for entry in value] if is_list else []
        lines += [f"{field} = [", *entries, "]"] if is_list else [f"{field} = {toml_value(value)}"]
    return lines


def recipe_text(
    datasets: Sequence[FoundDataset],
    left_out: Sequence[LeftOut],
    tokenizer: Path | None,
    out: Path,
    schedule: Sequence[str] | None = None,
) -> str:
    """Returns the recipe as TOML with comments; its `[schedule]` is that given, else constant weights."""
    base = out.resolve().parent
    lines = [
        "# A recipe for zephon: everything that decides what a model reads. The same recipe gives the same",
        "# batches on any number of GPUs. Relative paths start at the folder of this file.",
        "",
        "seed = 0                 # another seed gives another order of the documents",
        f"global_batch_size = {GLOBAL_BATCH_SIZE}   # rows of one optimizer step, over all GPUs",
        "# lanes = 32             # logical streams, by default as many as rows; the number of data-parallel",
        "#                        # ranks must divide them, now and after any restart",
        "# total_steps = 1000     # length of the run, where a schedule needs to know it"
        if schedule is None
        else "total_steps = 1000       # length of the run, of which the schedule's positions are parts",
        "",
        "[tokenize]",
        *_tokenizer_lines(tokenizer, base),
        "",
        "[packing]",
        f"seq_len = {SEQ_LEN}           # tokens of a row",
        'kind = "wrap"            # full rows, documents go on in the next; "best_fit": whole documents',
        "",
        *(_constant_lines(datasets) if schedule is None else schedule),
    ]
    for dataset in datasets:
        lines += ["", *_dataset_lines(dataset, base)]
    for other in left_out:
        path = toml_value(_relative(other.path, base))
        place = f" of {visible(other.part_of)}" if other.part_of else f": {path}"
        lines += ["", f"# Left out{place}", f"#   {visible(other.why)}"]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _constant_lines(datasets: Sequence[FoundDataset]) -> list[str]:
    sizes = [d.num_bytes if d.text_bytes is None else d.text_bytes for d in datasets]
    weights = [max(1, round(WEIGHTS_SUM * size / max(1, sum(sizes)))) for size in sizes]
    width = max(len(dataset.name) for dataset in datasets)
    return [
        "[schedule]",
        'kind = "constant"        # the same weights at every step; "stages" changes them at given steps',
        "",
        "[schedule.weights]       # shares of tokens, as these sizes; `zephon data stats` counts tokens",
        *(f"{d.name:{width}} = {w:<3}  # {_size(d)}" for d, w in zip(datasets, weights, strict=True)),
    ]


def _size(dataset: FoundDataset) -> str:
    """Returns the size that a weight is in proportion to."""
    if dataset.text_bytes is not None:
        return f"about {dataset.text_bytes:,} bytes of text, {dataset.num_bytes:,} on disk"
    return f"{dataset.num_bytes:,} bytes on disk{', compressed' * dataset.is_compressed}"


def _tokenizer_lines(tokenizer: Path | None, base: Path) -> list[str]:
    if tokenizer is None:
        return [
            "# No tokenizer.json lay near the data: write the path of yours, or of the folder that holds it.",
            f"tokenizer = {toml_value(PLACEHOLDER)}",
            "eos = true               # end every document with the tokenizer's own EOS token",
        ]
    try:
        eos = read_tokenizer_file(tokenizer, bos=False, eos=True, parse_special=False).eos_token
    except (ValueError, DataError):
        eos = None
    if eos is None:
        end = 'eos = false              # no EOS token found; name one of its special tokens: eos = "..."'
    else:
        end = f"eos = true               # end every document with the EOS token, {json.dumps(eos)}"
    return [
        f"tokenizer = {toml_value(_relative(str(tokenizer), base))}",
        end,
        "bos = false              # true: begin every document with the BOS token",
    ]


def _dataset_lines(dataset: FoundDataset, base: Path) -> list[str]:
    paths = [_relative(path, base) for path in dataset.paths]
    may_stream = dataset.is_compressed and dataset.kind in ("jsonl", "csv")
    path = toml_value(paths[0]) if len(paths) == 1 else "[" + ", ".join(map(toml_value, paths)) + "]"
    return [
        "[[datasets]]",
        f"name = {toml_value(dataset.name)}",
        f"path = {path}   # {dataset.num_files:,} {dataset.kind} file{'s' * (dataset.num_files != 1)}",
        *_column_lines(dataset),
        *(["# stream = true          # read in order, without one pass to count them"] if may_stream else []),
        '# on_error = "skip"      # count records that cannot be used and go on, instead of stopping',
    ]


def _column_lines(dataset: FoundDataset) -> list[str]:
    if dataset.kind == TEXT:
        return [f"# {dataset.why}" if dataset.is_kind_named else f'kind = "text"   # {dataset.why}']
    if dataset.text:
        return [f"text = {toml_value(dataset.text)}   # {dataset.why}"]
    fields = {"tokens": dataset.tokens, "dtype": dataset.dtype}
    lines = [f"{name} = {toml_value(value)}   # {dataset.why}" for name, value in fields.items() if value]
    as_is = "taken as they are: no BOS or EOS is added"
    return [*lines, f"# The documents are token ids, {as_is}" if lines else f"# {dataset.why}; {as_is}"]


def _relative(path: str, base: Path) -> str:
    return path if is_url(path) else Path(os.path.relpath(path, base)).as_posix()


def _say(
    datasets: Sequence[FoundDataset],
    left_out: Sequence[LeftOut],
    tokenizer: Path | None,
    out: Path,
    *,
    as_json: bool,
) -> None:
    following = f"zephon check {shlex.quote(str(out))}"
    if as_json:
        entries = [asdict(dataset) for dataset in datasets]
        path = None if tokenizer is None else str(tokenizer)
        others = [asdict(other) for other in left_out]
        values = {"recipe": str(out), "datasets": entries, "left_out": others, "tokenizer": path}
        write_json(values | {"next": following})
        return
    for dataset in datasets:
        files = f"{dataset.num_files:,} {dataset.kind} file{'s' * (dataset.num_files != 1)}"
        write(f"dataset {dataset.name}: {files}, {dataset.num_bytes:,} bytes")
        column = f"text in {dataset.text!r}" if dataset.text else "documents"
        write(f"  {column}: {dataset.why}")
    write(f"tokenizer: {tokenizer or 'none found: write its path into the recipe'}")
    write(f"wrote {out}; next:\n  {following}")
