"""Charts: every dataset is named once, nothing overlaps, the same input gives the same bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from zephon import PARTS, ScheduleTable
from zephon_curriculum.plan.charts import mixture_chart


def ramp(num_datasets: int, seed: int, num_steps: int = 200) -> ScheduleTable:
    """Returns a table that goes from one random mixture to another."""
    generator = np.random.Generator(np.random.Philox(key=seed))
    first, last = (generator.dirichlet(np.full(num_datasets, 0.7)) for _ in range(2))
    along = np.linspace(0, 1, num_steps)[:, None]
    shares = np.floor((first * (1 - along) + last * along) * PARTS).astype(np.int64)
    shares[:, 0] += PARTS - shares.sum(axis=1)
    names = tuple(f"dataset-{i}" if i % 3 else f"d{i}" for i in range(num_datasets))
    return ScheduleTable(names, tuple(range(num_steps)), tuple(map(tuple, shares.tolist())))


@pytest.mark.parametrize("num_datasets", [3, 5, 8, 12])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_dataset_is_named_once_and_no_texts_overlap(num_datasets: int, seed: int) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    table = ramp(num_datasets, seed)
    figure = mixture_chart(table, num_steps=200, tokens_per_step=10**6, title="mixture")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    texts = [text for text in figure.axes[0].texts if text.get_text()]
    assert sorted(text.get_text() for text in texts) == sorted(table.names)
    boxes = [Text.get_window_extent(text, canvas.get_renderer()) for text in texts]  # without lines to areas
    for i, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.width
        for j, other in enumerate(boxes[:i]):
            is_beside = box.x1 <= other.x0 or other.x1 <= box.x0
            apart = is_beside or box.y1 <= other.y0 + 1 or other.y1 <= box.y0 + 1
            assert apart, (texts[i].get_text(), texts[j].get_text())


def test_the_same_table_gives_the_same_bytes(tmp_path: Path) -> None:
    for kind in ("svg", "png"):
        for name in ("a", "b"):
            mixture_chart(ramp(9, 4), tmp_path / f"{name}.{kind}", num_steps=200, tokens_per_step=5)
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
    text = (tmp_path / "a.svg").read_text()
    assert "dc:date" not in text
    assert ">dataset-1<" in text  # texts are texts, which can be found and read aloud


def test_steps_are_exact() -> None:
    table = ScheduleTable(("web", "code"), (0, 30), ((PARTS, 0), (PARTS // 2, PARTS // 2)))
    figure = mixture_chart(table, num_steps=40)
    area = figure.axes[0].collections[1].get_paths()[0].vertices
    assert sorted({float(x) for x, y in area if y == 0.5}) == [30.0, 40.0]


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`num_steps` is needed to draw a table"):
        mixture_chart(ramp(3, 0))
    with pytest.raises(ValueError, match="`num_steps` must be >= 1, got 0; there is no mixture to draw"):
        mixture_chart(ramp(3, 0), num_steps=0)
    with pytest.raises(ValueError, match=r"`path` must end in \.png or \.svg"):
        mixture_chart(ramp(3, 0), tmp_path / "a.pdf", num_steps=10)
