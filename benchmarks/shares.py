"""Whether a step holds what the schedule says: short and long documents, 32 lanes, a switch at step 100.

Upstream: documents of 40 and of 4,000 letters, of which each is one token. Downstream: `plans.py`. All
documents of a dataset have one length, so the numbers depend on the schedule only, not on the seed.
"""

from __future__ import annotations

import json
import random
import statistics
import string
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recipes import NUM_WORKERS

from zephon import Dataset, Loader, MixtureWorkSource, Pipeline, Stages

NUM_LANES = 32
SEQ_LEN = 2048
SWITCH = 100
NUM_STEPS = 200
SETTLED_STEPS = 50
"""The last steps of a phase; their mean is what the phase's first step is compared with."""
SIZES = {"short": 40, "long": 4000}
NUM_DOCUMENTS = {"short": 20_000, "long": 2_000}
PLANS: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "3:1 then 1:3": ({"short": 3, "long": 1}, {"short": 1, "long": 3}),
    "1:3 then 3:1": ({"short": 1, "long": 3}, {"short": 3, "long": 1}),
    "1:1 then 1:3": ({"short": 1, "long": 1}, {"short": 1, "long": 3}),
}


class ShareLoad:
    """Runs one schedule after the other."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        letters = random.Random(0)
        self._datasets = [
            Dataset.from_documents(
                name,
                [
                    "".join(letters.choices(string.ascii_lowercase, k=size))
                    for _ in range(NUM_DOCUMENTS[name])
                ],
            )
            for name, size in SIZES.items()
        ]

    def ask(self, command: str, argument: Any) -> dict[str, Any]:
        """Returns the tokens of each dataset in each step of the plan that the argument names."""
        assert command == "tokens"
        first, second = PLANS[argument]
        mixture = MixtureWorkSource(self._datasets, Stages({0: first, SWITCH: second}))
        with tempfile.TemporaryDirectory(prefix="zephon-bench-") as folder:
            tokenizer = write_letters(Path(folder))
            pipeline = Pipeline(mixture, global_batch_size=NUM_LANES).tokenize(tokenizer).pack(SEQ_LEN)
            with pipeline.loader(cache=folder, workers=NUM_WORKERS) as loader:
                return {"tokens": count_steps(loader)}


def count_steps(loader: Loader) -> list[list[int]]:
    """Returns the tokens of each dataset in each of NUM_STEPS steps; a batch is a whole step."""
    return [next(loader).tokens.sum(axis=1).tolist() for _ in range(NUM_STEPS)]


def write_letters(folder: Path) -> Path:
    """Writes the tokenizer.json of 256 byte tokens and no merges; returns its path."""
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = sorted(ByteLevel.alphabet())
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    table = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {letter: i for i, letter in enumerate(alphabet)}, "merges": []},
    }
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(table), encoding="utf-8")
    return path


def describe_phase(tokens: Sequence[Sequence[int]], weights: Mapping[str, int]) -> dict[str, float]:
    """Returns how far a phase is from its weights.

    `points`: of all its tokens, in points of a hundred. `first`: total variation of its first step;
    `settled`: the mean of that over its last steps; `ratio`: the one over the other.
    """
    plan = [weights[name] / sum(weights.values()) for name in SIZES]

    def variation(counts: Sequence[int]) -> float:
        total = sum(counts)
        return sum(abs(count / total - part) for count, part in zip(counts, plan, strict=True)) / 2

    settled = statistics.fmean(map(variation, tokens[-SETTLED_STEPS:]))
    first = variation(tokens[0])
    points = 100 * variation([sum(column) for column in zip(*tokens, strict=True)])
    return {"points": points, "first": first, "settled": settled, "ratio": first / max(settled, 1e-9)}


def describe(tokens: Sequence[Sequence[int]], plan: str) -> list[dict[str, float]]:
    """Returns `describe_phase` of both phases of a run."""
    first, second = PLANS[plan]
    return [describe_phase(tokens[:SWITCH], first), describe_phase(tokens[SWITCH:], second)]
