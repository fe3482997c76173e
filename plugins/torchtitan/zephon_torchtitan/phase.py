"""Takes the data's state out of a checkpoint of TorchTitan, so that a recipe can continue it in a new phase.

    python -m zephon_torchtitan.phase outputs/checkpoint/step-1000 --out phase1.json

Upstream: the folder of a step. Downstream: `continue_from = "phase1.json"` of a recipe. Reads no weights.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from zephon import StateError, ZephonError, write_state_file
from zephon_torchtitan.launch import STATE
from zephon_torchtitan.rank import BEGAN_AT

PREFIX = "dataloader."
STEP = "step-"
METADATA = ".metadata"
"""What DCP writes last into the folder of a step."""

_log = logging.getLogger("zephon")


def read_state(checkpoint: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the state of the data in the folder of a step, of all lanes, whichever ranks wrote them.

    Of a folder of such folders it is that of the newest step, which is logged. Raises `StateError` where
    there is no such checkpoint, or one without the data's state.
    """
    from torch.distributed.checkpoint import FileSystemReader, load

    checkpoint = _newest(checkpoint)
    reader = FileSystemReader(checkpoint)
    try:
        found = reader.read_metadata().state_dict_metadata
    except OSError as error:
        raise _refused(checkpoint, error.strerror or str(error)) from None
    names = sorted(name for name in found if name.startswith(PREFIX))
    if not names:
        raise _refused(checkpoint, f"{len(found)} entries, none of them {PREFIX}*")
    state: dict[str, Any] = dict.fromkeys(names, b"")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of reading without other ranks, as is meant
        load(state, storage_reader=reader, no_dist=True)
    return {n.removeprefix(PREFIX): value for n, value in state.items() if n != PREFIX + BEGAN_AT}


def _newest(checkpoint: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Returns the folder of the highest whole step in a folder of such folders; else the folder itself."""
    folder = Path(checkpoint)
    if (folder / METADATA).exists() or not folder.is_dir():
        return checkpoint
    found = [path for path in sorted(folder.glob(f"{STEP}*")) if _is_step(path)]
    if not found:
        return checkpoint
    newest = max(found, key=lambda path: int(path.name[len(STEP) :]))
    _log.info("%s: the newest of %d checkpoints is taken, %s", folder, len(found), newest.name)
    return newest


def _is_step(path: Path) -> bool:
    return path.name[len(STEP) :].isdecimal() and (path / METADATA).exists()


def _refused(checkpoint: str | os.PathLike[str], got: str) -> StateError:
    return StateError.explained(
        f"{os.fspath(checkpoint)!r} holds no state of the data",
        got=got,
        rule="a full checkpoint of a run on this loader does; one of the model alone does not",
        cure="name the folder of a step, such as outputs/checkpoint/step-1000",
    )


def main() -> None:
    """Writes the state file that a recipe can continue."""
    parser = argparse.ArgumentParser(description="Take the data's state out of a checkpoint of TorchTitan.")
    parser.add_argument("checkpoint", help="the folder of a step, such as outputs/checkpoint/step-1000")
    parser.add_argument("--out", required=True, help="the file to write, for `continue_from` of a recipe")
    given = parser.parse_args()
    try:
        checkpoint = _newest(given.checkpoint)
        state = read_state(checkpoint)
        write_state_file(state, given.out)
    except (ZephonError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(STATE)
    lanes = sum(name.startswith("lane_") for name in state)
    said = f'name it in the recipe: continue_from = "{given.out}"'
    sys.stdout.write(f"{lanes} lanes of {checkpoint} in {given.out}; {said}\n")


if __name__ == "__main__":
    main()
