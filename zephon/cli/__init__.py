"""The command line `zephon`: init, index, check, hash, ..., demo, and the commands of plugins.

Upstream: the shell. Downstream: one module of this folder for each command. Exit codes are stable: 0 ok,
1 check failed or digests differ, 2 wrong usage, 3 recipe refused, 4 data error, 5 state error, 6 worker
error, 70 unexpected error, 130 Ctrl-C, 141 output closed. Errors go to stderr without a traceback
(ZEPHON_TRACEBACK=1 shows it), and with --json as {"error": {"kind", "message", "exit_code"}} to stdout.
"""

from __future__ import annotations

import io
import logging
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from zephon import plugins
from zephon.cli.common import Command, without_types
from zephon.cli.exits import EXIT_TEXT, MEANING, Exit, error_json, report_error
from zephon.cli.output import write, write_json
from zephon.lock import core_version

INTERRUPT_S = 1.7
"""After Ctrl-C, the time that is left to end in order; then the process ends with its children."""
AGAIN_S = 0.02
"""The time after which an interrupt that was lost in a finalizer is raised once more."""

_log = logging.getLogger("zephon")


class Commands(TyperGroup):
    """The group of all commands, at which every error ends as a message and an exit code."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the parameters, that of `--help` too."""
        return without_types(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        """Returns what the command returns; raises `typer.Exit` with the code of whatever went wrong."""
        as_json = "--json" in ctx.args
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, SystemExit):
            raise
        except BaseException as error:
            if hasattr(error, "format_message"):  # wrong usage: typer draws it
                if not as_json:
                    raise
                write_json(error_json(MEANING[Exit.USAGE], error.format_message(), Exit.USAGE))
                raise typer.Exit(Exit.USAGE) from None
            raise typer.Exit(report_error(error, as_json=as_json)) from None


def _show_version(wanted: bool) -> None:
    if wanted:
        write(f"{plugins.CORE} {core_version()}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Data for language models: the same batches on any number of GPUs, from a recipe.

    RECIPE is a recipe.toml, a run folder that holds one, or module:function.
    """


def build_app() -> typer.Typer:
    """Returns the application with the core's commands, then those of plugins that can be loaded."""
    from zephon.cli.bench import bench
    from zephon.cli.check import check
    from zephon.cli.data import app as data
    from zephon.cli.demo import demo
    from zephon.cli.hash import hash_steps
    from zephon.cli.index import index
    from zephon.cli.init import init
    from zephon.cli.show import show
    from zephon.cli.verify import verify

    app = typer.Typer(
        cls=Commands,
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        epilog=EXIT_TEXT,
    )
    app.callback(epilog=EXIT_TEXT)(_root)
    commands: dict[str, Callable[..., None]] = {
        "init": init, "index": index, "check": check, "hash": hash_steps, "verify": verify, "show": show,
        "bench": bench, "demo": demo,
    }  # fmt: skip
    for name, command in commands.items():
        app.command(name, cls=Command, epilog=EXIT_TEXT)(command)
    app.add_typer(data, name="data", epilog=EXIT_TEXT)
    for name, plugin in plugins.load_all("commands").items():
        _mount(app, name, plugin, taken=name in (*commands, "data"))
    return app


def _mount(app: typer.Typer, name: str, plugin: Any, *, taken: bool) -> None:
    """Adds a plugin's command: a Typer application, or a function with annotations."""
    if taken or not callable(plugin):
        why = "the core has a command of that name" if taken else f"it is a {type(plugin).__name__}"
        _log.warning("plugin command %r is left out: %s", name, why)
        return
    trial = typer.Typer()
    try:
        for target in (trial, app):
            if isinstance(plugin, typer.Typer):
                target.add_typer(plugin, name=name)
            else:
                target.command(name, cls=Command, epilog=EXIT_TEXT)(plugin)
            if target is trial:
                typer.main.get_command(trial)
    except Exception as error:  # whatever a plugin's signature makes typer raise
        _log.warning("plugin command %r is left out: %s: %s", name, type(error).__name__, error)


def main() -> None:
    """Runs the command line of this process and exits."""
    if sys.stdout is None:  # it was closed: there is nobody to write to
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 shows escapes
    try:
        _watch_interrupts()
        build_app()(prog_name="zephon")
    except KeyboardInterrupt as error:  # before there was a command
        sys.exit(report_error(error, as_json="--json" in sys.argv))


def _watch_interrupts() -> None:
    """Makes Ctrl-C end the process in order where that is quick, and at any rate after INTERRUPT_S.

    Python runs signal handlers in the main thread, which may be in a library for seconds; the wake-up
    descriptor is written at once. Of a finalizer, Python swallows what it raises, a Ctrl-C too: then it is
    raised once more, a moment later.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    is_again = threading.Event()

    def again() -> None:
        is_again.set()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def swallowed(lost: Any) -> None:
        if lost.exc_type is KeyboardInterrupt:
            threading.Timer(AGAIN_S, again).start()
        else:
            sys.__unraisablehook__(lost)

    sys.unraisablehook = swallowed
    threading.Thread(
        target=_end_after_interrupt, args=(reader, is_again), name="zephon-interrupt", daemon=True
    ).start()


def _end_after_interrupt(reader: int, is_again: threading.Event) -> None:
    while signal.SIGINT not in os.read(reader, 64):
        pass
    end = time.monotonic() + INTERRUPT_S
    while select.select([reader], [], [], max(0, end - time.monotonic()))[0]:
        os.read(reader, 64)
        if not is_again.is_set():
            break  # a second Ctrl-C ends the wait
        is_again.clear()
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(Exit.INTERRUPTED)
