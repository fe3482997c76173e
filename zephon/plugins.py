"""Plugins: what installed distributions register by entry points, role by role; the core's parts do the same.

Upstream: the metadata of the distributions. Downstream: whoever builds an object from a `kind` of a recipe,
the lock, the command line. Listing imports nothing, and a plugin that cannot be loaded stops only those who
ask for it by name.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import sys
import traceback
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Any

from zephon.errors import PluginError

API_VERSION = 1
"""The version of the interface between core and plugins; a plugin may state its own as `zephon_api`."""
CORE = "zephon-core"
ROLES = (
    "commands",
    "datasets",
    "operators",
    "packers",
    "tokenizers",
    "work_sources",
    "schedules",
    "templates",
    "controllers",
    "updates",
    "states",
    "executors",
)

_GROUPS = {f"zephon.{role}": role for role in ROLES}
_log = logging.getLogger("zephon")


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginInfo:
    """One registered plugin."""

    role: str
    name: str
    distribution: str
    version: str
    target: str
    """`module:attribute`, as registered."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The outcome of one attempt to load: a value, or an error and its traceback."""

    value: Any = None
    error: str = ""
    traceback: str = ""


def find(role: str, name: str) -> Any:
    """Returns the object registered as `name` for `role`, loaded at the first call of the process.

    `name` may be `distribution:name`, and must be where two distributions give the same name. Raises
    LookupError when no plugin or more than one fits, PluginError when the one that fits cannot be loaded.
    """
    info = _select(role, name)
    outcome = _load(info)
    if outcome.error:
        error = PluginError.explained(
            f"plugin {name!r} ({role}) of {info.distribution} {info.version} cannot be used",
            got=outcome.error,
            rule=f"{info.target!r} must import, and be made for version {API_VERSION} of the interface",
            cure=f"repair or reinstall {info.distribution}, or take another kind",
        )
        if outcome.traceback:
            error.add_note(outcome.traceback)
        raise error
    return outcome.value


def installed(role: str | None = None) -> list[PluginInfo]:
    """Returns the plugins of `role`, or of all roles, by role, the core's first, then distribution and name.

    What `ZEPHON_PLUGINS` leaves out is not listed. Imports nothing.
    """
    return [info for info in _registered(role) if _is_allowed(info)]


def load_all(role: str) -> dict[str, Any]:
    """Returns the plugins of `role` that can be loaded, by name, or by `distribution:name` if a name recurs.

    In the order of `installed`. One that cannot be loaded is left out, and logged as a warning once.
    """
    infos = installed(role)
    names = [info.name for info in infos]
    found = {}
    for info in infos:
        outcome = _load(info)
        if outcome.error:
            _warn_once(info, outcome.error)
        else:
            recurs = names.count(info.name) > 1
            found[f"{info.distribution}:{info.name}" if recurs else info.name] = outcome.value
    return found


def lock_entry(role: str, name: str) -> dict[str, str]:
    """Returns what a lock records of the plugin `name`: its distribution, version and target.

    Imports nothing. Empty for the core's own parts, for which the core's version stands.
    """
    info = _select(role, name)
    if _is_core(info):
        return {}
    return {"distribution": info.distribution, "version": info.version, "target": info.target}


def _select(role: str, name: str) -> PluginInfo:
    """Returns the one allowed plugin that `name` fits; looks at the disk again before it says no."""
    fitting = _fitting(role, name)
    if not fitting:
        _scan.cache_clear()
        fitting = _fitting(role, name)
    allowed = [info for info in fitting if _is_allowed(info)]
    if len(allowed) == 1:
        return allowed[0]
    if allowed:
        choices = " or ".join(repr(f"{info.distribution}:{info.name}") for info in allowed)
        raise LookupError(f"{role} {name!r} is given by {len(allowed)} distributions; write {choices}")
    if fitting:
        who = fitting[0].distribution
        setting = os.environ.get("ZEPHON_PLUGINS", "")
        raise LookupError(
            f"{role} {name!r} of {who} is left out by ZEPHON_PLUGINS={setting!r}; unset it or add {who} to it"
        )
    raise LookupError(_unknown(role, name))


