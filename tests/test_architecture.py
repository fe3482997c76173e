"""Holds the code to its layers, its sizes and its determinism, by reading the sources; nothing is imported.

`violations` is the whole law: a pure function of one source. The tests apply it to every module that ships,
and to small bad sources, so that no rule can rot unseen.
"""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAX_MODULE_LINES = 420
MAX_FUNCTION_LINES = 40

CORE_MAY_IMPORT = sys.stdlib_module_names | {
    "zephon",
    "numpy",
    "pyarrow",
    "tokenizers",
    "fsspec",
    "typer",
    "rich",
}
OPTIONAL = {"torch": ("zephon/batch.py",), "fastokens": ("zephon/tokenizer/__init__.py",)}
"""Optional distributions, and the modules whose functions may import them."""
MAY_CATCH_ALL = (
    "zephon/prepare.py",
    "zephon/plugins.py",
    "zephon/cli/__init__.py",
    "zephon/feed.py",
    "zephon/retries.py",
    "plugins/torchtitan/zephon_torchtitan/launch.py",
)
"""Boundaries, where what failed is handed to whom it concerns."""
MAY_READ_CLOCK = ("zephon/spool.py",)
"""Where the time of day is compared with the age of files; it never reaches the data."""
MAY_LIST_UNSORTED = ("zephon/paths.py", "zephon/spool.py")
"""Where what is listed is sorted as a whole later, or only cleaned up."""
MAY_ACT_ON_IMPORT = (
    "zephon/__main__.py",
    "plugins/torchtitan/zephon_torchtitan/cpu.py",
    "plugins/torchtitan/zephon_torchtitan/phase.py",
    "zephon/__init__.py",
)
"""A program's start; the package, which refuses to work beside its namesake."""
PUBLIC_MODULES = ("zephon.testing.", "zephon.cli.common.")
"""What plugins may import besides `zephon`: the kit of conformance, and what their commands are made of."""
KEYED = ("Philox", "Generator")
"""Of numpy.random what draws from a key that is given, outside the core: for samples, not for orders."""
UNORDERED = {"listdir", "scandir", "iterdir", "glob", "iglob", "rglob", "walk"}
CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today", "time.localtime"}


class Source:
    """A parsed module: its path below the root, its text, its tree and the parents of the nodes."""

    def __init__(self, path: str, text: str, public: Sequence[str] = ()) -> None:
        self.path = path
        self.text = text
        self.public = public
        self.tree = ast.parse(text)
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @property
    def is_core(self) -> bool:
        return self.path.startswith("zephon/")

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self.parents:
            node = self.parents[node]
            yield node

    def in_function(self, node: ast.AST) -> bool:
        return any(
            isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) for n in self.above(node)
        )

    def for_types_only(self, node: ast.AST) -> bool:
        return any(isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test) for n in self.above(node))


