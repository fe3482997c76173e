"""The tokenizer: texts to one flat token array, with exactly the BOS/EOS that the recipe asks for.

Upstream: a recipe's `[tokenize]` table, read by `tokenizer/file.py`. Downstream: the workers, which call
`Encoder.encode` on a block of documents, and the lock, which holds the hashes of `TokenizerReport`.
Hugging Face `tokenizers` is the reference; `fastokens` serves only where it gives the same ids on the probe.
"""

from __future__ import annotations

import array
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon.errors import CheckError, DataError, WorkerError, shorten
from zephon.tokenizer.file import (
    FILE_NAME,
    Blueprint,
    TokenizerFile,
    explain_file,
    find_tokenizer_file,
    read_tokenizer_file,
)
from zephon.tokenizer.probe import Columns, encode_batches, find_difference, hash_columns, probe_batches

BACKENDS = ("auto", "tokenizers", "fastokens")
_PARALLELISM = "TOKENIZERS_PARALLELISM"
_threaded_in: list[int] = []
"""The process that first used the threads of `tokenizers`, which a process forked from it does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenize:
    """The `[tokenize]` table of a recipe: which tokenizer, and what is put around every document."""

    tokenizer: str
    """A tokenizer.json or its folder, as written; a relative path starts at the recipe's folder."""
    bos: bool | str = False
    """Put before every document: true for the tokenizer's own BOS token, or the token to use."""
    eos: bool | str = False
    """Put after every document: true for the tokenizer's own EOS token, or the token to use."""
    parse_special: bool = False
    """Whether text that spells a special token becomes that token; by default it stays text."""

    def __post_init__(self) -> None:
        if not _is_text(self.tokenizer):
            raise TypeError(
                f"`tokenizer` must be the path of a {FILE_NAME} or its folder, got {self.tokenizer!r}"
            )
        for name, value in (("bos", self.bos), ("eos", self.eos)):
            if type(value) is not bool and not _is_text(value):
                raise TypeError(f"`{name}` must be true, false or a token, got {value!r}")
        if type(self.parse_special) is not bool:
            raise TypeError(f"`parse_special` must be true or false, got {self.parse_special!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerReport:
    """What was loaded and why, for the launch report and the lock."""

    backend: str
    """`fastokens` or `tokenizers`."""
    note: str
    """Why this back end serves, in one sentence."""
    file_hash: str
    """SHA-256 of the bytes of the tokenizer.json."""
    probe_hash: str
    """SHA-256 of the reference ids of the probe texts, with the BOS/EOS asked for."""
    path: Path
    """The tokenizer.json, absolute."""
    bos_token: str | None
    """The token put before every document."""
    eos_token: str | None
    """The token put after every document."""


@dataclass(frozen=True, slots=True)
class _Library:
    """The functions of a loaded tokenizer library."""

    encode: Callable[[list[str]], Columns]
    decode: Callable[[list[int]], str]
    token_to_id: Callable[[str], int | None]


class Encoder:
    """Turns texts into tokens, as a tokenizer.json says; one encoder may serve several threads at once.

    It pickles as its blueprint and is built anew where it arrives.
    """

    def __init__(self, blueprint: Blueprint, backend: str) -> None:
        self.blueprint = blueprint
        self.backend = backend
        """`fastokens` or `tokenizers`."""
        self.bos_id, self.eos_id = blueprint.bos_id, blueprint.eos_id
        """The ids put before and after every document, or None."""
        self.vocab_size = blueprint.vocab_size
        """The largest id of the vocabulary plus one, so ids lie in [0, vocab_size)."""
        self.num_special = (self.bos_id is not None) + (self.eos_id is not None)
        """How many of BOS and EOS are put around every document, in [0, 2]."""
        self.backing = _open_fastokens(blueprint) if backend == "fastokens" else _open_reference(blueprint)

    def encode(self, texts: list[str]) -> Columns:
        """Returns (ids, offsets): document i is ids[offsets[i]:offsets[i + 1]], BOS/EOS in it as asked.

        Pure; both arrays may be read-only. A text that is not valid Unicode raises `DataError`.
        """
        try:
            return self.backing.encode(texts)
        except (TypeError, ValueError, RuntimeError) as error:
            raise _explain_texts(texts, f"`{self.backend}`: {error}") from error

    def decode(self, ids: NDArray[Any] | Sequence[int]) -> str:
        """Returns the text of `ids` for people, special tokens shown; ids out of range are left out."""
        return self.backing.decode(ids.tolist() if isinstance(ids, np.ndarray) else list(ids))

    def __reduce__(self) -> tuple[type[Encoder], tuple[Blueprint, str]]:
        return Encoder, (self.blueprint, self.backend)

    def __repr__(self) -> str:
        ids = f"vocab_size={self.vocab_size}, bos_id={self.bos_id}, eos_id={self.eos_id}"
        return f"Encoder(backend={self.backend!r}, {ids})"


def load_tokenizer(
    tokenize: Tokenize, *, base: Path, backend: str = "auto", samples: Sequence[str] = ()
) -> tuple[Encoder, TokenizerReport]:
    """Returns the encoder of a `[tokenize]` table and the report of how it was chosen.

    `auto` takes `fastokens` where it is installed, loads the file and gives the reference's ids on the probe
    texts and `samples`; ids never depend on the choice. Reads local files only; 1-3 s for 150k tokens.
    """
    file = read_tokenizer(tokenize, base=base, backend=backend)
    batches = probe_batches(file.added_tokens)
    reference, expected = _build_reference(file, batches)
    probe_hash = hash_columns(expected)
    if samples:
        batches.append(list(samples))
        expected.append(reference.encode(batches[-1]))
    encoder, note = _choose(backend, reference, batches, expected)
    report = TokenizerReport(
        backend=encoder.backend,
        note=note,
        file_hash=file.file_hash,
        probe_hash=probe_hash,
        path=file.path,
        bos_token=file.bos_token,
        eos_token=file.eos_token,
    )
    return encoder, report


def read_tokenizer(tokenize: Tokenize, *, base: Path, backend: str = "auto") -> TokenizerFile:
    """Returns the file that a `[tokenize]` table names, without loading a library; refuses a wrong one."""
    if backend not in BACKENDS:
        raise ValueError(f"`backend` must be one of {BACKENDS}, got {backend!r}")
    path = find_tokenizer_file(tokenize.tokenizer, base)
    return read_tokenizer_file(path, bos=tokenize.bos, eos=tokenize.eos, parse_special=tokenize.parse_special)


def tokenizer_lock(report: TokenizerReport) -> dict[str, str]:
    """Returns the tokenizer's entry of a lock; neither the path nor the back end is part of it."""
    return {"file": report.file_hash, "probe": report.probe_hash}


def _open_reference(blueprint: Blueprint) -> _Library:
    """Returns the functions of `tokenizers`; its threads follow the user's TOKENIZERS_PARALLELISM."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_buffer(blueprint.json)
    tokenizer.encode_special_tokens = not blueprint.parse_special

    def encode(texts: list[str]) -> Columns:
        _refuse_lost_threads()
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=True)
        offsets = np.zeros(len(encodings) + 1, np.int64)
        np.cumsum([len(encoding) for encoding in encodings], out=offsets[1:])
        # array.array reads a list of whole numbers several times faster than numpy does.
        columns = [np.frombuffer(array.array("I", encoding.ids), np.uint32) for encoding in encodings]
        return np.concatenate([np.empty(0, np.uint32), *columns]), offsets

    def decode(ids: list[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=False)

    return _Library(encode, decode, tokenizer.token_to_id)


def _refuse_lost_threads() -> None:
    """Refuses a forked process in which `tokenizers` would wait for ever for threads of its parent.

    Unless the user asks for them, the library itself does without threads there.
    """
    asked = os.environ.get(_PARALLELISM)
    if asked is not None and asked.lower() in ("", "off", "false", "f", "no", "n", "0"):  # as it reads them
        return
    if not _threaded_in:
        _threaded_in.append(os.getpid())
    elif asked is not None and _threaded_in[0] != os.getpid():
        raise WorkerError.explained(
            f"`tokenizers` cannot encode in process {os.getpid()}, which was forked",
            got=f"used in process {_threaded_in[0]} before the fork, and {_PARALLELISM}={asked}",
            rule="threads end at a fork: the library would wait for those of its parent for ever",
            cure=f"start the process with spawn, or unset {_PARALLELISM}",
        )


@contextmanager
def _one_thread_per_call() -> Iterator[None]:
    """Keeps `fastokens` from starting threads of its own, unless the user said how many.

    It reads the setting once, at the first call of a process. The workers are the parallelism here: its
    threads cost up to twice the CPU time and end no block sooner.
    """
    name = "FASTOKENS_BPE_THREADS"
    if name in os.environ:
        yield
        return
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]


def _open_fastokens(blueprint: Blueprint) -> _Library:
    """Returns the functions of `fastokens`; the arrays are read-only views of its buffers."""
    from fastokens import Tokenizer

    tokenizer = Tokenizer.from_json_str(blueprint.json.decode())
    split_special = not blueprint.parse_special
    with _one_thread_per_call():
        tokenizer.encode_batch_flat(["first"], True, split_special)

    def encode(texts: list[str]) -> Columns:
        ids, offsets = tokenizer.encode_batch_flat(texts, True, split_special)
        return np.frombuffer(ids, np.uint32), np.frombuffer(offsets, np.int64)

    def decode(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=False))

    return _Library(encode, decode, tokenizer.token_to_id)


def _build_reference(file: TokenizerFile, batches: list[list[str]]) -> tuple[Encoder, list[Columns]]:
    """Returns the encoder of `tokenizers` and what it makes of `batches`."""
    try:
        encoder = Encoder(file.blueprint, "tokenizers")
        expected = encode_batches(encoder.encode, batches)
    except Exception as error:
        if type(error) in (Exception, ValueError):  # all that the library raises of its own
            raise explain_file(file.path, f"`tokenizers` cannot use it: {error}") from error
        raise
    for token, want in ((file.bos_token, encoder.bos_id), (file.eos_token, encoder.eos_id)):
        got = None if token is None else encoder.backing.token_to_id(token)
        if got != want:
            raise explain_file(file.path, f"token {token!r} has id {want}, but `tokenizers` reads {got}")
    return encoder, expected


def _choose(
    backend: str, reference: Encoder, batches: list[list[str]], expected: list[Columns]
) -> tuple[Encoder, str]:
    """Returns the encoder that serves, and why in one sentence."""
    if backend == "tokenizers":
        return reference, "`tokenizers` serves because it was asked for"
    fast, reason = _try_fastokens(reference.blueprint, batches, expected)
    if fast is not None:
        return fast, f"`fastokens` serves because {reason}"
    if backend == "fastokens":
        raise CheckError.explained(
            "tokenizer back end `fastokens`, asked for by name",
            got=reason,
            rule="`fastokens` serves only where it gives the ids of `tokenizers`",
            cure="use the back end `auto` or `tokenizers`: the ids are the same, encoding is slower",
        )
    return reference, f"`tokenizers` serves because {reason}"


def _try_fastokens(
    blueprint: Blueprint, batches: list[list[str]], expected: list[Columns]
) -> tuple[Encoder | None, str]:
    """Returns the `fastokens` encoder if it gives the expected ids, and the reason either way."""
    try:
        encoder = Encoder(blueprint, "fastokens")
        got = encode_batches(encoder.backing.encode, batches)
    except ImportError as error:
        return None, f"`fastokens` cannot be imported ({error})"
    except (ValueError, RuntimeError, TypeError, AttributeError) as error:
        return None, f"`fastokens` refuses this tokenizer ({error})"
    differing = find_difference(batches, got, expected)
    if differing is None:
        return encoder, f"it gives the ids of `tokenizers` on {sum(map(len, batches))} probe texts"
    return None, f"`fastokens` gives other ids for the probe text {shorten(differing)}"


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _explain_texts(texts: object, refusal: str) -> Exception:
    """Returns the error that says which text a library refused, and why."""
    if not isinstance(texts, list):
        return TypeError(f"`texts` must be a list of strings, got {shorten(texts)}")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            return TypeError(f"`texts` must be a list of strings, got {shorten(text)} at index {i}")
        try:
            text.encode()
        except UnicodeEncodeError as fault:
            near = shorten(text[max(fault.start - 20, 0) : fault.start + 20])
            return DataError.explained(
                f"text {i} of {len(texts)} given to the tokenizer",
                got=f"{near} at character {fault.start}",
                rule="a text holds no lone surrogates (U+D800 to U+DFFF)",
                cure="repair or drop the document before it is tokenized",
            )
    return DataError.explained(
        f"{len(texts)} texts given to the tokenizer",
        got=refusal,
        rule="every text can be encoded",
        cure="encode them one by one to find the text; where it is sound, use the back end `tokenizers`",
    )
