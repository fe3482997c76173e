"""A place on disk with a recipe over JSONL files, for the tests of runs and commands."""

from __future__ import annotations

import json
from pathlib import Path

from tests.helpers import words, write_tokenizer

RECIPE = """
seed = 7
global_batch_size = 4
total_steps = 40

[tokenize]
tokenizer = "letters"
eos = true

[packing]
seq_len = 16

[schedule]
kind = "stages"
stages = [{ step = 0, weights = { web = 3, code = 1 } }, { step = 20, weights = { web = 1, code = 1 } }]

[[datasets]]
name = "web"
path = "data/web.jsonl"

[[datasets]]
name = "code"
path = "data/code.jsonl"
"""


def make_place(folder: Path) -> Path:
    """Writes tokenizer, data and recipe into `folder`, and returns it."""
    write_tokenizer(folder / "letters")
    (folder / "data").mkdir()
    for name in ("web", "code", "math"):
        lines = [json.dumps({"text": text}) + "\n" for text in words(name, 60, (1, 3, 9))]
        (folder / "data" / f"{name}.jsonl").write_text("".join(lines))
    (folder / "recipe.toml").write_text(RECIPE)
    return folder
