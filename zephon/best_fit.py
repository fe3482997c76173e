"""Best-fit packing: whole documents, chosen from a bounded pool so that rows are nearly full.

Upstream and downstream as `packing.py`. Each row begins with the oldest document of the pool, so none waits
for more rows than the pool has documents; then the longest that still fits is added until none does
(best-fit: Ding et al. 2024, "Fewer truncations improve language modeling", section 3).
"""

from __future__ import annotations

from bisect import bisect_right, insort

from zephon.errors import check_whole, unknown_field
from zephon.packing import FIELDS, PackerPlan, Packing
from zephon.prepare import DROP, REFUSE, SPLIT, TRUNCATE, LengthRule
from zephon.stream import Run

BYTES_PER_TOKEN = 4


class BestFit:
    """Packs whole documents; those over seq_len are split by default."""

    by_document = True

    def __init__(self, seq_len: int, *, pool_documents: int, pool_bytes: int) -> None:
        self._seq_len = seq_len
        self._max_documents = pool_documents
        self._max_tokens = max(2 * seq_len, pool_bytes // BYTES_PER_TOKEN)
        self._pool: dict[int, Run] = {}  # by arrival, oldest first
        self._by_length: list[tuple[int, int]] = []  # (tokens, -arrival), ascending
        self._num_tokens = self._arrivals = 0

    @classmethod
    def plan(cls, packing: Packing) -> PackerPlan:
        """Returns the plan of a recipe's `kind = "best_fit"`: pool_documents, pool_bytes, overlong."""
        options = dict(packing.options)
        overlong = options.pop("overlong", SPLIT)
        pool_documents = options.pop("pool_documents", 64)
        pool_bytes = options.pop("pool_bytes", 16 * packing.seq_len * BYTES_PER_TOKEN)
        check_whole("packing best_fit: `pool_documents`", pool_documents, 1)
        check_whole("packing best_fit: `pool_bytes`", pool_bytes, 1)
        if options:
            known = (*FIELDS, "pool_documents", "pool_bytes", "overlong")
            raise unknown_field("packing best_fit", next(iter(options)), known)
        if overlong not in (SPLIT, TRUNCATE, DROP, REFUSE):
            rule = f"one of {SPLIT}, {TRUNCATE}, {DROP}, {REFUSE}"
            raise ValueError(f"packing best_fit: `overlong` must be {rule}, got {overlong!r}")
        return PackerPlan(
            make=lambda: cls(packing.seq_len, pool_documents=pool_documents, pool_bytes=pool_bytes),
            length=LengthRule(overlong=overlong, max_tokens=packing.seq_len),
            options={"pool_documents": pool_documents, "pool_bytes": pool_bytes, "overlong": overlong},
        )

    def room(self) -> int:
        """Returns seq_len while the pool has room for another document, else 0."""
        full = len(self._pool) >= self._max_documents or self._num_tokens >= self._max_tokens
        return 0 if full else self._seq_len

    def add(self, run: Run) -> None:
        """Puts one document, or one piece of an over-long one, into the pool."""
        self._pool[self._arrivals] = run
        insort(self._by_length, (run.num_tokens, -self._arrivals))
        self._num_tokens += run.num_tokens
        self._arrivals += 1

    def row(self) -> list[Run]:
        """Returns the oldest piece of the pool, then the longest that fit, the oldest first among equals."""
        oldest = next(iter(self._pool))
        runs = [self._take((self._pool[oldest].num_tokens, -oldest))]
        room = self._seq_len - runs[0].num_tokens
        while room:
            place = bisect_right(self._by_length, (room, 1))
            if place == 0:
                break
            runs.append(self._take(self._by_length[place - 1]))
            room -= runs[-1].num_tokens
        return runs

    def _take(self, entry: tuple[int, int]) -> Run:
        del self._by_length[bisect_right(self._by_length, entry) - 1]
        self._num_tokens -= entry[0]
        return self._pool.pop(-entry[1])

    def flush(self) -> list[list[Run]]:
        """Returns the pool as rows."""
        rows = []
        while self._pool:
            rows.append(self.row())
        return rows

    def carry(self) -> list[Run]:
        """Returns the pool in order of arrival."""
        return list(self._pool.values())
