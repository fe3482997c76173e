"""What a reader gives, as documents that can be compared: read in any order, in parts, by threads and copies.

Upstream: the readers of `testing_readers.py`, whose kit asks these questions. Downstream: nothing.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from zephon.errors import Fault
from zephon.readers.base import TOKEN, Chunks, Column, RandomReader, TokenReader, is_tokenized

NUM_THREADS = 8
MAX_BYTES = (1, 100, 10_000)
"""What prefixes of the documents are asked for."""
ALL_BYTES = 1 << 40

Int64 = NDArray[np.int64]


class Document(NamedTuple):
    """What was read at one address."""

    content: str | tuple[int, ...]
    """Empty where faulty."""
    fault: Fault | None
    is_replaced: bool


# Columns --------------------------------------------------------------------------------------------------


def documents_of(column: Column, tokenized: bool) -> list[Document]:
    """Returns the documents of a column, which must be in good order."""
    offsets, size = column.offsets, len(column.data)
    assert len(offsets), "reader: a column's offsets must be those of n documents and their end, n + 1"
    in_order = int(offsets[0]) == 0 and bool((np.diff(offsets) >= 0).all()) and int(offsets[-1]) == size
    assert in_order, f"reader: a column's offsets must ascend from 0 to its {size} bytes, got {offsets}"
    faults = _faults(column.faults, len(offsets) - 1)
    replaced = set(column.replaced)
    documents = []
    for i in range(len(offsets) - 1):
        raw = bytes(column.data[int(offsets[i]) : int(offsets[i + 1])])
        assert not (i in faults and raw), f"reader: document {i} of a column is faulty and has bytes"
        content = tuple(np.frombuffer(raw, TOKEN).tolist()) if tokenized else _decoded(raw)
        documents.append(Document(content, faults.get(i), i in replaced))
    return documents


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise AssertionError(f"reader: a text must be UTF-8, got {raw[:80]!r} ({error})") from None


def _faults(faults: Sequence[tuple[int, Fault]], count: int) -> dict[int, Fault]:
    numbers = [i for i, _ in faults]
    assert numbers == sorted(set(numbers)), f"reader: faults must ascend, got those of {numbers}"
    assert all(0 <= i < count for i in numbers), f"reader: faults must be of [0, {count}), got {numbers}"
    for _, fault in faults:
        said = [fault.kind, fault.got, fault.rule]
        assert all(isinstance(text, str) and text for text in said), f"reader: a fault says little: {fault}"
        one_word = fault.kind.isidentifier()
        assert one_word, f"reader: the kind of a fault is one word, got {fault.kind!r}"
        assert not fault.rule.endswith("."), f"reader: a fault's rule has no full stop, got {fault.rule!r}"
    return dict(faults)


# Documents at addresses -------------------------------------------------------------------------------------


def addresses_of(chunks: Chunks) -> Int64:
    """Returns the addresses of all documents in file order, (n, 2): chunk and record."""
    pairs = [(chunk, i) for chunk, count in enumerate(chunks.num_documents.tolist()) for i in range(count)]
    return np.array(pairs, np.int64)


def read_at(reader: RandomReader, addresses: Int64, max_bytes: int) -> list[Document]:
    """Returns what is read of the addresses in one call."""
    chunk, record = addresses[:, 0].copy(), addresses[:, 1].copy()
    if is_tokenized(reader):
        found = cast(TokenReader, reader).tokens(chunk, record, max_bytes)
        parts = np.split(found.tokens, np.cumsum(found.lengths)[:-1]) if len(found.lengths) else []
        contents: list[Any] = [tuple(part.tolist()) for part in parts]
        replaced: Sequence[int] = ()
        count = int(found.lengths.sum())
        assert len(found.tokens) == count, (
            f"reader: {len(found.tokens)} tokens of lengths that sum to {count}"
        )
    else:
        texts = reader.texts(chunk, record, max_bytes)
        contents, replaced = texts.texts, texts.num_replaced
        for text in contents:
            assert isinstance(text, str), f"reader: a text must be a str, got {text!r}"
            _decoded(text.encode(errors="surrogatepass"))
    faults = _faults((found if is_tokenized(reader) else texts).faults, len(contents))
    for i in faults:
        assert not contents[i], f"reader: document {i} is faulty and has content"
    marked = set(replaced)
    return [Document(content, faults.get(i), i in marked) for i, content in enumerate(contents)]


def check_order(reader: RandomReader, addresses: Int64, expected: Sequence[Document]) -> None:
    """Reads in other orders, each document twice, and one by one."""
    count = len(addresses)
    mixed = np.argsort(np.arange(2 * count) * 7919 % (2 * count + 1), kind="stable") % count
    for order in (np.arange(count)[::-1], mixed):
        found = read_at(reader, addresses[order], ALL_BYTES)
        assert found == [expected[i] for i in order.tolist()], (
            "reader: documents differ when they are read in another order"
        )
    for i in range(min(count, 200)):
        found = read_at(reader, addresses[i : i + 1], 1)
        assert found == [expected[i]], f"reader: document {i} differs when it is read alone"
    reader.close()


def check_prefixes(reader: RandomReader, addresses: Int64, expected: Sequence[Document]) -> None:
    for max_bytes in MAX_BYTES:
        found = read_at(reader, addresses, max_bytes)
        assert found, f"reader: `max_bytes` = {max_bytes} gave nothing; at least one document is read"
        assert found == list(expected[: len(found)]), (
            f"reader: `max_bytes` = {max_bytes} gave other documents than the first of those asked for"
        )
        ahead = sum(_least_bytes(document) for document in found[:-1])
        assert ahead < max_bytes, (
            f"reader: `max_bytes` = {max_bytes}, and went on after {ahead} bytes; it stops once they are read"
        )
        again = len(read_at(reader, addresses, max_bytes))
        assert again == len(found), (
            f"reader: `max_bytes` = {max_bytes} gave {len(found)} documents, then {again}"
        )
    reader.close()


def _least_bytes(document: Document) -> int:
    """Returns the fewest bytes that a document takes where it is read from: of a token id, one."""
    content = document.content
    return len(content.encode()) if isinstance(content, str) else len(content)


def check_copies(reader: RandomReader, addresses: Int64, expected: Sequence[Document]) -> None:
    """Reads after a close, from pickled copies and by threads."""
    wanted = list(expected)
    assert read_at(reader, addresses, ALL_BYTES) == wanted, "reader: documents differ when it is opened again"
    reader.close()
    reader.close()
    assert read_at(reader, addresses, ALL_BYTES) == wanted, "reader: documents differ after close()"
    copy = pickle.loads(pickle.dumps(reader))
    assert read_at(copy, addresses, ALL_BYTES) == wanted, "reader: documents differ in a pickled copy"
    copy.close()
    shared = pickle.loads(pickle.dumps(reader))  # with nothing open, so that threads meet in opening
    rolled = [np.roll(addresses, i * len(addresses) // NUM_THREADS, axis=0) for i in range(NUM_THREADS)]
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        found = list(pool.map(lambda some: read_at(shared, some, ALL_BYTES), rolled))
    for i, documents in enumerate(found):
        shift = i * len(addresses) // NUM_THREADS
        assert documents == wanted[len(wanted) - shift :] + wanted[: len(wanted) - shift], (
            "reader: documents differ when several threads read"
        )
    shared.close()
    reader.close()
