"""What results say of themselves: short in a REPL, whole in print and notebooks, no name taken for markup."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pytest

from tests.helpers import make_recipe, open_small, sized
from zephon import PARTS, ScheduleTable, Stages
from zephon_curriculum.chance import generator
from zephon_curriculum.estimation.measure import TokenEstimation
from zephon_curriculum.laws.designs import sobol_design
from zephon_curriculum.laws.fit import fit_law
from zephon_curriculum.laws.optimum import find_optimum
from zephon_curriculum.laws.swarm import Swarm
from zephon_curriculum.plan.exact_ends import exact_ends
from zephon_curriculum.plan.make import plan
from zephon_curriculum.preview_estimated import preview_estimated
from zephon_curriculum.quantity import Quantity
from zephon_curriculum.results import BRIEF_ROWS, Readable

HOSTILE = "<b onclick='x'>&amp;[red]\u202e"
NAMES = (HOSTILE, *(f"d{i:02}" for i in range(12)))


class Tags(HTMLParser):
    """Collects the tags that a browser would see."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, len([name for name, _ in attrs if name != "scope"])))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Readable]:
    """Returns one of every result, of 13 datasets of which one has a hostile name."""
    random = generator("test_results")
    ratios = random.dirichlet(np.ones(13), 40)
    losses = np.column_stack([1.5 + ratios @ np.arange(13) + random.normal(0, 0.01, 40)] * 2)
    swarm = Swarm(
        names=NAMES,
        runs=tuple(f"{i}" for i in range(40)),
        ratios=ratios,
        targets=(HOSTILE, "val"),
        losses=losses,
    )
    fit = fit_law(swarm, "quadratic")
    documents = {name: sized(9, (5, 30)) for name in NAMES}
    recipe = make_recipe(documents, Stages({0: dict.fromkeys(NAMES, 1)}), total_steps=9)
    opened = open_small(recipe)
    estimates = TokenEstimation(cache=tmp_path_factory.mktemp("cache")).measure(opened)
    planned = plan(opened, estimates=estimates)
    return {
        "swarm": swarm,
        "fit": fit,
        "optimum": find_optimum(fit, num_bootstrap=2),
        "design": sobol_design(NAMES, 20),
        "estimates": estimates,
        "plan": planned,
        "effect": planned.compare(plan(opened, 5, estimates)),
        "exact": exact_ends(opened, max_steps=2),
        "estimated": preview_estimated(recipe),
    }


ALL = ("swarm", "fit", "optimum", "design", "estimates", "plan", "effect", "exact", "estimated")


@pytest.mark.parametrize("name", ALL)
def test_a_repr_is_short_and_moves_no_terminal(results: dict[str, Readable], name: str) -> None:
    text = repr(results[name])
    assert 1 <= len(text.splitlines()) <= 10
    assert max(map(len, text.splitlines())) <= 160
    assert "\u202e" not in text + str(results[name])


@pytest.mark.parametrize("name", ALL)
def test_names_are_escaped_in_notebooks(results: dict[str, Readable], name: str) -> None:
    html = results[name]._repr_html_()
    tags = Tags()
    tags.feed(html)
    assert {tag for tag, _ in tags.seen} <= {
        "p",
        "br",
        "table",
        "caption",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    }
    assert not any(count for _, count in tags.seen)
    assert name == "exact" or "&lt;b onclick=" in html
    assert html == results[name]._repr_html_()


def test_print_says_all_and_a_repr_how_much_more_there_is(results: dict[str, Readable]) -> None:
    for name in ("plan", "estimates", "optimum", "design", "swarm", "effect", "estimated"):
        whole, brief = str(results[name]), repr(results[name])
        assert all(other in whole for other in NAMES[1:])
        assert f"... and {len(NAMES) - BRIEF_ROWS + 1} more" in brief
        kind, head = brief.splitlines()[0].split(": ", 1)
        assert (kind, head) == (type(results[name]).__name__, whole.splitlines()[0])


def test_a_quantity_shows_its_interval() -> None:
    assert repr(Quantity(value=2.5, low=2, high=3.25)) == "Quantity(2.5, 2 to 3.25)"
    assert repr(Quantity(value=7, reason="nobody counted")) == "Quantity(7)"


def test_a_bare_table_is_previewed_by_the_tokens_of_a_step() -> None:
    table = ScheduleTable(("web", "code"), (0, 5), ((PARTS, 0), (PARTS // 2, PARTS // 2)))
    shown = preview_estimated(table, 10, tokens_per_step=100)
    assert shown.total_tokens.tolist() == [750, 250]
    assert shown.shares[[4, 5]].tolist() == [[1, 0], [0.5, 0.5]]
    with pytest.raises(
        ValueError, match="`tokens_per_step` must be >= 1 and given with a bare table, got None"
    ):
        preview_estimated(table, 10)
    with pytest.raises(ValueError, match="`steps` must be given where no recipe has"):
        preview_estimated(table, tokens_per_step=100)
