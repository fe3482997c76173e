"""`zephon init` on every kind of data: what it finds passes `zephon check`, or it says why not."""

from __future__ import annotations

import bz2
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.helpers import words, write_tokenizer
from tests.servers import http_server
from tests.token_data import ids_of, write_bin, write_megatron
from zephon.cli import build_app

pytestmark = pytest.mark.usefixtures("probed_once")

TEXTS = words("web", 50)
LINES = "".join(json.dumps({"id": i, "content": text}) + "\n" for i, text in enumerate(TEXTS)).encode()
ROWS = [{"id": i, "content": text} for i, text in enumerate(TEXTS)]
CSV = "id,content\n" + "".join(f'{i},"{text}, yes"\n' for i, text in enumerate(TEXTS))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_tokenizer(tmp_path / "letters")
    (tmp_path / "web").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZEPHON_CACHE", str(tmp_path / "cache"))
    return tmp_path


def zephon(*args: str) -> Any:
    result = CliRunner().invoke(build_app(), list(args))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def init(*args: str) -> Any:
    """Returns what `zephon init` found, whose recipe must pass the check."""
    done = zephon("init", *args, "--tokenizer", "letters", "--out", "recipe.toml", "--force", "--json")
    assert done.exit_code == 0, done.output
    checked = zephon("check", "recipe.toml", "--set", "packing.seq_len=16", "--json")
    errors = [f for f in json.loads(checked.stdout)["findings"] if f["severity"] == "error"]
    assert (checked.exit_code, errors) == (0, [])
    return json.loads(done.stdout)


def save_hub(folder: Path) -> None:
    """Writes what `Dataset.save_to_disk` writes."""
    folder.mkdir(parents=True)
    with pa.ipc.new_stream(
        str(folder / "data-00000-of-00001.arrow"), pa.Table.from_pylist(ROWS).schema
    ) as out:
        out.write_table(pa.Table.from_pylist(ROWS))
    (folder / "state.json").write_text("{}")
    (folder / "dataset_info.json").write_text("{}")


def write_feather(path: Path) -> None:
    feather.write_feather(pa.Table.from_pylist(ROWS), path)


WRITERS: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    "gzip": ("jsonl", "content", lambda f: (f / "a.jsonl.gz").write_bytes(gzip.compress(LINES))),
    "json.bz2": ("jsonl", "content", lambda f: (f / "a.json.bz2").write_bytes(bz2.compress(LINES))),
    "zstd": ("jsonl", "content", lambda f: (f / "a.jsonl.zst").write_bytes(pa.Codec("zstd").compress(LINES))),
    "csv": ("csv", "content", lambda f: (f / "a.csv").write_text(CSV)),
    "csv.gz": ("csv", "content", lambda f: (f / "a.csv.gz").write_bytes(gzip.compress(CSV.encode()))),
    "tsv": ("csv", "content", lambda f: (f / "a.tsv").write_text("id\tcontent\n" + "1\ta long text\n" * 40)),
    "feather": ("arrow", "content", lambda f: write_feather(f / "a.feather")),
    "parquet": ("parquet", "content", lambda f: pq.write_table(pa.Table.from_pylist(ROWS), f / "a.parquet")),
    "text": ("text", "", lambda f: [(f / f"{i}.txt").write_text(text) for i, text in enumerate(TEXTS)]),
    "saved": ("arrow", "content", lambda f: save_hub(f / "x")),
    "flat": ("flat", "", lambda f: write_bin(f, ids_of(TEXTS))),
    "megatron": ("megatron", "", lambda f: write_megatron(f, ids_of(TEXTS))),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_is_found_and_passes_the_check(place: Path, name: str) -> None:
    kind, text, write = WRITERS[name]
    write(place / "web")
    found = init("web")
    [dataset] = found["datasets"]
    assert (dataset["name"], dataset["kind"], dataset["text"]) == ("web", kind, text)
    assert found["left_out"] == []
    recipe = (place / "recipe.toml").read_text()
    assert ("# stream = true" in recipe) == (name in ("gzip", "json.bz2", "zstd", "csv.gz"))


def test_a_single_file_gives_its_name(place: Path) -> None:
    (place / "web" / "big.pages.jsonl.gz").write_bytes(gzip.compress(LINES))
    assert [d["name"] for d in init("web/big.pages.jsonl.gz")["datasets"]] == ["big_pages"]
    assert [d["paths"] for d in init("web/*.gz")["datasets"]] == [[str(place / "web" / "*.gz")]]


