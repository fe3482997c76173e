"""How many tokens datasets have, from a small sample of each: what plans and previews of a run rest on.

Upstream: an opened recipe. Downstream: `Estimates`, for the plan and the command line. A sample is spread
over the chunks of a dataset (`sampling.py`), counted as a run counts (`counting.py`) and weighed with the
chunks as what differs (`weighing.py`, `intervals.py`). What was measured is kept in the cache by content:
dataset, tokenizer and what was asked for.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any

from zephon import (
    Constant,
    Dataset,
    Opened,
    Packing,
    Recipe,
    Tokenize,
    check_whole,
    default_cache,
    open_recipe,
    write_atomically,
)
from zephon_curriculum.estimation.counting import (
    Frame,
    count,
    design_of,
    exact_tokens,
    frame_of,
    is_tokenized,
    text_bytes,
)
from zephon_curriculum.estimation.estimates import DatasetEstimate, Estimates
from zephon_curriculum.estimation.sampling import SampleDesign
from zephon_curriculum.estimation.weighing import Pinned, Weigher, from_pinned, from_tables
from zephon_curriculum.figures import Report, plural, short

CHUNKS = 32
SAMPLE_BYTES = 2 << 20
VERSION = 1
"""Of what a sample is and how it is weighed: another one measures anew."""


@dataclass(frozen=True, slots=True)
class TokenEstimation:
    """Measures the tokens of datasets; a pure function of the data, the tokenizer and these fields."""

    tokenizer: Tokenize | str | os.PathLike[str] | None = None
    """In place of a recipe's own, of which a path keeps `bos` and `eos`; needed without a recipe."""
    _: KW_ONLY
    chunks: int = CHUNKS
    """How many chunks of each dataset are opened, at most about."""
    sample_bytes: int = SAMPLE_BYTES
    """How much text of each dataset is tokenized, about, but 4 documents of each chunk; all of a dataset that
    has no more."""
    seed: int = 0
    """Another seed, or another name of the dataset, draws another sample."""
    bootstrap: bool = False
    """Whether intervals are by the bootstrap over chunks, where it serves, in place of Student's t."""
    pinned: Mapping[str, Pinned] = field(default_factory=dict)
    """By dataset, what the user says of it."""
    cache: str | os.PathLike[str] | None = None
    """The folder of indexes, spool and estimates; None: $ZEPHON_CACHE, or the user's cache folder."""
    backend: str = "auto"

    def __post_init__(self) -> None:
        for name, value in (("chunks", self.chunks), ("sample_bytes", self.sample_bytes)):
            check_whole(f"`{name}`", value, 1)
        for name, says in self.pinned.items():
            if not isinstance(says, Pinned):
                raise TypeError(f"`pinned` of {name!r} must be such as Pinned(tokens=1e9), got {says!r}")

    def measure(
        self, what: Recipe | Opened | Dataset | Iterable[Dataset], *, report: Report | None = None
    ) -> Estimates:
        """Returns the estimates of the datasets of a recipe, or of datasets on their own.

        Cost: about a second for 16 MB of text, and nothing a second time. `report` gets
        (what, done, total) for progress.
        """
        with self._open(what, report) as opened:
            found = (
                self._known(opened, job) or self._count(opened, job, report) for job in self._jobs(opened)
            )
            return Estimates(datasets=tuple(found), tokenizer=_digest(opened.lock["tokenizer"]))

    def cost(self, opened: Opened) -> str:
        """Returns in a line what `measure` reads of opened data; reads nothing but what is kept."""
        jobs = [job for job in self._jobs(opened) if self._known(opened, job) is None]
        texts = [text_bytes(job.frame, job.design, encodes=job.frame.name not in self.pinned) for job in jobs]
        if not jobs:
            return "reads nothing: all is pinned, kept from an earlier time or in the files' own tables"
        chunks = plural(sum(len(job.design.chunks) for job in jobs), "chunk")
        looked, counted = (short(sum(sizes)) for sizes in zip(*texts, strict=True))
        places = f"{chunks} of {plural(len(jobs), 'dataset')}"
        return f"looks at about {looked} bytes of {places}, tokenizes {counted} of them"

    def _open(self, what: Recipe | Opened | Dataset | Iterable[Dataset], report: Report | None) -> Any:
        """Returns a context that gives the opened recipe, and closes it where it is opened here."""
        if isinstance(what, Opened):
            if self.tokenizer is not None:
                raise ValueError("`tokenizer` must be left out for an opened recipe, which has its own")
            return nullcontext(what)
        if isinstance(what, Recipe):
            tokenize = self._tokenize(what.tokenize)
            recipe = what if tokenize is None else replace(what, tokenize=tokenize)
        else:
            recipe = _recipe_of((what,) if isinstance(what, Dataset) else tuple(what), self._tokenize(None))
        return closing(open_recipe(recipe, cache=self.cache, backend=self.backend, report=report))

    def _tokenize(self, of_recipe: Tokenize | None) -> Tokenize | None:
        """Returns the tokenizer that was given here; a path adds what that of the recipe does."""
        if self.tokenizer is None or isinstance(self.tokenizer, Tokenize):
            return self.tokenizer
        path = os.fspath(self.tokenizer)
        return Tokenize(tokenizer=path) if of_recipe is None else replace(of_recipe, tokenizer=path)

    def _check_pinned(self, opened: Opened) -> None:
        names = opened.recipe.names
        if unknown := [name for name in self.pinned if name not in names]:
            raise ValueError(f"`pinned` names {unknown[0]!r}; the datasets are {', '.join(names)}")
        for name, says in self.pinned.items():
            if says.tokens_per_byte is not None and is_tokenized(opened, names.index(name)):
                raise ValueError(
                    f"`pinned` has `tokens_per_byte` for dataset {name!r}, which is of token ids; "
                    "leave it out, or pin `tokens`"
                )

    def _jobs(self, opened: Opened) -> list[_Job]:
        self._check_pinned(opened)
        return [self._job(opened, index) for index in range(len(opened.readers))]

    def _job(self, opened: Opened, index: int) -> _Job:
        frame = frame_of(opened, index)
        stream = json.dumps(["zephon estimate", VERSION, self.seed, frame.name])
        design = design_of(frame, chunks=self.chunks, sample_bytes=self.sample_bytes, stream=stream)
        digest = _digest(self._key(opened, frame))
        folder = default_cache() if self.cache is None else Path(self.cache)
        path = folder / "estimates" / digest[:2] / f"{digest[2:32]}.json"
        return _Job(frame=frame, design=design, stream=stream, key=digest, path=path)

    def _key(self, opened: Opened, frame: Frame) -> list[Any]:
        """Returns all that decides what is found."""
        recipe, dataset = opened.recipe, opened.recipe.datasets[frame.index]
        rule, says = opened.packer.length, self.pinned.get(frame.name)
        held_out = opened.held_out[frame.index] if opened.held_out else None
        return [
            VERSION, self.seed, self.chunks, self.sample_bytes, self.bootstrap,
            None if says is None else says.values(),
            [frame.name, dataset.text, dataset.tokens, dataset.dtype, dataset.where, dataset.limit],
            [dataset.on_error, dataset.stream, dataset.held_out and dataset.held_out.part],
            None if held_out is None else held_out.to_json(),
            opened.lock["data"][frame.name], opened.lock["tokenizer"], recipe.tokenize.parse_special,
            [rule.overlong, rule.max_tokens],
        ]  # fmt: skip

    def _known(self, opened: Opened, job: _Job) -> DatasetEstimate | None:
        """Returns what is said, stands in the files' own tables or was kept; None where none is."""
        says = self.pinned.get(job.frame.name)
        if says is not None and says.tokens_per_byte is None:
            return from_pinned(job.frame, says)
        tokens = exact_tokens(opened, job.frame)
        return _read(job.path, job.key) if tokens is None else from_tables(job.frame, tokens)

    def _count(self, opened: Opened, job: _Job, report: Report | None) -> DatasetEstimate:
        says = self.pinned.get(job.frame.name)
        rate = None if says is None else says.tokens_per_byte
        counted = count(opened, job.frame, job.design, stream=job.stream, encodes=rate is None, report=report)
        names = job.stream if self.bootstrap else ""
        found = Weigher(frame=job.frame, counted=counted, bootstrap=names).estimate(rate)
        _write(job.path, job.key, found)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    frame: Frame
    design: SampleDesign
    stream: str
    key: str
    path: Path


def _recipe_of(datasets: Sequence[Dataset], tokenize: Tokenize | None) -> Recipe:
    """Returns a recipe that only names datasets and a tokenizer."""
    if tokenize is None:
        raise ValueError(
            "`tokenizer` must be given for datasets without a recipe: TokenEstimation(tokenizer)"
        )
    return Recipe(
        seed=0,
        global_batch_size=1,
        datasets=tuple(datasets),
        schedule=Constant({dataset.name: 1 for dataset in datasets}),
        tokenize=tokenize,
        packing=Packing(seq_len=1),
    )


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _read(path: Path, key: str) -> DatasetEstimate | None:
    """Returns the estimate that was kept under a key; None where there is none in good order."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if (kept["key"], kept["sha256"]) != (key, _digest(kept["estimate"])):
            return None
        return DatasetEstimate.from_json(kept["estimate"])
    except (OSError, ValueError, TypeError, LookupError):
        return None


def _write(path: Path, key: str, found: DatasetEstimate) -> None:
    data = found.to_json()
    kept = {"key": key, "sha256": _digest(data), "estimate": data}
    write_atomically(path, json.dumps(kept, indent=1) + "\n")