def imports(source: Source) -> Iterator[tuple[ast.AST, str, str]]:
    """Yields (node, module, name) of every import; name is empty for `import module`."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:  # relative: counted from the module's own folder
                folder = Path(source.path).parts[: -node.level]
                module = ".".join([*folder, module]).rstrip(".")
            yield from ((node, module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            literals = (arg for arg in node.args[:1] if isinstance(arg, ast.Constant))
            yield from ((node, str(arg.value), "") for arg in literals)


def core_imports_inwards(source: Source) -> Iterator[str]:
    if not source.is_core:
        return
    for node, module, _ in imports(source):
        top = module.partition(".")[0]
        if top in CORE_MAY_IMPORT:
            continue
        if top not in OPTIONAL:
            yield f"the core may not import {module}"
        elif source.path not in OPTIONAL[top]:
            yield f"only {', '.join(OPTIONAL[top])} may import {top}"
        elif not (source.in_function(node) or source.for_types_only(node)):
            yield f"{top} is optional: import it in the function that uses it"


def members_use_public_names(source: Source) -> Iterator[str]:
    if source.is_core:
        return
    for _, module, name in imports(source):
        if module == "zephon" and name and name not in (*source.public, "testing"):
            yield f"{name} is not in zephon.__all__"
        elif module.startswith("zephon.") and not f"{module}.{name}.".startswith(PUBLIC_MODULES):
            yield f"{module} is not public"
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Attribute) or ast.unparse(node.value) != "zephon":
            continue
        if node.attr not in (*source.public, "testing"):
            yield f"{node.attr} is not in zephon.__all__"


def sizes_are_kept(source: Source) -> Iterator[str]:
    num_lines = len(source.text.splitlines())
    if num_lines > MAX_MODULE_LINES:
        yield f"the module has {num_lines} lines, more than {MAX_MODULE_LINES}"
    blank = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type not in blank:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = set(range(node.lineno, (node.end_lineno or 0) + 1)) & code
            if ast.get_docstring(node) is not None:
                lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
            if len(lines) > MAX_FUNCTION_LINES:
                yield f"function {node.name} has {len(lines)} lines of code, more than {MAX_FUNCTION_LINES}"


def errors_are_not_swallowed(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ExceptHandler) or source.path in MAY_CATCH_ALL:
            continue
        caught = (
            {"BaseException"} if node.type is None else set(ast.unparse(node.type).strip("()").split(", "))
        )
        last = node.body[-1]
        goes_on = isinstance(last, ast.Raise) and last.exc is None
        if caught & {"Exception", "BaseException"} and not goes_on:
            yield "catching every error is for the worker boundary; name the errors or end with `raise`"


def order_is_a_function(source: Source) -> Iterator[str]:
    for _, module, name in imports(source):
        if module == "random" or (module, name) in (("time", "time"), ("numpy", "random"), ("secrets", "")):
            yield f"{module} {name}".rstrip() + " brings chance or the time of day into the data"
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        last_two = ".".join(called.split(".")[-2:])
        if called == "hash":
            yield "hash() differs between processes; use hashlib or zlib.crc32"
        if last_two in CLOCKS and source.path not in MAY_READ_CLOCK:
            yield f"{called}() is the time of day; use time.monotonic for durations"
        is_keyed = not source.is_core and called.endswith(KEYED)
        if (
            ".random." in f".{called}."
            and called.split(".")[0] in ("np", "numpy", "random", "torch")
            and not is_keyed
        ):
            yield f"{called}() is chance with a state; use the counter-based bits"
        if "." in called and called.split(".")[-1] in UNORDERED and source.path not in MAY_LIST_UNSORTED:
            is_sorted = (
                isinstance(n, ast.Call) and ast.unparse(n.func) == "sorted" for n in source.above(node)
            )
            if not any(is_sorted):
                yield f"{called}() has no order; sort it where it is called"


def importing_has_no_effects(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if source.in_function(node):
            continue
        name = ast.unparse(node) if isinstance(node, ast.Attribute | ast.Name) else ""
        if name in ("os.environ", "os.getenv", "environ", "getenv"):
            yield "environment variables are read when asked for, not at import"
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and source.path not in MAY_ACT_ON_IMPORT
        ):
            yield f"`{ast.unparse(node)[:60]}` acts at import"


def form_is_kept(source: Source) -> Iterator[str]:
    if not source.text.isascii():
        yield "the sources are ASCII"
    if not ast.get_docstring(source.tree):
        yield "a module begins with a docstring"
    if len(source.tree.body) > 1 and "from __future__ import annotations" not in source.text:
        yield "a module imports annotations from __future__"


RULES: tuple[Callable[[Source], Iterator[str]], ...] = (
    core_imports_inwards,
    members_use_public_names,
    sizes_are_kept,
    errors_are_not_swallowed,
    order_is_a_function,
    importing_has_no_effects,
    form_is_kept,
)


def violations(source: Source) -> list[str]:
    return [message for rule in RULES for message in rule(source)]


def exported(text: str) -> tuple[str, ...]:
    """Returns the literal `__all__` of a source."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return tuple(ast.literal_eval(node.value))
    raise AssertionError("zephon/__init__.py must assign a literal to __all__")


def shipped() -> list[str]:
    """Returns the modules that users install or copy."""
    members = [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("plugins/*/zephon_*"))]
    copied = ["plugins/example", "plugins/torchtitan/example"]
    folders = ["zephon", "curriculum/zephon_curriculum", *members, *copied]
    found = {path for folder in folders for path in (ROOT / folder).rglob("*.py")}
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


@pytest.mark.parametrize("path", shipped())
def test_every_module_keeps_the_law(path: str) -> None:
    public = exported((ROOT / "zephon/__init__.py").read_text())
    assert violations(Source(path, (ROOT / path).read_text(encoding="utf-8"), public)) == []


HEAD = '"""Says what it is."""\n\nfrom __future__ import annotations\n\n'
LONG = "def f() -> None:\n" + "    x = 1\n" * 40
CLEAN = {
    "zephon/order.py": "import numpy as np\nfrom zephon.bits import mix\nfrom . import bits\n",
    "zephon/batch.py": "def f() -> None:\n    import torch\n",
    "zephon/paths.py": "import os\ndef f() -> None:\n    x = sorted(n for n in os.listdir('.') if n)\n",
    "zephon/spool.py": "import time\ndef f() -> float:\n    return time.time()\n",
    "zephon/lock.py": "def f() -> None:\n    try:\n        pass\n    except BaseException:\n        raise\n",
    "zephon/size.py": 'def f() -> None:\n    """One.\n\n    Two.\n    """\n\n    # why\n'
    + "    x = 1\n" * 39,
    "plugins/x/zephon_x/a.py": "import dask\nfrom zephon import Recipe\nfrom zephon.testing import check\n",
}


