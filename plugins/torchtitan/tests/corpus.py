"""What the tests train on: readable words in two datasets, a tokenizer of letters, recipes as TOML.

A token is a byte; `</s>` ends a document. The documents of `short` are some words, those of `long` some rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END = "</s>"
VOCABULARY = 320
SEQ_LEN = 64
GLOBAL_BATCH_SIZE = 8
STEPS = 8
"""What the configs of `tiny.py` have."""


def words(name: str, count: int, lengths: Sequence[int]) -> list[str]:
    """Returns `count` documents; document i is the word NAMEi, `lengths[i % len(lengths)]` times."""
    return [f"{name}{i} " * lengths[i % len(lengths)] for i in range(count)]


SHORT = words("short", 150, (1, 2, 5))
LONG = words("long", 60, (12, 25, 40))


def write_jsonl(path: Path, texts: Iterable[str]) -> Path:
    """Writes a document a line, and returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def write_tokenizer(folder: Path, swapped: str = "", num_more: int = 0) -> Path:
    """Writes the files of a tokenizer of the 256 letters, and returns its folder.

    `swapped` are two letters that have each other's id; `num_more` special tokens follow the two there are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {_letter(byte): byte for byte in range(256)}
    if swapped:
        first, second = tuple(swapped)
        vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", END, *(f"<more{i}>" for i in range(num_more))]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": END, "add_bos_token": False, "add_eos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def _letter(byte: int) -> str:
    """Returns the letter that the byte-level alphabet writes for a byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return chr(byte) if byte in printable else chr(256 + others.index(byte))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFile:
    """The text of a recipe.toml; a field of "" or None is left out of it."""

    seed: int = 7
    lanes: int | None = 8
    top: str = ""
    """Lines of the top table."""
    eos: str = END
    tokenize: str = ""
    packing: str = 'kind = "wrap"'
    weights: dict[int, dict[str, int]] = field(
        default_factory=lambda: {0: {"short": 3, "long": 1}, 5: {"short": 1, "long": 3}}
    )
    """Step -> dataset -> weight."""
    paths: dict[str, str] = field(default_factory=dict)
    more: dict[str, str] = field(default_factory=dict)
    """Lines of a dataset, by its name."""

    def text(self) -> str:
        """Returns the TOML."""
        lines = [f"seed = {self.seed}"]
        lines += [] if self.lanes is None else [f"lanes = {self.lanes}"]
        lines += [self.top, "[tokenize]", f"eos = {json.dumps(self.eos)}", self.tokenize]
        lines += ["[packing]", self.packing, "[schedule]", 'kind = "stages"', "stages = ["]
        for step, weights in self.weights.items():
            parts = ", ".join(f"{name} = {weight}" for name, weight in weights.items())
            lines.append(f"    {{ step = {step}, weights = {{ {parts} }} }},")
        lines.append("]")
        for name, path in self.paths.items():
            lines += ["[[datasets]]", f'name = "{name}"', f'path = "{path}"', self.more.get(name, "")]
        return "\n".join(filter(None, lines)) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """A folder with the data, the tokenizer and the recipe of most tests."""

    folder: Path
    file: RecipeFile

    @property
    def tokenizer(self) -> Path:
        """Returns the tokenizer's folder."""
        return self.folder / "tokenizer"

    @property
    def recipe(self) -> Path:
        """Returns the recipe whose mixture changes at step 5."""
        return self.folder / "recipe.toml"

    def write(self, path: Path, **changes: object) -> Path:
        """Writes the recipe with other fields, and returns the path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(replace(self.file, **changes).text(), encoding="utf-8")  # type: ignore[arg-type]
        return path


def make_corpus(folder: Path) -> Corpus:
    """Writes the data, the tokenizer and the recipe."""
    paths = {
        "short": str(write_jsonl(folder / "data" / "short.jsonl", SHORT)),
        "long": str(write_jsonl(folder / "data" / "long.jsonl", LONG)),
    }
    write_tokenizer(folder / "tokenizer")
    corpus = Corpus(folder=folder, file=RecipeFile(paths=paths))
    corpus.write(corpus.recipe)
    return corpus
