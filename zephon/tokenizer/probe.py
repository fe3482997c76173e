"""The probe: texts on which tokenizer libraries are known to disagree, encoded and compared.

Upstream: the encode functions of `tokenizer`. Downstream: its choice of a back end, and the lock, which
holds the hash of the reference's ids. Libraries differ in their Unicode tables, in how they cut long texts
for their threads, and in what they remember of the text before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Columns = tuple[NDArray[np.uint32], NDArray[np.int64]]
"""Flat ids, and int64 offsets, one more than there are documents."""

NUM_SPELLED_TOKENS = 1000
"""Added tokens whose spellings are encoded, in the order of the file."""
TEXTS = (
    "",
    " ",
    "     ",
    " \t\n\r\n  \t\t\n\n\n x \n\t",
    "\x00\x01\x1b[0m\x7f\x85\xa0\u2028\u2029\ufeff\u200b",
    "Hello, world! It's we'll THEY'RE don't\u2019t  two  spaces   three",
    "0 1 12 123 1234 12345 3.14159 1e-9 0xDEADBEEF 1,000,000 \u0661\u0662\u0663 \u00bd \u2167",
    "def f(x: int) -> str:\n\treturn f'{x!r:>8}'  # ok\r\n\n\nif (a&&b||!c) { x->y[i++] <<= 2; }\n",
    '<div class="a">&nbsp;</div> https://example.com/a?b=c&d=%20#e user@example.com \\n \\u0041 $x_1^2$',
    "caf\u00e9 cafe\u0301 \u212b A\u030a \uac00 \u1100\u1161 \ufb01 \u0130 \u0131 \u00df \u1e9e",
    "q\u0323\u0307 q\u0307\u0323 \u1ecd\u0304 o\u0304\u0323 \u0344 \u0958 \u2126 \uf900",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8 \ud55c\uad6d\uc5b4",
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05c1\u05dc\u05d5\u05b9\u05dd \u202eabc\u202c",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0bae\u0bbf\u0bb4\u0bcd \u0e20\u0e32\u0e29\u0e32",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea \u2764\ufe0f",
    "\ufffd \ufffe \uffff \ue000\uf8ff \U000f0000 \U0010ffff \ufdd0 \U000e0041 \U0001d518\ufffd\ufffd",
    "\u2581word \u2581\u2581 \u0120word \u010a ##ing <0x0A> </w> [CLS] [MASK] <unk> <pad>",
    "a" * 1000 + " " + "=" * 1000 + "!?" * 300 + "\n" * 300 + "\t" * 300 + " " * 300,
    "abcdefghij" * 1000,
    "\u0301" * 200 + "\u00e9" * 200 + "\u6f22" * 400 + "\U0001f600" * 100 + "7" * 400,
)
"""Edit any text of this module only when you mean to break every lock."""
SWEPT = ((0x0, 0x3400), (0xA000, 0xAC00), (0xF900, 0xFB50), (0xFE00, 0x10000), (0x1E000, 0x1FB00))
"""Half-open ranges of code points: all of the first planes but the letters that are alike by thousands."""
SWEPT_PER_TEXT = 1024


def probe_batches(added_tokens: Sequence[str]) -> list[list[str]]:
    """Returns the batches of the probe, fixed for a tokenizer; the last ones are single texts, in order."""
    texts = [*TEXTS, *_sweep(), *_spellings(added_tokens)]
    return [texts, *([text] for text in _sequence())]


def encode_batches(encode: Callable[[list[str]], Columns], batches: list[list[str]]) -> list[Columns]:
    """Returns the columns of every batch, encoded one after the other."""
    return [encode(batch) for batch in batches]


def find_difference(batches: list[list[str]], got: list[Columns], expected: list[Columns]) -> str | None:
    """Returns the first text that has other ids in `got` than in `expected`, or None."""
    for batch, one, other in zip(batches, got, expected, strict=True):
        if np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1]):
            continue
        documents = [np.split(ids, offsets[1:-1]) for ids, offsets in (one, other)]
        for text, a, b in zip(batch, documents[0], documents[1], strict=True):
            if not np.array_equal(a, b):
                return text
    return None


def hash_columns(batches: Sequence[Columns]) -> str:
    """Returns the SHA-256 of the ids and offsets of all batches."""
    digest = hashlib.sha256()
    for ids, offsets in batches:
        digest.update(offsets.astype("<i8").tobytes() + ids.astype("<u4").tobytes())
    return digest.hexdigest()


def _sweep() -> list[str]:
    """Returns every code point of `SWEPT` in letters, before a combining mark, and beside itself."""
    points = [chr(c) for start, end in SWEPT for c in range(start, end) if not 0xD800 <= c < 0xE000]
    starts = range(0, len(points), SWEPT_PER_TEXT)
    return ["".join(f"a{c}b o{c}\u0301 {c}{c}1" for c in points[i : i + SWEPT_PER_TEXT]) for i in starts]


def _spellings(tokens: Sequence[str]) -> list[str]:
    """Returns texts that spell added tokens: side by side, in words, in spaces, and a few each alone."""
    tokens = tokens[:NUM_SPELLED_TOKENS]
    return ["".join(tokens), *(f"{gap}{gap.join(tokens)}{gap}" for gap in ("word", "  ")), *tokens[:32]]


def _sequence() -> list[str]:
    """Returns texts for an encoder that cuts long texts for its threads, or remembers the text before.

    Each of a pair begins like the other, and parts from it right behind a run of spaces.
    """
    cut = "".join(" word" * 150 + run * 2500 for run in ("x", " ", "7", "\n", "\u00e9", "=")) * 2
    head = "The quick brown fox jumps over the lazy dog. " * 120 + " " * 700
    endings = (" ", "\n", "\tx", "y", "\u00a0z", "\r\n")
    return [cut, *(text for end in endings for text in (f"{head}x{head}", f"{head}{end}"))]
