"""`python -m zephon.demo`: the demo without the command line of the package."""

from __future__ import annotations

import argparse
from pathlib import Path

from zephon.demo import run_demo


def main() -> int:
    """Runs the demo with the arguments of the command line, and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m zephon.demo", description="Same batches on any number of ranks."
    )
    parser.add_argument("--folder", type=Path, default=Path("zephon-demo"), help="where data and runs go")
    parser.add_argument("--quick", action="store_true", help="less data and fewer steps")
    given = parser.parse_args()
    try:
        return run_demo(given.folder, quick=given.quick)
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
