"""`python -m zephon`: the command line without the installed script."""

from __future__ import annotations

from zephon.cli import main

if __name__ == "__main__":
    main()
