"""The demo's data: three corpora of text that every Python installation has, a tokenizer and a recipe.

Upstream: the sources of the standard library and the texts of installed packages. Downstream:
`demo/__init__.py`. Files are taken in the order of the SHA-256 of their names: a bounded sample is varied and
always the same.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from zephon.cachefiles import replace_file, write_atomically
from zephon.errors import DataError
from zephon.readers import Report

FORMAT = 1
MANIFEST = "demo.json"
END = "<|endoftext|>"
CODE, PROSE, REFERENCE = "code/stdlib.jsonl", "prose/texts.parquet", "reference/functions.parquet"
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "encodings", "pydoc_data", "lib2to3"}
"""Folders without code to learn from, or not of the standard library."""
TEXT_FILES = ("README", "LICEN", "COPYING", "CHANGE", "NOTICE", "AUTHORS", "HISTORY")
MAX_FILE_BYTES = 256 << 10
MIN_TEXT_CHARS = 160
MIN_CORPUS_BYTES = 50_000

Document = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CorporaPlan:
    """How much text is gathered, and the size of the tokenizer that is trained on it."""

    code_bytes: int = 3 << 20
    prose_bytes: int = 3 << 20
    reference_bytes: int = 1 << 20
    training_bytes: int = 2 << 20
    """Text that the tokenizer is trained on, in equal parts from the three corpora."""
    vocab_size: int = 8192


def build_corpora(folder: Path, plan: CorporaPlan, report: Report) -> bool:
    """Makes corpora and tokenizer.json below `folder`, and returns False where they lie there complete.

    Refuses a folder with other things in it. The manifest gets the sizes of the files last.
    """
    manifest = folder / MANIFEST
    wanted = {"format": FORMAT, "python": sysconfig.get_python_version(), "plan": asdict(plan)}
    found = _read_manifest(folder)
    if found.get("settings") == wanted and _is_complete(folder, found):
        return False
    _write_json(manifest, {"settings": wanted, "files": {}})
    code, prose, reference = _gather(plan, report)
    lines = (json.dumps(document, ensure_ascii=False) + "\n" for document in code)
    write_atomically(folder / CODE, "".join(lines))
    _write_parquet(folder / PROSE, prose)
    _write_parquet(folder / REFERENCE, reference)
    _train(folder / "tokenizer.json", (code, prose, reference), plan, report)
    files = (CODE, PROSE, REFERENCE, "tokenizer.json")
    _write_json(manifest, {"settings": wanted, "files": {f: (folder / f).stat().st_size for f in files}})
    return True


def _read_manifest(folder: Path) -> dict[str, Any]:
    """Returns what an earlier demo wrote, or nothing in an empty folder; refuses any other folder."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if not names and (folder.is_dir() or not folder.exists()):
        return {}
    found: object = None
    if MANIFEST in names:
        with contextlib.suppress(ValueError):
            found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    if not isinstance(found, dict) or "settings" not in found:
        got = f"{str(folder)!r} with {names[0]!r} in it" if names else f"the file {str(folder)!r}"
        raise ValueError(
            f"the demo's folder must be empty, absent or an earlier demo's, got {got}; choose another"
        )
    return found


def _is_complete(folder: Path, manifest: Mapping[str, Any]) -> bool:
    files = manifest.get("files") or {}
    there = [(folder / name).is_file() and (folder / name).stat().st_size == n for name, n in files.items()]
    return bool(there) and all(there)


def _write_json(path: Path, value: object) -> None:
    write_atomically(path, json.dumps(value, indent=1) + "\n")


def _write_parquet(path: Path, documents: list[Document]) -> None:
    table = pa.table({name: [d[name] for d in documents] for name in ("name", "text")})
    replace_file(path, lambda file: pq.write_table(table, file, row_group_size=256, compression="zstd"))


# Gathering ------------------------------------------------------------------------------------------------


def _gather(plan: CorporaPlan, report: Report) -> tuple[list[Document], list[Document], list[Document]]:
    """Returns code, prose and reference; each ends with the document that reaches its bytes."""
    code, prose, reference = (
        _Corpus(plan.code_bytes),
        _Corpus(plan.prose_bytes),
        _Corpus(plan.reference_bytes),
    )
    for document in _package_texts():
        if prose.num_bytes >= plan.prose_bytes // 2:
            break  # the other half is for docstrings
        prose.add(document)
    library = Path(sysconfig.get_path("stdlib"))
    files = _by_hash(_python_files(library), library)
    for i, (name, path) in enumerate(files):
        if code.full and prose.full and reference.full:
            break
        report("corpora", i, len(files))
        text = _read_text(path)
        if text is None:
            continue
        code.add({"name": name, "text": text})
        for in_prose, document in _docstrings(name, text):
            (prose if in_prose else reference).add(document)
    report("corpora", len(files), len(files))
    for what, corpus in (("code", code), ("prose", prose), ("reference", reference)):
        if corpus.num_bytes < MIN_CORPUS_BYTES:
            raise _too_little(what, corpus.num_bytes, library)
    return code.documents, prose.documents, reference.documents