def test_texts_beside_data_are_no_data(place: Path) -> None:
    (place / "web" / "a.jsonl").write_bytes(LINES)
    (place / "web" / "README.md").write_text("# About\n")
    [dataset] = init("web")["datasets"]
    assert [Path(path).name for path in dataset["paths"]] == ["*.jsonl"]


def test_the_splits_of_a_saved_dataset_are_taken_for_what_they_are(place: Path) -> None:
    for split in ("train", "extra", "test"):
        save_hub(place / "hub" / split)
    (place / "hub" / "dataset_dict.json").write_text('{"splits": ["train", "extra", "test"]}')
    found = init("hub")
    assert [dataset["name"] for dataset in found["datasets"]] == ["hub_extra", "hub_train"]
    [other] = found["left_out"]
    assert (Path(other["path"]).name, other["why"].startswith("a split for evaluation")) == ("test", True)


def write_run(folder: Path) -> None:
    """Writes a run folder as far as it is told by."""
    (folder / "batches").mkdir(parents=True)
    for name in ("recipe.toml", "lock.json"):
        (folder / name).write_text("{}")
    (folder / "batches" / "0.jsonl").write_text('{"schedule": "abc"}\n')


def test_run_folders_are_left_out(place: Path) -> None:
    for name in ("web", "code"):
        (place / "data" / name).mkdir(parents=True)
        (place / "data" / name / "a.jsonl").write_bytes(LINES)
    for name in ("runs/a", "runs/b", "code/old/run", "last"):
        write_run(place / "data" / name)
    (place / "data" / "code" / "old" / "more").mkdir()
    (place / "data" / "code" / "old" / "more" / "b.jsonl").write_bytes(LINES)
    found = init("data")
    data = place / "data"
    assert [(d["name"], d["num_files"]) for d in found["datasets"]] == [("code", 2), ("web", 1)]
    code, web = found["datasets"]
    assert code["paths"] == [f"{data}/code/a.jsonl", f"{data}/code/old/more/**/*.jsonl"]
    assert web["paths"] == [f"{data}/web"]
    one, two = "a run folder: what a run wrote is no data", "2 run folders: what a run wrote is no data"
    assert [(other["path"].removeprefix(f"{data}/"), other["why"]) for other in found["left_out"]] == [
        ("code/old/run", one), ("last", one), ("runs", two),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["run", "run/b", "."])
def test_nothing_but_run_folders_is_refused(place: Path, name: str) -> None:
    for run in ("run/a", "run/b"):
        write_run(place / "only" / run)
    done = zephon("init", f"only/{name}", "--out", "recipe.toml")
    assert done.exit_code == 4
    assert "what a run wrote is no data" in done.stderr
    assert not (place / "recipe.toml").exists()


def test_weights_compare_texts_and_not_how_they_are_compressed(place: Path) -> None:
    text = "a line that is there again and again. " * 40
    (place / "plain").mkdir()
    (place / "plain" / "a.jsonl").write_text((json.dumps({"text": text}) + "\n") * 50)
    rows = [{"url": "u" * 5000, "text": f"{number} {text}"} for number in range(50)]
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, place / "web" / "a.parquet", compression="zstd", use_dictionary=False)
    (place / "zipped").mkdir()
    (place / "zipped" / "a.jsonl.gz").write_bytes(gzip.compress(LINES))
    plain, web, zipped = init("plain", "web", "zipped")["datasets"]
    assert (plain["text_bytes"], zipped["text_bytes"]) == (None, None)
    assert web["text_bytes"] == pytest.approx(50 * len(text), rel=0.05)
    assert web["num_bytes"] < 0.1 * web["text_bytes"]
    lines = (place / "recipe.toml").read_text().splitlines()
    assert f"plain  = 49   # {plain['num_bytes']:,} bytes on disk" in lines
    assert f"zipped = 1    # {zipped['num_bytes']:,} bytes on disk, compressed" in lines
    shown = f"# about {web['text_bytes']:,} bytes of text, {web['num_bytes']:,} on disk"
    assert any(line.startswith("web    = ") and line.endswith(shown) for line in lines)


