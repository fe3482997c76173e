"""The recipe: everything the user decides about the data, as one frozen value.

Upstream: `pipeline.py` and `toml.py` build it. Downstream: `opened.py` opens what it names. Its
fingerprint is over the pure configuration: no paths, no schedule, no knob that cannot change a row.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from zephon import plugins
from zephon.dataset import IDENTITY, PAD, SHUFFLED, STOP, WHEN_EXHAUSTED, Dataset
from zephon.deal import DEAL_RUNS
from zephon.errors import check_whole
from zephon.mixture import WorkSource, WorkSourceContext
from zephon.order import GROUP_CHUNKS, GROUP_DOCUMENTS, WINDOW_CHUNKS, WINDOW_DOCUMENTS
from zephon.packing import Carrying, PackerPlan, Packing
from zephon.paths import anchor
from zephon.readers.lines import CHUNK_BYTES
from zephon.schedule import ControllerContext, Schedule, ScheduleContext, ScheduleTable, compile_schedule
from zephon.stages import Constant
from zephon.tokenizer import Tokenize
from zephon.urls import refuse_secret

if TYPE_CHECKING:
    from zephon.continuing import Start
    from zephon.loader import Loader
    from zephon.options import LoaderKeywords

FORMAT = 1
"""Version of the rules that turn a recipe into rows; a change of it changes every fingerprint."""
DEFAULT_FLUSH_EVERY = 64
NEAREST = 3
"""How many numbers a cure lists."""

MAX_NAMES = 8
"""How many datasets a `repr` names."""

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Datasets, mixture, tokenizer, packing and shape of the run."""

    seed: int
    global_batch_size: int
    """Rows of one optimizer step, over all ranks and micro-batches."""
    lanes: int = 0
    """Logical streams; 0: global_batch_size. It must divide global_batch_size and be divided by every
    data-parallel size that the run shall ever have."""
    datasets: tuple[Dataset, ...]
    schedule: Schedule | Config
    """A schedule, or its table of a TOML recipe with its `kind`."""
    tokenize: Tokenize
    packing: Packing
    work_source: Config = field(default_factory=lambda: {"kind": "mixture"})
    total_steps: int | None = None
    """The planned length of the run, for schedules that need one."""
    flush_every: int | None = None
    """Rows between flushes of a packer that cannot say what it carries (None: 64); others need none."""
    when_exhausted: str = STOP
    """What a lane does when a dataset with `max_epochs` has no more documents for it. `stop`: the run ends
    before the first step that some lane cannot fill. `redistribute`: the others take over its share, and the
    run ends so when none is left. `pad`: the same, but a lane that has ended gives padding until all have."""
    catalogue: str = ""
    """A folder or URL where `zephon index` wrote what there is of the datasets, so that no launch lists or
    opens their files; no part of the fingerprint."""
    controller: Config | None = None
    """What changes the schedule by what the run measures, with its `kind`; no part of the fingerprint: its
    decisions are amendments."""
    continues: Start | None = None
    """The state of an earlier phase that this one begins with; `continue_from` sets it."""
    base: Path = field(default_factory=Path, compare=False)
    """The folder at which relative paths start."""

    def __post_init__(self) -> None:
        check_whole("`seed`", self.seed, 0)
        check_whole("`global_batch_size`", self.global_batch_size, 1)
        check_whole("`lanes`", self.lanes, 0)
        if self.total_steps is not None:
            check_whole("`total_steps`", self.total_steps, 1)
        if self.flush_every is not None:
            check_whole("`flush_every`", self.flush_every, 1)
        if self.when_exhausted not in WHEN_EXHAUSTED:
            raise ValueError(f"`when_exhausted` must be one of {WHEN_EXHAUSTED}, got {self.when_exhausted!r}")
        refuse_secret("`catalogue`", self.catalogue)
        if self.lanes == 0:
            object.__setattr__(self, "lanes", self.global_batch_size)
        if self.global_batch_size % self.lanes:
            raise ValueError(
                f"`lanes` must divide `global_batch_size`, got {self.lanes} lanes for "
                f"{self.global_batch_size} rows; nearest: "
                f"{listed(nearest(divisors(self.global_batch_size), self.lanes))} lanes; a phase that keeps "
                f"its {self.lanes} lanes takes a multiple of {self.lanes} rows"
            )
        if not self.datasets:
            raise ValueError("`datasets` must have at least one dataset, got none")
        names = [dataset.name for dataset in self.datasets]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"`datasets` must have different names, got {twice[0]!r} twice")

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of the datasets, in order."""
        return tuple(dataset.name for dataset in self.datasets)

    def __repr__(self) -> str:
        names = ", ".join([*map(repr, self.names[:MAX_NAMES]), *["..."] * (len(self.names) > MAX_NAMES)])
        schedule = self.schedule
        kind = repr(schedule.get("kind")) if isinstance(schedule, Mapping) else type(schedule).__name__
        step = f"{self.global_batch_size:,} rows of {self.packing.seq_len:,} tokens a step"
        return f"Recipe of {names}: {step}, {self.lanes:,} lanes, schedule {kind}, seed {self.seed}"

    @property
    def rows_per_step(self) -> int:
        """Returns R, the rows that every lane gives to a step."""
        return self.global_batch_size // self.lanes

    @property
    def tokens_per_step(self) -> int:
        """Returns the token slots of a step."""
        return self.global_batch_size * self.packing.seq_len

    @property
    def is_finite(self) -> bool:
        """Returns whether the run ends by itself: whether some dataset has `max_epochs`."""
        return any(dataset.max_epochs is not None for dataset in self.datasets)

    @property
    def follows_lock(self) -> bool:
        """Returns whether an earlier lock says what is read: documents held out, commits of `hf://`."""
        is_split = any(dataset.held_out is not None for dataset in self.datasets)
        return is_split or any("hf://" in path for dataset in self.datasets for path in dataset.paths)

    def build_schedule(self) -> Schedule:
        """Returns the schedule, built by its plugin where the recipe holds a table."""
        if not isinstance(self.schedule, Mapping):
            return self.schedule
        config = dict(self.schedule)
        factory = plugins.find("schedules", _kind("schedule", config))
        return cast(Schedule, factory(config, self._schedule_context()))

    def compile_schedule(self) -> ScheduleTable:
        """Returns the integer table of the schedule."""
        return compile_schedule(self.build_schedule(), self._schedule_context())

    def _schedule_context(self) -> ScheduleContext:
        return ScheduleContext(
            names=self.names,
            total_steps=self.total_steps,
            tokens_per_step=self.tokens_per_step,
            base=self.base,
        )

    def build_work_source(self) -> WorkSource:
        """Returns the work source, built by its plugin."""
        config = dict(self.work_source)
        factory = plugins.find("work_sources", _kind("work_source", config))
        context = WorkSourceContext(datasets=self.datasets, schedule=self.build_schedule())
        return cast(WorkSource, factory(config, context))

    def controller_context(self, table: ScheduleTable) -> ControllerContext:
        """Returns what a controller may know of a run whose schedule says `table`."""
        return ControllerContext(
            names=self.names,
            base=table,
            total_steps=self.total_steps,
            tokens_per_step=self.tokens_per_step,
            seed=self.seed,
        )

    def build_packer_plan(self) -> PackerPlan:
        """Returns how to make a packer for each lane."""
        factory = plugins.find("packers", self.packing.kind)
        return cast(PackerPlan, factory(self.packing))

    def effective_flush_every(self, plan: PackerPlan) -> int | None:
        """Returns the rows between flushes; None for a packer that can say what it carries."""
        if isinstance(plan.make(), Carrying):
            return None
        return self.flush_every or DEFAULT_FLUSH_EVERY

    def configuration(self) -> dict[str, Any]:
        """Returns the pure configuration, by dotted field name; what the fingerprint is over."""
        config: dict[str, Any] = {
            "format": FORMAT,
            "seed": self.seed,
            "lanes": self.lanes,
            "global_batch_size": self.global_batch_size,
            "tokenize.bos": self.tokenize.bos,
            "tokenize.eos": self.tokenize.eos,
            "tokenize.parse_special": self.tokenize.parse_special,
            "order.window_chunks": WINDOW_CHUNKS,
            "order.window_documents": WINDOW_DOCUMENTS,
            "order.group_chunks": GROUP_CHUNKS,
            "order.group_documents": GROUP_DOCUMENTS,
            "order.jsonl_chunk_bytes": CHUNK_BYTES,
            "order.deal_runs": DEAL_RUNS,
            "datasets": list(self.names),
        }
        config |= {f"work_source.{name}": value for name, value in self.work_source.items()}
        plan = self.build_packer_plan()
        packing = self.packing.to_config() | dict(plan.options)
        config |= {f"packing.{name}": value for name, value in packing.items()}
        config["flush_every"] = self.effective_flush_every(plan)
        for dataset in self.datasets:
            config[f"datasets.{dataset.name}.text"] = dataset.text
            config[f"datasets.{dataset.name}.on_error"] = dataset.on_error
        return config | self._configuration_where_given()

    def _configuration_where_given(self) -> dict[str, Any]:
        """Returns what is only there where it is not the default, so that it changes no other fingerprint."""
        config: dict[str, Any] = {"when_exhausted": self.when_exhausted} if self.is_finite else {}
        if self.continues is not None:
            config["continues"] = self.continues.hash
        for dataset in self.datasets:
            where, held_out = f"datasets.{dataset.name}", dataset.held_out
            if dataset.order != SHUFFLED:
                config[f"{where}.order"] = dataset.order
            for name in ("tokens", "dtype", "where", "limit", "stream", "max_epochs"):
                if value := getattr(dataset, name):
                    config[f"{where}.{name}"] = value
            if held_out is not None:
                config |= {f"{where}.holdout.{name}": value for name, value in asdict(held_out).items()}
        return config

    def fingerprint(self) -> str:
        """Returns the SHA-256 of the configuration, as hex."""
        return hash_json(self.configuration())

    def diff(self, other: Recipe) -> list[tuple[str, Any, Any]]:
        """Returns (field, ours, theirs) where the configurations or the schedules' tables differ."""
        found = diff_configuration(self.configuration(), other.configuration())
        ours, theirs = self.compile_schedule(), other.compile_schedule()
        if self.names == other.names and (ours.starts, ours.shares) != (theirs.starts, theirs.shares):
            step = ours.first_difference(theirs, 1 + max(ours.starts[-1], theirs.starts[-1]))
            found.append((f"schedule from step {step}", ours.at(step or 0), theirs.at(step or 0)))
        return found

    def anchored(self) -> Recipe:
        """Returns the recipe with relative paths made absolute, so that its TOML may lie in any folder.

        A schedule says what it has read of files.
        """
        datasets = tuple(
            replace(dataset, paths=tuple(anchor(path, self.base) for path in dataset.paths))
            for dataset in self.datasets
        )
        start = self.continues
        if start is not None and start.path:
            start = replace(start, path=anchor(start.path, self.base))
        return replace(
            self,
            datasets=datasets,
            continues=start,
            tokenize=replace(self.tokenize, tokenizer=anchor(self.tokenize.tokenizer, self.base)),
            catalogue=anchor(self.catalogue, self.base) if self.catalogue else "",
            schedule=_with_content(self.schedule, self.build_schedule()),
        )

    def evaluation(self, dataset: str | None = None) -> Recipe:
        """Returns the recipe of an evaluation: every document once, in file order, padded at the end.

        A stream's documents are counted for it.

        Of all datasets, or of the one named. Tokenizer, packing, lanes and global batch are this recipe's.
        """
        if dataset is not None and dataset not in self.names:
            raise ValueError(f"no dataset is named {dataset!r}; the datasets are {', '.join(self.names)}")
        chosen = [d for d in self.datasets if dataset in (None, d.name)]
        datasets = tuple(replace(d, order=IDENTITY, max_epochs=1, stream=False) for d in chosen)
        return replace(
            self,
            datasets=datasets,
            schedule=Constant({d.name: 1 for d in datasets}),
            work_source={"kind": "mixture"},
            total_steps=None,
            when_exhausted=PAD,
            controller=None,
            continues=None,
        )

    def continue_from(
        self, state: Mapping[str, Any] | str | os.PathLike[str], *, allow: Collection[str] = ()
    ) -> Recipe:
        """Returns the recipe as a new phase on the same data, which goes on where `state` stands.

        `state` is that of all lanes at the end of a step, or the path of a file of `write_state_file`.
        Packing, schedule, `global_batch_size`, `total_steps`, `flush_every` and `when_exhausted` may be other
        ones, and datasets may be added at the end. Steps count from 0 again. `allow` as at restores.
        """
        from zephon.continuing import check_start, read_start

        start = read_start(state, self.base, allow)
        check_start(self, start)
        return replace(self, continues=start)

    def loader(self, **options: Unpack[LoaderKeywords]) -> Loader:
        """Returns the loader of one rank of a run; it opens the recipe's data and closes it at its end.

        The keywords are the fields of `LoaderOptions`. None changes a row, but where documents are held out a
        lock in `run_folder`, else in `replay`, says which.
        """
        from zephon.loader import open_loader
        from zephon.options import LoaderOptions

        return open_loader(self, LoaderOptions(**options))

    @classmethod
    def from_toml(cls, path: str | Path, *, settings: Mapping[str, Any] | None = None) -> Recipe:
        """Returns the recipe of a TOML file; `settings` puts values over it, by dotted name."""
        from zephon.toml import read_recipe

        return read_recipe(Path(path), settings or {})

    def to_toml(self) -> str:
        """Returns the recipe as TOML; refuses datasets in memory and schedules without `to_config`."""
        from zephon.toml import write_recipe

        return write_recipe(self)


