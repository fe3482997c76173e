"""Tests of the plugin registry, with distributions that are made on disk: real metadata, real imports."""

from __future__ import annotations

import logging
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from zephon import plugins
from zephon.errors import PluginError
from zephon.plugins import CORE, ROLES, find, installed, load_all, lock_entry

ROOT = Path(__file__).resolve().parent.parent
BROKEN = {
    "no_module": ("", "bad_no_module.gone:Thing", "ModuleNotFoundError"),
    "no_attribute": ("", "bad_no_attribute:Thing", "AttributeError"),
    "import_error": ("import surely_not_there\n", "bad_import_error:Thing", "surely_not_there"),
    "syntax": ("def :\n", "bad_syntax:Thing", "SyntaxError"),
    "exit": ("raise SystemExit(3)\n", "bad_exit:Thing", "SystemExit: 3"),
    "panic": (
        "class Panic(BaseException): pass\nraise Panic('core dumped')\n",
        "bad_panic:Thing",
        "core dumped",
    ),
    "not_a_target": ("", "bad not a target", "AttributeError"),
    "api_0": ("class Thing:\n    zephon_api = 0\n", "bad_api_0:Thing", "version 0 of the plugin interface"),
    "api_99": ("zephon_api = 99\nThing = 1\n", "bad_api_99:Thing", "version 99 of the plugin interface"),
    "api_text": ("class Thing:\n    zephon_api = 'abc'\n", "bad_api_text:Thing", "version 'abc' of"),
    "api_true": ("class Thing:\n    zephon_api = True\n", "bad_api_true:Thing", "version True of"),
}


class Site:
    """A folder on `sys.path` in which distributions are laid down as an installer would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, distribution: str, entries: str, **modules: str) -> None:
        info = self.folder / f"{distribution.replace('-', '_')}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(entries)
        for name, text in modules.items():
            (self.folder / f"{name}.py").write_text(text)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """An otherwise empty world: the core registers `plain`, and nothing else is installed."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *(p for p in sys.path if "site-packages" not in p)])
    monkeypatch.delenv("ZEPHON_PLUGINS")
    made = Site(tmp_path)
    made.add(CORE, "[zephon.schedules]\nplain = zephon.plugins:PluginInfo\n")
    return made


def kind(name: str, target: str, role: str = "schedules") -> str:
    return f"[zephon.{role}]\n{name} = {target}\n"


def test_a_plugin_is_found_by_name(site: Site) -> None:
    site.add("tide", kind("tides", "tide_a:Tide.make"), tide_a="class Tide:\n    make = 'made'\n")
    assert find("schedules", "tides") == "made"
    assert find("schedules", "tide:tides") == "made"
    assert find("schedules", "TIDE:tides") == "made"


def test_a_plugin_is_imported_only_when_it_is_asked_for(site: Site) -> None:
    site.add("tide", kind("tides", "tide_b:Tide"), tide_b="class Tide: pass\n")
    assert [info.name for info in installed("schedules")] == ["plain", "tides"]
    assert "tide_b" not in sys.modules
    assert find("schedules", "tides") is sys.modules["tide_b"].Tide


def test_a_failure_is_not_tried_twice(site: Site) -> None:
    body = "import pathlib\np = pathlib.Path(__file__).with_name('count')\n"
    body += "p.write_text((p.read_text() if p.exists() else '') + 'x')\nraise OSError('no licence')\n"
    site.add("tide", kind("tides", "tide_c:Tide"), tide_c=body)
    for _ in range(3):
        with pytest.raises(PluginError, match="no licence"):
            find("schedules", "tides")
    assert (site.folder / "count").read_text() == "x"


def test_the_core_comes_first_then_distributions_by_name(site: Site) -> None:
    site.add("web", kind("b", "x:y") + "a = x:y\n" + kind("z", "x:y", "datasets"))
    site.add("art", kind("c", "x:y"))
    assert [(i.role, i.distribution, i.name) for i in installed()] == [
        ("datasets", "web", "z"),
        ("schedules", CORE, "plain"),
        ("schedules", "art", "c"),
        ("schedules", "web", "a"),
        ("schedules", "web", "b"),
    ]
    assert [info.name for info in installed("datasets")] == ["z"]


