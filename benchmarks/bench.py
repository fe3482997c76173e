"""The measurements behind the promises: `make bench`, or `python benchmarks/bench.py [--quick] [--only ...]`.

A measurement, not a test: it ends with 0 whether targets are met or not, unless something breaks. README.md
says what each line measures. Builds the corpora first where they are missing (`corpora.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from children import Child
from plans import measure_elastic, measure_share
from recipes import is_built
from report import Meter, Section, summary
from rich.console import Console
from runs import measure_memory, measure_restore
from speed import measure_lanes, measure_speed

CORPORA = Path(__file__).resolve().parent / "corpora.py"
LIBRARIES = ("numpy", "pyarrow", "tokenizers", "fastokens")
SECTIONS: Mapping[str, Section] = {
    "speed": measure_speed,
    "lanes": measure_lanes,
    "memory": measure_memory,
    "restore": measure_restore,
    "share": measure_share,
    "elastic": measure_elastic,
}
NEED_NO_CORPORA = {"share"}
WIDTH = 140
"""Of the tables, where standard output is not a terminal."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Returns the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="bench.py",
        description="Measure the loader against its targets. A measurement, not a test: the exit status is 0 "
        "whether targets are met or not, unless something breaks.",
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter turns: under two minutes")
    parser.add_argument(
        "--only",
        metavar="NAMES",
        default="",
        help=f"sections, by commas: {','.join(SECTIONS)} (default: all)",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all numbers there, too")
    options = parser.parse_args(arguments)
    options.only = [name for name in options.only.split(",") if name] or list(SECTIONS)
    if unknown := [name for name in options.only if name not in SECTIONS]:
        parser.error(f"--only: unknown section {unknown[0]!r}; known are {', '.join(SECTIONS)}")
    if options.json is not None and not options.json.absolute().parent.is_dir():
        parser.error(f"--json: {options.json.absolute().parent} is not a folder; make it first")
    return options


def fill_caches(meter: Meter) -> None:
    """Expands every chunk into the spool and reads all files once, so that what follows is warm."""
    meter.begin("prepare", 1)
    meter.tick("open the corpora")
    with Child({"load": "warm"}) as child:
        num_chunks = child.ask("count")["chunks"]
        meter.begin("prepare", num_chunks + 1)
        for chunk in range(num_chunks):
            meter.tick("fill the spool")
            child.ask("chunk", chunk)
        meter.tick("read the files")
        child.ask("files")


def environment() -> dict[str, Any]:
    """Returns what the numbers depend on besides the code."""
    return {
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        **{name: version(name) for name in LIBRARIES},
    }


def main() -> None:
    """Runs the sections asked for, shows each one's tables, then all targets."""
    options = parse(sys.argv[1:])
    console, errors = Console(width=None if sys.stdout.isatty() else WIDTH), Console(stderr=True)
    if not is_built() and set(options.only) - NEED_NO_CORPORA:
        errors.print("building the corpora, once")
        subprocess.run([sys.executable, str(CORPORA)], check=True)
    found = environment()
    console.print(", ".join(f"{name} {value}" for name, value in found.items()), highlight=False)
    results = {}
    with Meter(errors) as meter:
        if set(options.only) - NEED_NO_CORPORA:
            fill_caches(meter)
        for name in options.only:
            results[name] = SECTIONS[name](options.quick, meter)
            for grid in results[name].grids:
                console.print(grid.table())
    console.print(summary(list(results.values())))
    if options.json is not None:
        sections = {name: result.to_json() for name, result in results.items()}
        table = {"quick": options.quick, "environment": found, "sections": sections}
        options.json.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
