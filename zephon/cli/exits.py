"""How a command ends: the exit codes, and the report of what went wrong.

Upstream: the errors of all commands. Downstream: scripts, which may rely on the codes. Errors go to standard
error or, with --json, to standard output.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from zephon.cli.output import visible_lines, write_json
from zephon.errors import CheckError, DataError, PluginError, StateError, WorkerError


class Exit(IntEnum):
    """The exit codes; scripts may rely on them."""

    OK = 0
    DIFFERENT = 1
    USAGE = 2
    RECIPE = 3
    DATA = 4
    STATE = 5
    WORKER = 6
    UNEXPECTED = 70
    INTERRUPTED = 130
    PIPE_CLOSED = 141


EXIT_TEXT = (
    "Exit codes: 0 ok; 1 check failed or digests differ; 2 wrong usage; 3 recipe refused; 4 data error; "
    "5 state error; 6 worker error; 70 unexpected error; 130 interrupted."
)
MEANING = {
    Exit.USAGE: "usage",
    Exit.RECIPE: "recipe",
    Exit.DATA: "data",
    Exit.STATE: "state",
    Exit.WORKER: "worker",
    Exit.UNEXPECTED: "unexpected",
    Exit.INTERRUPTED: "interrupted",
}
BY_CLASS: Sequence[tuple[type[BaseException] | tuple[type[BaseException], ...], Exit]] = (
    (StateError, Exit.STATE),
    (WorkerError, Exit.WORKER),
    ((DataError, OSError), Exit.DATA),
    ((CheckError, PluginError, ValueError, TypeError, LookupError), Exit.RECIPE),
)


def exit_code(error: BaseException) -> Exit:
    """Returns the exit code of an error: of one that a library made of a Ctrl-C that of the Ctrl-C."""
    origin: BaseException | None = error
    while origin is not None:
        if isinstance(origin, KeyboardInterrupt):
            return Exit.INTERRUPTED
        origin = origin.__cause__ or origin.__context__
    return next((code for classes, code in BY_CLASS if isinstance(error, classes)), Exit.UNEXPECTED)


def report_error(error: BaseException, *, as_json: bool) -> Exit:
    """Writes an error with its exit code and returns the code; says nothing where output was closed."""
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.PIPE_CLOSED
    code = exit_code(error)
    message = "interrupted" if code is Exit.INTERRUPTED else str(error)
    if code is Exit.UNEXPECTED or isinstance(error, KeyError) or not message:
        message = f"{type(error).__name__}: {message}"
    if os.environ.get("ZEPHON_TRACEBACK") == "1":
        sys.stderr.write("".join(traceback.format_exception(error)))
    is_said = False
    if as_json:
        with contextlib.suppress(OSError):  # a full disk, say: then to standard error
            write_json(error_json(MEANING[code], message, code))
            is_said = True
    if not is_said:
        hint = "" if code is Exit.INTERRUPTED else "; ZEPHON_TRACEBACK=1 shows where it was raised"
        sys.stderr.write(f"{visible_lines(message)}\n  exit: {int(code)}, {MEANING[code]} error{hint}\n")
    return code


def error_json(kind: str, message: str, code: int) -> Mapping[str, Any]:
    """Returns an error as JSON data."""
    return {"error": {"kind": kind, "message": message, "exit_code": int(code)}}