def test_listing_says_what_is_known_without_loading(site: Site) -> None:
    site.add("tide", kind("tides", "nowhere:Tide"))
    info = installed("schedules")[1]
    assert (info.name, info.distribution, info.version, info.target) == (
        "tides",
        "tide",
        "1.2",
        "nowhere:Tide",
    )


def test_an_unknown_name_lists_the_known_and_the_nearest(site: Site) -> None:
    site.add("tide", kind("tides", "tide_d:Tide"))
    with pytest.raises(LookupError) as caught:
        find("schedules", "tide")
    assert str(caught.value) == (
        "no schedules named 'tide'; did you mean 'tides'? known: plain (zephon-core), tides (tide)"
    )


def test_an_unknown_distribution_finds_nothing(site: Site) -> None:
    with pytest.raises(LookupError, match="no schedules named 'tide:plain'"):
        find("schedules", "tide:plain")


def test_an_unknown_role_is_refused(site: Site) -> None:
    with pytest.raises(ValueError, match=r"`role` must be one of commands, .*, got 'schedule'"):
        find("schedule", "plain")


def test_without_the_core_s_metadata_the_cure_is_named(site: Site) -> None:
    for path in site.folder.glob("zephon_core*/*"):
        path.unlink()
    with pytest.raises(LookupError) as caught:
        find("schedules", "plain")
    assert "known: none; zephon-core is not installed here: run `pip install -e .`" in str(caught.value)


def test_a_plugin_installed_later_is_found(site: Site) -> None:
    assert len(installed()) == 1
    site.add("tide", kind("tides", "tide_e:Tide"), tide_e="Tide = 1\n")
    assert find("schedules", "tides") == 1


def test_one_name_of_two_distributions_must_be_told_apart(site: Site) -> None:
    site.add("tide", kind("plain", "tide_f:Tide"), tide_f="Tide = 1\n")
    with pytest.raises(LookupError) as caught:
        find("schedules", "plain")
    assert str(caught.value) == (
        "schedules 'plain' is given by 2 distributions; write 'zephon-core:plain' or 'tide:plain'"
    )
    assert find("schedules", "tide:plain") == 1
    assert find("schedules", "zephon-core:plain") is plugins.PluginInfo