def _fitting(role: str, name: str) -> list[PluginInfo]:
    distribution, _, plain = name.rpartition(":")
    return [
        info
        for info in _registered(role)
        if info.name == plain and (not distribution or _normal(info.distribution) == _normal(distribution))
    ]


def _unknown(role: str, name: str) -> str:
    """Returns the message for a name that no plugin of `role` has."""
    infos = installed(role)
    near = difflib.get_close_matches(name, [info.name for info in infos], n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    known = ", ".join(f"{info.name} ({info.distribution})" for info in infos) or "none"
    has_core = any(_is_core(info) for info in _registered(None))
    cure = "" if has_core else f"; {CORE} is not installed here: run `pip install -e .` in its folder"
    return f"no {role} named {name!r}; {hint}known: {known}{cure}"


@cache
def _warn_once(info: PluginInfo, error: str) -> None:
    _log.warning(
        "plugin %r (%s) of %s %s cannot be used: %s",
        info.name, info.role, info.distribution, info.version, error,
    )  # fmt: skip


@cache
def _load(info: PluginInfo) -> _Loaded:
    """Returns the outcome of importing the target of `info`; whatever the plugin raises ends here."""
    group = f"zephon.{info.role}"
    try:
        value = metadata.EntryPoint(name=info.name, value=info.target, group=group).load()
        api = _stated_api(value, info.target)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit and the panics of extension modules are not Exceptions
        return _Loaded(error=_in_a_line(error), traceback=traceback.format_exc())
    if type(api) is not int or api != API_VERSION:
        return _Loaded(
            error=f"it is made for version {api!r} of the plugin interface, and this {CORE} has {API_VERSION}"
        )
    return _Loaded(value=value)


def _stated_api(value: Any, target: str) -> Any:
    """Returns the `zephon_api` of the object, of the class it is bound to, or of its module; else ours."""
    module = sys.modules.get(target.partition(":")[0])
    for holder in (value, getattr(value, "__self__", None), module):
        api = getattr(holder, "zephon_api", None)
        if api is not None:
            return api
    return API_VERSION


def _in_a_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _registered(role: str | None) -> list[PluginInfo]:
    if role is not None and role not in ROLES:
        raise ValueError(f"`role` must be one of {', '.join(ROLES)}, got {role!r}")
    return [info for info in _scan(tuple(sys.path)) if role is None or info.role == role]


@cache
def _scan(path: tuple[str, ...]) -> tuple[PluginInfo, ...]:
    """Returns everything that the distributions on `path` register, sorted; 1 to 20 ms."""
    found: dict[str, list[PluginInfo]] = {}
    for distribution in metadata.distributions(path=list(path)):
        infos = _entries_of(distribution)
        if infos:  # as for imports, the first of one name on the path counts
            found.setdefault(_normal(infos[0].distribution), infos)
    flat = [info for infos in found.values() for info in infos]
    return tuple(
        sorted(flat, key=lambda i: (ROLES.index(i.role), not _is_core(i), _normal(i.distribution), i.name))
    )


def _entries_of(distribution: metadata.Distribution) -> list[PluginInfo]:
    """Returns what one distribution registers for roles that we know."""
    try:
        points = [p for p in distribution.entry_points if p.group in _GROUPS]
        return [
            PluginInfo(
                role=_GROUPS[point.group],
                name=point.name,
                distribution=distribution.name,
                version=distribution.version or "unknown",
                target=point.value,
            )
            for point in points
            if distribution.name
        ]
    except Exception as error:  # metadata left by a cut installation, often of a stranger
        _log.debug("the metadata of %s cannot be read: %s", distribution, _in_a_line(error))
        return []


def _is_allowed(info: PluginInfo) -> bool:
    """Returns whether `ZEPHON_PLUGINS` lets `info` in: unset, all; `none`, the core; else what it lists."""
    setting = os.environ.get("ZEPHON_PLUGINS", "").strip()
    return not setting or _is_core(info) or _normal(info.distribution) in map(_normal, setting.split(","))


def _is_core(info: PluginInfo) -> bool:
    return _normal(info.distribution) == CORE


def _normal(distribution: str) -> str:
    """Returns the name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", distribution.strip()).lower()