class _Corpus:
    """Documents without repetition, up to a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.documents: list[Document] = []
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._seen: set[bytes] = set()

    @property
    def full(self) -> bool:
        return self.num_bytes >= self._max_bytes

    def add(self, document: Document) -> None:
        data = document["text"].encode()
        key = hashlib.sha256(data).digest()
        if not self.full and key not in self._seen:
            self._seen.add(key)
            self.documents.append(document)
            self.num_bytes += len(data)


def _too_little(what: str, num_bytes: int, library: Path) -> DataError:
    return DataError.explained(
        f"the demo finds too little text for its corpus {what!r}",
        got=f"{num_bytes:,} bytes from {library} and the installed packages",
        rule=f"a corpus has at least {MIN_CORPUS_BYTES:,} bytes",
        cure="run the demo on a Python whose standard library is there as source files",
    )


def _python_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.name not in LEFT_OUT and path.name.isidentifier():
                yield from _python_files(path)
        elif path.suffix == ".py":
            yield path


def _by_hash(paths: Iterable[Path], root: Path) -> list[tuple[str, Path]]:
    named = [(path.relative_to(root).as_posix(), path) for path in paths]
    return sorted(named, key=lambda item: hashlib.sha256(item[0].encode()).digest())


def _read_text(path: Path) -> str | None:
    """Returns the text of a file, or None where it is too long, not UTF-8 or not readable."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return None
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return text if text.strip() else None


def _package_texts() -> Iterator[Document]:
    """Yields the long descriptions and the README, licence and change files of installed packages."""
    found = {f"{d.metadata['Name']} {d.version}": d for d in metadata.distributions()}
    for name in sorted(found):
        _, _, description = (found[name].read_text("METADATA") or "").partition("\n\n")
        if len(description) >= MIN_TEXT_CHARS:
            yield {"name": f"{name}: description", "text": description[:MAX_FILE_BYTES]}
        for file in sorted(found[name].files or (), key=str):
            if file.name.upper().startswith(TEXT_FILES) and file.suffix in ("", ".md", ".rst", ".txt"):
                text = _read_text(Path(str(file.locate())))
                if text is not None and len(text) >= MIN_TEXT_CHARS:
                    yield {"name": f"{name}: {file}", "text": text}


def _docstrings(name: str, text: str) -> Iterator[tuple[bool, Document]]:
    """Yields (True, a long docstring) and (False, a function's signature with its first line)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old sources have escapes that compilers complain of
            tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for path, node in _definitions(module, tree):
        words = ast.get_docstring(node)
        if not words:
            continue
        if len(words) >= MIN_TEXT_CHARS:
            yield True, {"name": path, "text": f"{path}\n\n{words}\n"}
        if isinstance(node, ast.FunctionDef):
            line = words.splitlines()[0]
            yield False, {"name": path, "text": f"{path}({ast.unparse(node.args)}): {line}\n"}


def _definitions(
    path: str, node: ast.Module | ast.ClassDef | ast.FunctionDef
) -> Iterator[tuple[str, ast.Module | ast.ClassDef | ast.FunctionDef]]:
    yield path, node
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            yield from _definitions(f"{path}.{child.name}", child)


# Tokenizer and recipe -------------------------------------------------------------------------------------


def _train(path: Path, corpora: Iterable[list[Document]], plan: CorporaPlan, report: Report) -> None:
    """Writes a byte-level BPE whose one special token ends a document."""
    report("tokenizer", 0, 1)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=plan.vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_training_texts(corpora, plan.training_bytes // 3), trainer)
    write_atomically(path, tokenizer.to_str() + "\n")
    report("tokenizer", 1, 1)


def _training_texts(corpora: Iterable[list[Document]], num_bytes: int) -> Iterator[str]:
    for documents in corpora:
        rest = num_bytes
        for document in documents:
            if rest <= 0:
                break
            yield document["text"]
            rest -= len(document["text"])


RECIPE = """\
# Written by `zephon demo`. Step s is taken when s steps are complete, so steps count from 0.
seed = 0
global_batch_size = {global_batch_size}  # rows of one optimizer step, over all ranks
lanes = {lanes}  # logical streams; every number of ranks that divides them gives the same batches
total_steps = {num_steps}

[tokenize]
tokenizer = "tokenizer.json"  # paths start at this file's folder
eos = "{end}"  # put after every document

[packing]
kind = "wrap"
seq_len = {seq_len}

[schedule]
kind = "stages"  # weights are of tokens; only their ratios count
stages = [
    {{ step = 0, weights = {{ code = 6, prose = 3, reference = 1 }} }},
    {{ step = {change_at}, weights = {{ code = 2, prose = 7, reference = 1 }} }},
]

[[datasets]]
name = "code"  # sources of the Python standard library
path = "{code}"

[[datasets]]
name = "prose"  # docstrings, and descriptions and licences of installed packages
path = "{prose}"

[[datasets]]
name = "reference"  # signatures of functions, each with one line that says what it does
path = "{reference}"
"""


def write_recipe(
    path: Path, *, num_steps: int, change_at: int, global_batch_size: int, lanes: int, seq_len: int
) -> None:
    """Writes the demo's recipe; its mixture changes at step `change_at`."""
    text = RECIPE.format(
        num_steps=num_steps,
        change_at=change_at,
        global_batch_size=global_batch_size,
        lanes=lanes,
        seq_len=seq_len,
        end=END,
        code=CODE,
        prose=PROSE,
        reference=REFERENCE,
    )
    write_atomically(path, text)
