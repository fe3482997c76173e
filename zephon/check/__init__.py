"""The launch check: whatever can be known to be wrong before the first step, in one report.

Upstream: a recipe and the sizes it shall run at. Downstream: trainers call it on every rank before step 1,
and `zephon check` shows it. It never stops at the first fault, and says what it did not look at.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zephon import plugins
from zephon.check.data import (
    REFUSALS,
    DataCheck,
    expanded_bytes,
    is_in_place,
    refusal,
    remote_message,
    windows_bytes,
)
from zephon.check.plan import check_ends, check_schedule, check_shape, drawn, few_documents, uneven_lanes
from zephon.check.probe import Probe
from zephon.check.report import (
    CheckReport,
    DatasetFacts,
    Finding,
    RankMemory,
    failure,
    format_bytes,
    ok,
    warning,
)
from zephon.feed import block_bytes
from zephon.opened import SPOOL_BYTES, default_cache
from zephon.options import BUDGET_BYTES
from zephon.order import CACHED_DOCUMENTS
from zephon.readers import RandomReader, Report
from zephon.readers.subset import PartReader, SubsetReader, whole
from zephon.recipe import Recipe
from zephon.schedule import ScheduleTable
from zephon.spool import Spool
from zephon.stream_order import CACHED_WINDOWS, WINDOW_RECORDS
from zephon.streaming import StreamReader
from zephon.tokenizer import Encoder, TokenizerReport, load_tokenizer

__all__ = ["CheckReport", "DatasetFacts", "Finding", "RankMemory", "check_recipe"]

PROBE_S = 10.0
MANY_EPOCHS = 4
"""Repeating a dataset this often costs little (Muennighoff et al. 2023, "Scaling data-constrained language
models"); more is worth a warning."""
WARN_STEPS = 1000
"""The steps of the last weights that count where the recipe has no `total_steps`."""
PREFETCHED_BATCHES = 4
"""The batch in use, one being made, two made ahead where that is asked for."""
PLACE_BYTES = 4
"""A shuffled place, of those that an order keeps."""
CHOSEN_BYTES = 8
"""The number of a document that `where` leaves."""
VOCABULARY_BYTES = 400
"""What both tokenizer libraries together keep for an entry of the vocabulary, roughly."""


def check_recipe(
    recipe: Recipe,
    *,
    dp_world_sizes: Sequence[int] = (1,),
    micro_batch_size: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    backend: str = "auto",
    probe_s: float = PROBE_S,
    report: Report | None = None,
) -> CheckReport:
    """Returns what is wrong, or may be, with running `recipe` at each of `dp_world_sizes`.

    Opens every dataset and reads a sample of each, at least one chunk's, until `probe_s` seconds are spent;
    opening (indexes of JSONL files, footers, the tokenizer) is not part of that. Raises only for wrong
    arguments. `report` gets (what, done, total) for progress bars.
    """
    if not dp_world_sizes or any(type(size) is not int or size < 1 for size in dp_world_sizes):
        raise ValueError(f"`dp_world_sizes` must be whole numbers >= 1, got {list(dp_world_sizes)!r}")
    sizes = sorted(set(dp_world_sizes))
    check = _Check(
        recipe,
        default_cache() if cache is None else Path(cache),
        list(check_shape(recipe, sizes, micro_batch_size)),
    )
    check.check_schedule()
    check.check_parts()
    check.open_datasets(report)
    try:
        check.check_disk()
        check.load_tokenizer(backend)
        check.sample(probe_s, report)
        facts = check.facts()
    finally:
        for probe in check.probes.values():
            probe.reader.close()
    return CheckReport(
        findings=tuple(check.findings),
        datasets=facts,
        memory=check.memory(sizes),
        tokens_per_step=recipe.tokens_per_step,
        recipe=check.fingerprint(),
        vocab_size=None if check.encoder is None else check.encoder.vocab_size,
    )


@dataclass(slots=True)
class _Check:
    """The check under way; each method looks at one thing and adds its findings."""

    recipe: Recipe
    cache: Path
    findings: list[Finding]
    table: ScheduleTable | None = None
    probes: dict[int, Probe] = field(default_factory=dict)
    """By dataset; those that could be opened."""
    encoder: Encoder | None = None
    ending: dict[int, float] = field(default_factory=dict)
    """By dataset with `max_epochs`: its tokens in all epochs, by estimate."""

    def check_schedule(self) -> None:
        """Looks at the weights of every phase."""
        try:
            schedule, self.table = self.recipe.build_schedule(), self.recipe.compile_schedule()
            self.findings += check_schedule(self.recipe, schedule, self.table)
        except REFUSALS as error:
            self.findings.append(refusal("schedule", error))

    def check_parts(self) -> None:
        """Looks at work source, packer and the plugins that the recipe names."""
        recipe = self.recipe
        parts = (
            ("work_source", recipe.build_work_source),
            ("packing", recipe.build_packer_plan),
            ("controller", self._build_controller),
        )
        for subject, build in parts:
            try:
                build()
            except REFUSALS as error:
                self.findings.append(refusal(subject, error))
        kinds = [("packers", recipe.packing.kind), ("work_sources", recipe.work_source.get("kind"))]
        if isinstance(recipe.schedule, Mapping):
            kinds.append(("schedules", recipe.schedule.get("kind")))
        kinds += [("datasets", dataset.kind) for dataset in recipe.datasets if dataset.kind]
        if recipe.controller is not None:
            kinds.append(("controllers", recipe.controller.get("kind")))
        for role, kind in dict.fromkeys(kinds):
            try:
                entry = plugins.lock_entry(role, str(kind))
            except LookupError:  # said above, by what failed to build
                continue
            if entry:
                message = f"{role} {kind!r} of {entry['distribution']} {entry['version']}, kept in the lock"
                self.findings.append(ok("plugins", message))

    def _build_controller(self) -> None:
        """Builds the controller as rank 0 does at a start; says what it acts on; raises what it refuses."""
        recipe, table = self.recipe, self.table
        if recipe.controller is None:
            return
        config = dict(recipe.controller)
        if not isinstance(kind := config.pop("kind", None), str):
            raise ValueError(f"[controller] must have a `kind`, the name of a plugin, got {kind!r}")
        make = plugins.find("controllers", kind)
        if table is None:  # the schedule that it would act on is refused
            return
        make(config, recipe.controller_context(table))
        message = "shares, epochs and ends here are the schedule's, the base; the controller may change them"
        self.findings.append(ok("controller", message))

    def fingerprint(self) -> str:
        """Returns the recipe's, or nothing where a part of it cannot be built."""
        try:
            return self.recipe.fingerprint()
        except REFUSALS:  # said above, by what failed to build
            return ""

    def open_datasets(self, report: Report | None) -> None:
        """Opens every dataset, each on its own."""
        data = DataCheck(self.recipe, self.cache, report)
        data.run()
        self.findings += data.findings
        for index, one in data.opened.items():
            dataset = self.recipe.datasets[index]
            self.probes[index] = Probe(dataset, one.reader, self.recipe.seed)
            if isinstance(one.reader, StreamReader):
                continue
            count = int(one.reader.chunks().num_documents.sum()) * (dataset.max_epochs or 1)
            if count < self.recipe.lanes:
                self.findings.append(few_documents(self.recipe, dataset, count))
            elif uneven := uneven_lanes(self.recipe, dataset, count):
                self.findings.append(uneven)

    def check_disk(self) -> None:
        """Looks whether the texts of chunks that must be expanded, or fetched, fit the cache folder."""
        readers = [probe.reader for probe in self.probes.values() if not is_in_place(probe.reader)]
        if not any(isinstance(whole(reader), Spool | StreamReader) for reader in readers):
            return
        total = expanded_bytes(readers)
        free = shutil.disk_usage(_existing(self.cache)).free
        what = "compressed or remote" if any(map(remote_message, readers)) else "compressed"
        message = f"{what} chunks expand to about {format_bytes(total)} in {self.cache}, less what is there "
        message += f"already; {format_bytes(free)} are free"
        if any(isinstance(reader, StreamReader) for reader in readers):
            message += f"; streams are not counted and take up to {format_bytes(SPOOL_BYTES)} in all"
        if total > min(free, SPOOL_BYTES):
            cure = "set ZEPHON_CACHE to a larger disk; past spool_bytes, chunks are expanded again and again"
            self.findings.append(warning("cache", message, cure))
        else:
            self.findings.append(ok("cache", message))
        windows = windows_bytes(readers, self.recipe.lanes)
        if windows > SPOOL_BYTES:
            message = f"all lanes together read from about {format_bytes(windows)} of expanded chunks at "
            message += f"once, more than the spool holds ({format_bytes(SPOOL_BYTES)}); a node needs its "
            message += "ranks' part of it"
            cure = "spread the ranks over nodes, raise spool_bytes, or use smaller row groups"
            self.findings.append(warning("cache", message, cure))

    def load_tokenizer(self, backend: str) -> None:
        """Loads the tokenizer, compared on texts of every dataset."""
        for probe in self.probes.values():
            probe.visit()
        samples = [text for probe in self.probes.values() for text in probe.first_texts()]
        try:
            self.encoder, found = load_tokenizer(
                self.recipe.tokenize, base=self.recipe.base, backend=backend, samples=samples
            )
        except REFUSALS as error:
            self.findings.append(refusal("tokenizer", error))
            return
        self._say_tokenizer(self.encoder, found)

    def _say_tokenizer(self, encoder: Encoder, found: TokenizerReport) -> None:
        marks = [f"{n} {t!r} (id {i})" if t else f"no {n}" for n, t, i in (
            ("BOS", found.bos_token, encoder.bos_id), ("EOS", found.eos_token, encoder.eos_id),
        )]  # fmt: skip
        message = f"{found.path}, {encoder.vocab_size:,} ids, {', '.join(marks)}\n{found.note}"
        self.findings.append(ok("tokenizer", message))
        if found.bos_token is None and found.eos_token is None:
            message = "nothing marks where a document begins or ends; only segment ids and masked labels do"
            self.findings.append(warning("tokenizer", message, "set eos = true in [tokenize]"))
        pad_id = self.recipe.packing.pad_id
        if pad_id >= encoder.vocab_size:
            message = f"pad_id = {pad_id} is no token id: the vocabulary has {encoder.vocab_size:,}"
            self.findings.append(failure("packing", message, f"take a pad_id in [0, {encoder.vocab_size})"))

    def sample(self, probe_s: float, report: Report | None) -> None:
        """Reads on in turns until the time is spent or the samples are full, then adds what was found."""
        started = time.monotonic()
        waiting = list(self.probes.values())
        while waiting:
            for probe in list(waiting):
                if self.encoder is not None:
                    probe.encode(self.encoder)
                spent = time.monotonic() - started
                if report is not None:
                    report("sample", round(1000 * min(spent, probe_s)), round(1000 * probe_s))
                if spent >= probe_s or not probe.visit():
                    waiting.remove(probe)
        for probe in self.probes.values():
            self.findings += probe.findings()

    def facts(self) -> tuple[DatasetFacts, ...]:
        """Returns the facts of the datasets that are open; says which are repeated often, and which end."""
        found = tuple(self._facts_of(index, probe) for index, probe in self.probes.items())
        if self.table is not None:
            self.findings += check_ends(self.recipe, self.table, self.ending)
        return found

    def _facts_of(self, index: int, probe: Probe) -> DatasetFacts:
        chunks, identity = probe.reader.chunks(), probe.reader.identity()
        is_counted = not isinstance(probe.reader, StreamReader)
        count = int(chunks.num_documents.sum())
        mean = probe.tokens_per_document
        share, per_1000 = self._share(index), None
        if share is not None and mean and is_counted:
            per_1000 = 1000 * self.recipe.tokens_per_step * share / (mean * count)
            if probe.dataset.max_epochs is None:
                self._warn_epochs(index, mean * count)
            else:
                self.ending[index] = mean * count * probe.dataset.max_epochs
        files = identity.get("files", [])
        return DatasetFacts(
            name=probe.dataset.name,
            kind=str(identity.get("kind", "?")),
            num_files=len(files),
            num_bytes=sum(int(entry[1]) for entry in files),
            num_chunks=len(chunks.num_documents),
            num_documents=count if is_counted else None,
            sampled_chunks=probe.sampled_chunks,
            sampled_documents=probe.sampled_documents,
            tokens_per_document=mean,
            share=share,
            epochs_per_1000_steps=per_1000,
        )

    def _num_steps(self, table: ScheduleTable) -> int:
        return self.recipe.total_steps or table.starts[-1] + WARN_STEPS

    def _share(self, index: int) -> float | None:
        """Returns the part of the run's tokens that a dataset is drawn for; None without a schedule."""
        if self.table is None:
            return None
        steps = self._num_steps(self.table)
        return drawn(self.recipe, self.table, index, steps) / (steps * self.recipe.tokens_per_step)

    def _warn_epochs(self, index: int, num_tokens: float) -> None:
        assert self.table is not None
        steps = self._num_steps(self.table)
        epochs = drawn(self.recipe, self.table, index, steps) / num_tokens
        if epochs > MANY_EPOCHS:
            name = self.recipe.datasets[index].name
            message = f"about {epochs:,.1f} epochs in {steps:,} steps: it has about {num_tokens:,.0f} tokens"
            self.findings.append(warning(f"dataset {name}", message, "give it less weight, or more data"))

    def memory(self, sizes: Sequence[int]) -> tuple[RankMemory, ...]:
        """Returns the estimate for each size that divides the lanes."""
        recipe = self.recipe
        fitting = [size for size in sizes if recipe.lanes % size == 0]
        drawn = len(recipe.datasets)
        if self.table is not None:
            drawn = sum(first is not None for first in self.table.first_active())
        orders_bytes = sum(map(_order_bytes, (probe.reader for probe in self.probes.values())))
        found = []
        for size in fitting:
            streams = recipe.lanes // size * drawn
            block = block_bytes(BUDGET_BYTES, streams)
            rows = recipe.global_batch_size // size
            found.append(
                RankMemory(
                    dp_world_size=size,
                    num_streams=streams,
                    blocks_bytes=2 * streams * block,
                    batches_bytes=PREFETCHED_BATCHES * 4 * 8 * rows * recipe.packing.seq_len,
                    orders_bytes=orders_bytes,
                    tokenizer_bytes=VOCABULARY_BYTES
                    * (0 if self.encoder is None else self.encoder.vocab_size),
                )
            )
        return tuple(found)


def _order_bytes(reader: RandomReader) -> int:
    """Returns what an order of the reader's documents keeps, and what says which of a dataset these are."""
    if isinstance(reader, StreamReader):
        return CACHED_WINDOWS * WINDOW_RECORDS * 8
    count = int(reader.chunks().num_documents.sum())
    num_bytes = PLACE_BYTES * min(count, CACHED_DOCUMENTS)
    while isinstance(reader, PartReader):
        if isinstance(reader, SubsetReader):
            num_bytes += CHOSEN_BYTES * int(reader.chunks().num_documents.sum())
        reader = reader.reader
    return num_bytes


def _existing(path: Path) -> Path:
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())
