"""The bare loops that the loader is compared with: read Parquet, tokenize, count; nothing else.

Upstream: the Parquet files of the corpora. Downstream: `loads.py`, which runs this in a process of its own.
Two threads take batches of about 256 KB of text in turn, of the corpus that has the fewest tokens so far. No
order, no mixing, no packing, no state: what is left is what any loader has to pay.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from recipes import CORPORA, NUM_WORKERS, TOKENIZER, parquet_files

BATCH_BYTES = 256 << 10
WINDOW = 16
"""Row groups that are read from in turns."""
BYTES_PER_TOKEN = 4
"""A guess, for batches that are still being encoded."""

Encode = Callable[[list[str]], int]
"""Returns the number of tokens of the texts."""


def open_fastokens() -> Encode:
    """Returns the encoder of `fastokens`; ids come as one flat buffer."""
    from fastokens import Tokenizer

    tokenizer = Tokenizer.from_file(str(TOKENIZER))

    def encode(texts: list[str]) -> int:
        _, offsets = tokenizer.encode_batch_flat(texts)
        return int(np.frombuffer(offsets, np.uint64)[-1])

    return encode


def open_tokenizers() -> Encode:
    """Returns the encoder of `tokenizers`; the ids never become Python objects."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(TOKENIZER))

    def encode(texts: list[str]) -> int:
        return sum(map(len, tokenizer.encode_batch_fast(texts, add_special_tokens=False)))

    return encode


ENCODERS = {"fastokens": open_fastokens, "tokenizers": open_tokenizers}


def read_texts(file: pq.ParquetFile, group: int) -> list[str]:
    """Returns the texts of a row group."""
    texts: list[str] = file.read_row_group(group, columns=["text"]).column("text").to_pylist()
    return texts


def read_batches(files: list[Path], window_groups: int) -> Iterator[list[str]]:
    """Yields the texts of `files` for ever, each row group read once a lap.

    Batches come in turns from `window_groups` row groups in random order, so that they are as mixed as what
    the loader reads; the first of these begin somewhere in their middle, so that they do not all end
    together. With 1 they come in file order.
    """
    opened = [pq.ParquetFile(path) for path in files]
    groups = [(file, group) for file in opened for group in range(file.num_row_groups)]
    if window_groups > 1:
        random.Random(0).shuffle(groups)
    ahead = itertools.cycle(groups)
    window: list[Iterator[list[str]]] = []
    size = min(window_groups, len(groups))
    for place in range(size):
        texts = read_texts(*next(ahead))
        window.append(cut_batches(texts[len(texts) * place // size :]))
    while True:
        for place in range(size):
            batch = next(window[place], None)
            if batch is None:
                window[place] = cut_batches(read_texts(*next(ahead)))
                batch = next(window[place])
            yield batch


def cut_batches(texts: list[str]) -> Iterator[list[str]]:
    """Yields `texts` in batches of about BATCH_BYTES."""
    first = size = 0
    for i, text in enumerate(texts):
        size += len(text)
        if size >= BATCH_BYTES or i + 1 == len(texts):
            yield texts[first : i + 1]
            first, size = i + 1, 0


class BareLoop:
    """Reads and tokenizes with two threads, equally many tokens of every corpus."""

    def __init__(self, backend: str, window_groups: int) -> None:
        self._encode = ENCODERS[backend]()
        self._batches = {corpus: read_batches(parquet_files(corpus), window_groups) for corpus in CORPORA}
        self._counts = dict.fromkeys(CORPORA, 0)
        self._lock = threading.Lock()

    def run(self, num_tokens: int) -> int:
        """Returns how many tokens were made: at least `num_tokens`."""
        before = sum(self._counts.values())
        errors: list[BaseException] = []

        def work() -> None:
            try:
                while sum(self._counts.values()) - before < num_tokens and not errors:
                    self._run_batch()
            except BaseException as error:  # raised again by the caller's thread
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(NUM_WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return sum(self._counts.values()) - before

    def _run_batch(self) -> None:
        with self._lock:
            corpus = min(self._counts, key=self._counts.__getitem__)
            texts = next(self._batches[corpus])
            guess = sum(map(len, texts)) // BYTES_PER_TOKEN
            self._counts[corpus] += guess
        num_tokens = self._encode(texts)
        with self._lock:
            self._counts[corpus] += num_tokens - guess