@pytest.mark.parametrize("path", CLEAN)
def test_the_law_lets_good_sources_pass(path: str) -> None:
    assert violations(Source(path, HEAD + CLEAN[path], ["Recipe"])) == []


BAD = [
    ("zephon/order.py", "import pandas\n", "may not import pandas"),
    ("zephon/order.py", "from zephon_curriculum import Plan\n", "may not import zephon_curriculum"),
    (
        "zephon/order.py",
        "def f() -> None:\n    import zephon_example.alternate\n",
        "may not import zephon_example",
    ),
    ("zephon/order.py", "import importlib\nx = importlib.import_module('scipy')\n", "may not import scipy"),
    ("zephon/order.py", "def f() -> None:\n    import torch\n", "only zephon/batch.py"),
    ("zephon/batch.py", "import torch\n", "torch is optional"),
    ("zephon/packing.py", "import fastokens\n", "only zephon/tokenizer/__init__.py"),
    ("plugins/x/zephon_x/a.py", "from zephon.mixture import Ledger\n", "zephon.mixture is not public"),
    ("plugins/x/zephon_x/a.py", "from zephon import Ledger\n", "Ledger is not in zephon.__all__"),
    (
        "curriculum/zephon_curriculum/a.py",
        "import zephon as z\nimport zephon.order\n",
        "zephon.order is not public",
    ),
    (
        "curriculum/zephon_curriculum/a.py",
        "import zephon\nx = zephon.order\n",
        "order is not in zephon.__all__",
    ),
    ("zephon/order.py", "x = 1\n" * 417, "the module has 421 lines"),
    ("zephon/order.py", LONG, "function f has 41 lines"),
    (
        "zephon/order.py",
        "class A:\n" + LONG.replace("def", " def").replace("    x", "     x"),
        "function f has 41",
    ),
    ("zephon/order.py", "try:\n    x = 1\nexcept Exception:\n    x = 2\n", "catching every error"),
    (
        "zephon/order.py",
        "try:\n    x = 1\nexcept (OSError, Exception) as e:\n    raise e\n",
        "catching every error",
    ),
    ("zephon/order.py", "try:\n    x = 1\nexcept:\n    pass\n", "catching every error"),
    ("zephon/order.py", "x = hash('a')\n", "hash() differs"),
    ("zephon/order.py", "import time\ndef f() -> float:\n    return time.time()\n", "time of day"),
    ("zephon/order.py", "from datetime import datetime\nx = datetime.now()\n", "time of day"),
    ("zephon/order.py", "from time import time\n", "time of day"),
    ("zephon/order.py", "import random\n", "chance"),
    ("zephon/order.py", "import numpy as np\nx = np.random.default_rng(0)\n", "chance"),
    ("zephon/order.py", "import os\nfor n in os.listdir('.'):\n    x = n\n", "os.listdir() has no order"),
    ("zephon/order.py", "x = list(path.rglob('*'))\n", "path.rglob() has no order"),
    ("zephon/order.py", "import os\nx = os.environ['HOME']\n", "environment variables"),
    ("zephon/order.py", "class A:\n    x = os.getenv('HOME')\n", "environment variables"),
    ("zephon/order.py", "import logging\nlogging.basicConfig()\n", "acts at import"),
    ("zephon/order.py", "x = '\u00e9'\n", "ASCII"),
]


@pytest.mark.parametrize(("path", "text", "message"), BAD)
def test_the_law_catches_bad_sources(path: str, text: str, message: str) -> None:
    found = violations(Source(path, HEAD + text))
    assert len(found) == 1, found
    assert message in found[0]


def test_the_law_asks_for_a_docstring_and_annotations() -> None:
    assert len(violations(Source("zephon/order.py", "x = 1\ny = 2\n"))) == 2


def test_importing_zephon_loads_neither_torch_nor_a_plugin() -> None:
    program = "import json, sys, zephon; print(json.dumps(sorted(sys.modules)))"
    path = os.pathsep.join(str(ROOT / folder) for folder in (".", "curriculum", "plugins/example"))
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    tops = {module.partition(".")[0] for module in json.loads(run.stdout)}
    assert "zephon" in tops
    assert not {top for top in tops if top.startswith("zephon_") or top in OPTIONAL}
