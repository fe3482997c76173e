"""What results say of themselves: short in a REPL, whole in print and notebooks, no name taken for markup."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from tests.helpers import make_recipe, open_small, sized
from zephon import PARTS, Constant, Opened, ScheduleTable, Stages
from zephon_curriculum import (
    Bounds,
    ControllerContext,
    CrossFade,
    Exp3,
    Learner,
    PowerLaw,
    Ramp,
    Then,
    simulate,
)
from zephon_curriculum.chance import generator
from zephon_curriculum.compare import compare
from zephon_curriculum.controllers.protocol import Advice
from zephon_curriculum.estimation.measure import TokenEstimation
from zephon_curriculum.explain import explain
from zephon_curriculum.laws.designs import sobol_design
from zephon_curriculum.laws.fit import fit_law
from zephon_curriculum.laws.optimum import find_optimum
from zephon_curriculum.laws.swarm import Swarm
from zephon_curriculum.plan.exact_ends import exact_ends
from zephon_curriculum.plan.make import plan
from zephon_curriculum.preview import preview
from zephon_curriculum.preview_estimated import preview_estimated
from zephon_curriculum.quantity import Quantity
from zephon_curriculum.results import BRIEF_ROWS, Readable
from zephon_curriculum.templates import Template, templates

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
    } | looks(opened)


def looks(opened: Opened) -> dict[str, Readable]:
    """Returns results about rows and about what is decided, and schedules."""
    flat, steep = dict.fromkeys(NAMES, 1), {name: i for i, name in enumerate(NAMES)}
    other = replace(opened.recipe, seed=7, schedule=Constant(steep), when_exhausted="pad")
    context = ControllerContext(
        names=NAMES, base=opened.table, total_steps=9, tokens_per_step=opened.recipe.tokens_per_step
    )
    laws = {name: PowerLaw(alpha=0.3, log_beta=1.5, log_eps=0.6) for name in NAMES}
    found = preview(opened, range(8), None)
    return {
        "preview": found,
        "shares": found.shares(),
        "explanation": explain(opened, step=8, lane=0),
        "comparison": compare(opened.recipe, other),
        "simulated": simulate(Exp3(context=context, warmup=2, every=2), context, Learner(laws=laws), 9),
        "ramp": Ramp(from_=flat, to=steep, end=1000),
        "crossfade": CrossFade(knots=tuple((step, flat) for step in range(300)), fade=0),
        "bounds": Bounds(schedule=Ramp(from_=flat, to=steep, end=1000), floors={HOSTILE: "5%"}),
        "template": Template(
            name=HOSTILE, summary="", source="", simplified="", roles=dict.fromkeys(NAMES, ""), schedule={}
        ),
    }


ALL = (
    "swarm",
    "fit",
    "optimum",
    "design",
    "estimates",
    "plan",
    "effect",
    "exact",
    "estimated",
    "preview",
    "shares",
    "explanation",
    "comparison",
    "simulated",
    "ramp",
    "crossfade",
    "bounds",
    "template",
)


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
    assert "<caption></caption>" not in html
    assert name == "exact" or "&lt;b onclick=" in html
    assert html == results[name]._repr_html_()


def test_print_says_all_and_a_repr_how_much_more_there_is(results: dict[str, Readable]) -> None:
    for name in ("plan", "estimates", "optimum", "design", "swarm", "effect", "estimated"):
        whole, brief = str(results[name]), repr(results[name])
        assert all(other in whole for other in NAMES[1:])
        assert f"... and {len(NAMES) - BRIEF_ROWS + 1} more" in brief
        kind, head = brief.splitlines()[0].split(": ", 1)
        assert (kind, head) == (type(results[name]).__name__, whole.splitlines()[0])


def test_what_is_decided_and_a_table_are_a_line_each() -> None:
    table = ScheduleTable(("web", "code"), tuple(range(9000)), ((PARTS, 0),) * 9000, skips=((3, 5),))
    assert (
        repr(table)
        == "ScheduleTable of 2 datasets: 9,000 entries, the last from step 8,999, 1 skips, 0 drops"
    )
    assert repr(Advice({"web": PARTS // 4, HOSTILE: 3 * PARTS // 4}, "")) == (
        "Advice(web 25.00%, <b onclick='x'>&amp;[red]\\u202e 75.00%)"
    )
    assert repr(Advice(None, "warm-up until step 100")) == "Advice(warm-up until step 100)"
    assert [len(repr(found).splitlines()) for found in templates()] == [1] * len(templates())


def test_a_schedule_that_cannot_be_asked_is_shown_all_the_same() -> None:
    class Bare:
        def weights(self, step: int) -> dict[str, int]:
            return {"web": 1}

    assert "has no `changes()`" in repr(Then(((Bare(), 5), (Constant({"web": 1}), None))))
    assert "cannot be met" in repr(Bounds(schedule=Constant({"web": 1}), ceilings={"web": 0.5}))


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