def test_a_url_gives_datasets_too(place: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe("/lake/web/a.jsonl.gz", gzip.compress(LINES))
    memory.pipe("/lake/code/a.csv", CSV.encode())
    memory.pipe("/lake/misc/a.pdf", b"pdf")
    found = init("memory://lake")
    assert [(d["name"], d["kind"], d["paths"]) for d in found["datasets"]] == [
        ("code", "csv", ["memory://lake/code"]),
        ("web", "jsonl", ["memory://lake/web"]),
    ]
    assert [other["path"] for other in found["left_out"]] == ["memory://lake/misc"]
    assert init("memory://lake/web/a.jsonl.gz")["datasets"][0]["name"] == "a"
    memory.rm("/lake", recursive=True)


def test_a_file_on_the_web(place: Path) -> None:
    with http_server({"corpus/pages.jsonl.gz": gzip.compress(LINES)}) as server:
        [dataset] = init(f"{server.url}/corpus/pages.jsonl.gz")["datasets"]
        assert (dataset["name"], dataset["text"]) == ("pages", "content")


def test_a_secret_in_a_url_is_refused_and_no_recipe_is_left(place: Path) -> None:
    with http_server({"a.jsonl": LINES}) as server:
        found = zephon("init", f"{server.url}/a.jsonl?sig=abc", "--tokenizer", "letters", "--out", "new.toml")
    assert found.exit_code == 3
    assert "must not spell out a secret" in found.stderr
    assert "abc" not in found.stderr
    assert [path.name for path in place.iterdir() if "new.toml" in path.name] == []


@pytest.mark.parametrize(("name", "content", "said"), [
    ("a.jsonl.gz", b"\x1f\x8b", "is damaged"),
    ("a.arrow", b"no arrow at all", "cannot be read as Arrow"),
    ("a.parquet", b"no parquet", "cannot be read as Parquet"),
    ("a.csv", b"", "has no column of text"),
    ("a.bin", b"1234", "no offsets of its documents beside it"),
])  # fmt: skip
def test_what_cannot_be_used_is_left_out_and_refused_alone(
    place: Path, name: str, content: bytes, said: str
) -> None:
    (place / "all" / "bad").mkdir(parents=True)
    (place / "all" / "good").mkdir()
    (place / "all" / "bad" / name).write_bytes(content)
    (place / "all" / "good" / "a.jsonl").write_bytes(LINES)
    alone = zephon("init", "all/bad", "--out", "new.toml")
    assert alone.exit_code == 4
    assert said in alone.stderr
    assert "cure: " in alone.stderr
    assert not (place / "new.toml").exists()
    found = init("all")
    assert [dataset["name"] for dataset in found["datasets"]] == ["good"]
    assert [said in other["why"] for other in found["left_out"]] == [True]


# Texts, source code among them, and what is left out of a folder -------------------------------------------


def write_texts(folder: Path, *names: str) -> None:
    """Writes files of a text each."""
    for name, text in zip(names, TEXTS, strict=False):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


ANY = '; a dataset of kind = "text" takes files of text by any name, each one document'


def test_files_that_are_not_taken_of_a_folder_are_counted_and_named(place: Path) -> None:
    write_texts(place / "prose", "a.txt", "b.md", "more/c.txt", "z.xyz", "more/a.pdf", "b.pdf", "LICENSE")
    done = zephon("init", "prose", "--tokenizer", "letters", "--out", "recipe.toml")
    assert done.stderr == f"left out of prose: 4 files: .pdf, .xyz, no suffix{ANY}\n"
    assert "dataset prose: 3 text files" in done.stdout
    lines = (place / "recipe.toml").read_text().splitlines()
    assert lines[lines.index("# Left out of prose") + 1] == f"#   4 files: .pdf, .xyz, no suffix{ANY}"
    [other] = init("prose")["left_out"]
    assert (other["path"], other["part_of"]) == (str(place / "prose"), "prose")


def test_files_beside_folders_of_data_are_named_but_for_metadata_and_the_tokenizer(place: Path) -> None:
    write_texts(place / "data", "README.md", "notes.pdf", "tokenizer.json", "web/a.txt", "code/a.txt")
    found = init("data")
    assert [dataset["name"] for dataset in found["datasets"]] == ["code", "web"]
    [other] = found["left_out"]
    assert (other["part_of"], other["why"]) == ("data", f"2 files: .md, .pdf{ANY}")


def test_source_code_is_text(place: Path) -> None:
    write_texts(place / "data" / "code", "a.py", "lib/b.rs", "lib/C.PY", "README.md", "Makefile")
    write_texts(place / "data" / "prose", "a.txt")
    found = init("data")
    code, prose = found["datasets"]
    assert (code["name"], code["kind"], code["num_files"]) == ("code", "text", 4)
    assert code["why"] == "every file is one document: .PY, .md, .py, .rs"
    assert (prose["num_files"], prose["why"]) == (1, "every file is one document")
    assert [(other["part_of"], other["why"]) for other in found["left_out"]] == [
        ("code", f"1 file: no suffix{ANY}")
    ]
    recipe = (place / "recipe.toml").read_text()
    assert recipe.count('kind = "text"   # every file is one document: ') == 1
    assert init("data/code/lib/b.rs")["datasets"][0]["is_kind_named"] is False


def test_source_code_beside_data_is_none(place: Path) -> None:
    (place / "web" / "a.jsonl").write_bytes(LINES)
    write_texts(place / "web", "load.py")
    found = init("web")
    assert [(d["kind"], d["num_files"]) for d in found["datasets"]] == [("jsonl", 1)]
    assert [other["why"] for other in found["left_out"]] == [f"1 file: .py{ANY}"]


@pytest.mark.parametrize("content", [b"G\x00\x11", b"\xff\xfe\x41"])
def test_what_is_called_like_source_code_and_is_no_text_is_left_out(place: Path, content: bytes) -> None:
    write_texts(place / "code", "a.py")
    (place / "code" / "0.ts").write_bytes(b"")
    (place / "code" / "1.ts").write_bytes(content)
    found = init("code")
    assert [(d["num_files"], d["paths"]) for d in found["datasets"]] == [(1, [f"{place}/code/**/*.py"])]
    assert [other["why"] for other in found["left_out"]] == [f"2 files: .ts{ANY}"]
    (place / "code" / "a.py").unlink()
    alone = zephon("init", "code", "--out", "new.toml")
    assert alone.exit_code == 4
    assert "got:  2 files: .ts\n" in alone.stderr
    assert "source code is text in UTF-8" in alone.stderr


def test_a_letter_that_is_cut_at_the_end_of_what_is_looked_at_is_text(place: Path) -> None:
    (place / "web" / "a.py").write_text("#" + "\u00e9" * 4096)
    assert init("web")["datasets"][0]["num_files"] == 1


def test_a_folder_of_nothing_that_can_be_read_is_named_once(place: Path) -> None:
    write_texts(place / "only", "x/a.pdf", "y/b.pdf")
    write_texts(place / "web", "a.txt")
    [other] = init("only", "web")["left_out"]
    assert (Path(other["path"]).name, other["why"].endswith("2 files: .pdf")) == ("only", True)
    alone = zephon("init", "only", "--out", "new.toml")
    assert alone.exit_code == 4
    assert 'a dataset of kind = "text" takes' in alone.stderr


def test_what_is_left_out_is_named_before_a_role_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEPHON_PLUGINS", "zephon-curriculum")
    write_texts(place / "data", "prose/a.txt", "logs/a.txt", "code/a.pdf")
    refused = zephon("init", "data", "--template", "smollm3", "--out", "new.toml")
    assert refused.exit_code == 2
    first, *rest = refused.stderr.splitlines()
    assert first.startswith(f"left out: {place}/data/code: 1 file: .pdf; ")
    assert "role 'web' is played by no dataset" in "\n".join(rest)


def test_datasets_come_in_the_order_of_the_paths_and_of_names_whatever_a_folder_lists_first(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_texts(place / "data", "prose/a.txt", "logs/a.txt", "code/a.py", "code/b.md", "x.pdf", "a.xyz")
    found = init("data")
    assert [dataset["name"] for dataset in found["datasets"]] == ["code", "logs", "prose"]
    given = [dataset["name"] for dataset in init("data/prose", "data/logs", "data/code")["datasets"]]
    assert given == ["prose", "logs", "code"]
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path=".": sorted(listdir(path), reverse=True))
    assert init("data") == found


def test_a_path_that_is_not_there_is_refused_without_a_word_of_recipes(place: Path) -> None:
    refused = zephon("init", "nope", "--out", "new.toml")
    assert refused.exit_code == 4
    assert f"got:  nothing at {place}/nope; " in refused.stderr
    assert "cure: correct the path\n" in refused.stderr