def hash_json(value: object) -> str:
    """Returns the SHA-256, as hex, of JSON data in its canonical form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def diff_configuration(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Returns (field, ours, theirs) for every field that differs, by name; None where it is missing."""
    fields = sorted({*ours, *theirs})
    return [(name, ours.get(name), theirs.get(name)) for name in fields if ours.get(name) != theirs.get(name)]


def _with_content(given: Schedule | Config, built: Schedule) -> Schedule | Config:
    """Returns the table of a schedule as the built one says it, where that can."""
    to_config = getattr(built, "to_config", None)
    return given if to_config is None or not isinstance(given, Mapping) else dict(to_config())


def _kind(table: str, config: dict[str, Any]) -> str:
    kind = config.pop("kind", None)
    if not isinstance(kind, str):
        raise ValueError(f"[{table}] must have a `kind`, got {kind!r}")
    return kind


# Lane counts and global batches that fit ------------------------------------------------------------------


def cure_shape(global_batch_size: int, lanes: int, sizes: Sequence[int]) -> str:
    """Returns the nearest lane counts and global batches that fit every size, as advice in one line."""
    common = math.lcm(*sizes)
    fits = nearest([d for d in divisors(global_batch_size) if d % common == 0], lanes)
    below = global_batch_size // common * common
    batches = [batch for batch in (below, below + common, below + 2 * common) if batch][:2]
    other = f"global_batch_size = {listed(batches, 'or')} with lanes = {common} or a multiple that divides it"
    if fits:
        return f"set lanes = {listed(fits, 'or')}; or {other}"
    asked = f"{sizes[0]} ranks" if len(sizes) == 1 else "every size asked"
    return f"no lane count fits {global_batch_size} rows and {asked}: set {other}"


def divisors(number: int) -> list[int]:
    """Returns the divisors of `number`, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def nearest(numbers: Sequence[int], wanted: int) -> list[int]:
    """Returns the `NEAREST` numbers that are nearest to `wanted`, ascending."""
    return sorted(sorted(numbers, key=lambda n: (abs(n - wanted), n))[:NEAREST])


def listed(numbers: Sequence[int], last: str = "") -> str:
    """Returns `1, 2, 3`, or `1, 2 or 3` with `last`."""
    texts = [str(number) for number in numbers]
    return ", ".join(texts) if not last or len(texts) < 2 else f"{', '.join(texts[:-1])} {last} {texts[-1]}"
