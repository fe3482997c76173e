"""What a launch check found, as data: findings, facts of the datasets, memory by rank.

Upstream: `check/__init__.py` and `probe.py` fill it. Downstream: trainers call `raise_if_failed`, the
command line draws it, scripts read `to_json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from zephon.errors import CheckError

OK, WARNING, ERROR = "ok", "warning", "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at, and how it stands."""

    severity: str
    """ok, warning or error; only errors fail the check."""
    subject: str
    """What was looked at: `lanes`, `tokenizer`, `dataset web`, ..."""
    message: str
    cure: str = ""
    """What to do about it; empty where nothing is wrong."""


def ok(subject: str, message: str) -> Finding:
    """Returns the finding of what is as it should be."""
    return Finding(severity=OK, subject=subject, message=message)


def warning(subject: str, message: str, cure: str) -> Finding:
    """Returns the finding of what may be wrong."""
    return Finding(severity=WARNING, subject=subject, message=message, cure=cure)


def failure(subject: str, message: str, cure: str) -> Finding:
    """Returns the finding of what is wrong."""
    return Finding(severity=ERROR, subject=subject, message=message, cure=cure)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFacts:
    """One dataset that could be opened, with estimates from the sample that was read."""

    name: str
    kind: str
    num_files: int
    """0 in memory."""
    num_bytes: int
    """Size of the files as they lie on disk."""
    num_chunks: int
    num_documents: int | None
    """None of a stream: nobody counted them."""
    sampled_chunks: int
    sampled_documents: int
    tokens_per_document: float | None
    """Mean of the sample, BOS and EOS included; None where nothing could be encoded."""
    share: float | None
    """Of the tokens of all steps, in [0, 1]; None without a valid schedule. The steps are the recipe's
    `total_steps`, else those up to the last change of the weights and 1,000 more."""
    epochs_per_1000_steps: float | None
    """Estimate, on the average of the same steps."""

    @property
    def num_tokens(self) -> int | None:
        """Returns the estimated tokens of the dataset."""
        if self.tokens_per_document is None or self.num_documents is None:
            return None
        return round(self.tokens_per_document * self.num_documents)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Estimated upper bound of what the loader of one rank holds, in bytes; mapped files are not counted."""

    dp_world_size: int
    num_streams: int
    """Lanes of the rank times datasets that are ever drawn."""
    blocks_bytes: int
    """Text and tokens read ahead."""
    batches_bytes: int
    """Batches made ahead and the one in use."""
    orders_bytes: int
    tokenizer_bytes: int
    """One copy; worker processes have one each."""

    @property
    def total_bytes(self) -> int:
        """Returns the sum."""
        return self.blocks_bytes + self.batches_bytes + self.orders_bytes + self.tokenizer_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """Everything that one check found."""

    findings: tuple[Finding, ...]
    datasets: tuple[DatasetFacts, ...]
    memory: tuple[RankMemory, ...]
    """One for each data-parallel size that fits."""
    tokens_per_step: int
    recipe: str
    """The recipe's fingerprint; empty where a part of it cannot be built."""
    vocab_size: int | None
    """Token ids lie in [0, vocab_size); None where the tokenizer cannot be opened."""

    @property
    def ok(self) -> bool:
        """Returns whether there is no error; warnings do not count."""
        return not self.by_severity(ERROR)

    def by_severity(self, severity: str) -> list[Finding]:
        """Returns the findings of one severity, in order."""
        return [finding for finding in self.findings if finding.severity == severity]

    def verdict(self) -> str:
        """Returns the outcome in one line."""
        errors, warnings = len(self.by_severity(ERROR)), len(self.by_severity(WARNING))
        counts = f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}"
        return f"check passed: {counts}" if self.ok else f"check failed: {counts}"

    def raise_if_failed(self) -> None:
        """Raises `CheckError` with the whole report where there is an error."""
        if not self.ok:
            raise CheckError(str(self))

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON data."""
        return {
            "ok": self.ok,
            "verdict": self.verdict(),
            "recipe": self.recipe,
            "tokens_per_step": self.tokens_per_step,
            "vocab_size": self.vocab_size,
            "findings": [asdict(finding) for finding in self.findings],
            "datasets": [asdict(facts) | {"num_tokens": facts.num_tokens} for facts in self.datasets],
            "memory": [asdict(rank) | {"total_bytes": rank.total_bytes} for rank in self.memory],
        }

    def __repr__(self) -> str:
        first = next(iter(self.by_severity(ERROR)), None)
        named = "" if first is None else f"; {first.subject}: {first.message.splitlines()[0]}"
        return f"CheckReport: {self.verdict()}{named}"

    def __str__(self) -> str:
        lines = [self.verdict()]
        for severity in (ERROR, WARNING, OK):
            for finding in self.by_severity(severity):
                lines += _lines(finding)
        for facts in self.datasets:
            tokens = "?" if facts.num_tokens is None else f"{facts.num_tokens:,}"
            documents = "documents not counted"
            if facts.num_documents is not None:
                documents = f"{facts.num_documents:,} documents, about {tokens} tokens"
            lines.append(f"dataset  {facts.name}: {facts.num_files:,} files, {documents}")
        for rank in self.memory:
            size = format_bytes(rank.total_bytes)
            lines.append(f"memory   {rank.dp_world_size} ranks: about {size} for the loader of each")
        return "\n".join(lines)


def _lines(finding: Finding) -> Sequence[str]:
    """Returns a finding as indented lines."""
    first, *rest = finding.message.splitlines()
    lines = [f"{finding.severity + ':':9}{finding.subject}: {first}", *(f"         {line}" for line in rest)]
    return [*lines, f"           cure: {finding.cure}"] if finding.cure else lines


def format_bytes(num_bytes: int) -> str:
    """Returns a size for people: `12.3 MiB`."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