def test_the_first_of_two_copies_of_a_distribution_counts(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    shadowed = Site(site.folder / "later")
    shadowed.folder.mkdir()
    site.add("my-tide", kind("tides", "tide_g:Tide"), tide_g="Tide = 'first'\n")
    shadowed.add("My.Tide", kind("tides", "tide_h:Tide"), tide_h="Tide = 'second'\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(shadowed.folder)])
    assert find("schedules", "tides") == "first"


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_is_an_error_only_when_asked_for(
    site: Site, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    body, target, message = BROKEN[name]
    site.add(f"broken-{name}", kind(name, target), **{f"bad_{name}": body})
    with caplog.at_level(logging.WARNING, logger="zephon"):
        assert [list(load_all("schedules")) for _ in range(2)] == [["plain"]] * 2
    assert len(caplog.messages) == 1
    assert f"broken-{name} 1.2" in caplog.messages[0]
    assert message in caplog.messages[0]
    assert "\n" not in caplog.messages[0]
    assert find("schedules", "plain") is plugins.PluginInfo
    with pytest.raises(PluginError, match=f"plugin '{name}'") as caught:
        find("schedules", name)
    assert message in str(caught.value)


def test_the_traceback_comes_with_the_error(site: Site) -> None:
    site.add(
        "tide", kind("tides", "tide_i:Tide"), tide_i="def deep():\n    raise OSError('no licence')\ndeep()\n"
    )
    with pytest.raises(PluginError) as caught:
        find("schedules", "tides")
    assert "in deep" in caught.value.__notes__[0]


def test_an_interrupt_goes_through(site: Site) -> None:
    site.add("tide", kind("tides", "tide_j:Tide"), tide_j="raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        find("schedules", "tides")


@pytest.mark.parametrize("where", ["object", "class", "module", "nowhere"])
def test_the_interface_version_may_stand_on_object_class_or_module(site: Site, where: str) -> None:
    inner = "    zephon_api = 1\n" if where == "class" else ""
    body = f"class Tide:\n{inner}    @classmethod\n    def make(cls): pass\n"
    body += {"module": "zephon_api = 1\n", "object": "Tide.make.__func__.zephon_api = 1\n"}.get(where, "")
    site.add("tide", kind("tides", f"tide_{where}:Tide.make"), **{f"tide_{where}": body})
    assert callable(find("schedules", "tides"))


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ("", ["plain", "a", "b"]),
        ("none", ["plain"]),
        ("art", ["plain", "a"]),
        ("Art, web_er", ["plain", "a", "b"]),
        ("nobody", ["plain"]),
    ],
)
def test_the_environment_chooses_who_is_let_in(
    site: Site, monkeypatch: pytest.MonkeyPatch, setting: str, names: list[str]
) -> None:
    site.add("art", kind("a", "x:y"))
    site.add("web.er", kind("b", "x:y"))
    assert len(installed()) == 3
    monkeypatch.setenv("ZEPHON_PLUGINS", setting)
    assert [info.name for info in installed()] == names


def test_a_plugin_left_out_is_named_with_the_cure(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add("art", kind("a", "x:y"))
    monkeypatch.setenv("ZEPHON_PLUGINS", "none")
    with pytest.raises(LookupError) as caught:
        find("schedules", "a")
    assert str(caught.value) == (
        "schedules 'a' of art is left out by ZEPHON_PLUGINS='none'; unset it or add art to it"
    )


def test_load_all_tells_recurring_names_apart(site: Site) -> None:
    site.add("tide", kind("plain", "tide_k:Tide"), tide_k="Tide = 1\n")
    assert load_all("schedules") == {"zephon-core:plain": plugins.PluginInfo, "tide:plain": 1}


def test_the_lock_holds_what_a_plugin_is_and_nothing_for_the_core(site: Site) -> None:
    site.add("tide", kind("tides", "nowhere:Tide"))
    assert lock_entry("schedules", "tides") == {
        "distribution": "tide",
        "version": "1.2",
        "target": "nowhere:Tide",
    }
    assert lock_entry("schedules", "plain") == {}


def test_metadata_that_cannot_be_read_stops_nobody(site: Site) -> None:
    site.add("cut", "[zephon.schedules]\nno equals sign\n")
    (site.folder / "left-1.0.dist-info").mkdir()
    (site.folder / "left-1.0.dist-info" / "entry_points.txt").write_text(kind("tides", "x:y"))
    assert find("schedules", "plain") is plugins.PluginInfo
    assert "plain" in [info.name for info in installed()]


def declared() -> dict[tuple[str, str], str]:
    """Returns (role, name) -> target of the core's own `pyproject.toml`."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    return {
        (group.removeprefix("zephon."), name): target
        for group, entries in groups.items()
        for name, target in entries.items()
    }


@pytest.mark.parametrize(("role", "name"), declared())
def test_each_part_of_the_core_is_registered_and_loads(role: str, name: str) -> None:
    assert role in ROLES
    assert callable(metadata.EntryPoint(name, declared()[role, name], f"zephon.{role}").load())


def test_the_core_is_installed_as_it_declares() -> None:
    """Fails where `pip install -e .` must be run again, since an editable install keeps old entry points."""
    assert {(i.role, i.name): i.target for i in installed() if i.distribution == CORE} == declared()


def test_a_broken_plugin_leaves_a_fresh_interpreter_alone(tmp_path: Path) -> None:
    Site(tmp_path).add("tide", kind("tides", "tide_l:Tide", "commands"), tide_l="raise SystemExit('bye')\n")
    program = "from zephon.plugins import load_all; print(list(load_all('commands')))"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "ZEPHON_PLUGINS": "tide"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "[]\n")
    assert run.stderr == "plugin 'tides' (commands) of tide 1.2 cannot be used: SystemExit: bye\n"
