"""What `zephon data` writes: tables, histograms and texts for people, and plain values for JSON.

Upstream: `data.py`. Downstream: the terminal. Nothing that stands in the data can move it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from zephon.check.report import format_bytes
from zephon.cli.output import add_row, cut, new_table, output_width, visible, write, write_table
from zephon.survey import Seen, Survey, histogram, quantiles

TOP_VALUES = 8
BAR_WIDTH = 40
LABEL_WIDTH = 36
"""What stands ahead of the bars of a histogram, at most."""
VALUE_WIDTH = 40
QUANTILES = ("least", "p5", "median", "p95", "greatest")


def draw_list(found: Sequence[Mapping[str, Any]]) -> None:
    """Draws what `zephon data ls` found, and the files where they are asked for."""
    if not found:
        return
    table = new_table("dataset", "kind", "#files", "#bytes", "#chunks", "#documents", "path")
    for entry in found:
        documents, whole = _number(entry["documents"]), entry["documents_in_files"]
        if whole is not None and whole != entry["documents"]:
            documents += f" of {whole:,}"
        add_row(
            table, entry["name"], entry["kind"], f"{entry['num_files']:,}", format_bytes(entry["bytes"]),
            _number(entry["chunks"], "-"), documents, ", ".join(entry["paths"]) or "in memory",
        )  # fmt: skip
    write_table(table)
    if not any("files" in entry for entry in found):
        return
    table = new_table("dataset", "#documents", "#bytes", "file")
    for entry in found:
        for file in entry["files"]:
            add_row(table, entry["name"], _number(file["documents"]), f"{file['bytes']:,}", file["name"])
    write("")
    write_table(table)


def draw_surveys(found: Sequence[tuple[Survey, int | None]]) -> None:
    """Draws a line for each dataset, then its lengths, faults and columns."""
    if not found:
        return
    table = new_table("dataset", "#documents", "#looked at", "#empty", "#faulty", "#about tokens")
    for survey, count in found:
        add_row(
            table, survey.name, _number(count), f"{survey.num_seen:,}", f"{survey.num_empty:,}",
            f"{survey.faults.total():,}", _number(_about_tokens(survey, count), "-"),
        )  # fmt: skip
    write_table(table)
    for survey, _ in found:
        _draw_survey(survey)


def _draw_survey(survey: Survey) -> None:
    """Draws the lengths of a dataset's documents, what is wrong with some, and the values of its columns."""
    name = visible(survey.name)
    if survey.bytes:
        write("")
        table = new_table(f"{name}: length in", "#mean", "#least", "#5%", "#median", "#95%", "#greatest")
        for unit, lengths in (("bytes", survey.bytes), ("tokens", survey.tokens)):
            if points := quantiles(lengths):
                add_row(table, unit, f"{_mean(lengths):,.0f}", *(f"{points[n]:,}" for n in QUANTILES))
        write_table(table)
        _draw_histogram(*(("tokens", survey.tokens) if survey.tokens else ("bytes", survey.bytes)))
    for kind, number in sorted(survey.faults.items()):
        write(f"{name}: {number:,} of {survey.num_seen:,} looked at cannot be used ({visible(kind)})")
    for column, values in survey.columns.items():
        _draw_column(survey, column, values)


def _draw_histogram(unit: str, lengths: Sequence[int]) -> None:
    bins = histogram(lengths)
    most = max(number for _, _, number in bins)
    width = max(10, min(BAR_WIDTH, output_width() - LABEL_WIDTH))
    table = new_table(f"#{unit}", "#documents", "")
    for first, last, number in bins:
        label = f"{first:,}" if last - first == 1 else f"{first:,} to {last - 1:,}"
        add_row(table, label, f"{number:,}", "#" * -(-width * number // most))
    write("")
    write_table(table)


def _draw_column(survey: Survey, column: str, values: Counter[Any]) -> None:
    numbers, name = _numbers(values), visible(survey.name)
    write("")
    if numbers and len(values) > TOP_VALUES:
        table = new_table(f"{name}: {visible(column)}", "#least", "#5%", "#median", "#95%", "#greatest")
        points = quantiles(numbers)
        assert points is not None
        add_row(table, "values", *(f"{points[n]:,.6g}" for n in QUANTILES))
        write_table(table)
        if missing := values[None]:
            write(f"without a value: {missing:,} of {survey.num_seen:,}")
        return
    table = new_table(f"{name}: {visible(column)}", "#documents", "#share")
    ordered = sorted(values.items(), key=lambda item: (-item[1], str(item[0])))
    for value, number in ordered[:TOP_VALUES]:
        shown = "(no value)" if value is None else cut(str(value), VALUE_WIDTH)
        add_row(table, shown, f"{number:,}", f"{number / survey.num_seen:.1%}")
    rest = sum(number for _, number in ordered[TOP_VALUES:]) + survey.num_others[column]
    if rest:
        more = "others" if survey.num_others[column] else f"{len(values) - TOP_VALUES:,} others"
        add_row(table, more, f"{rest:,}", f"{rest / survey.num_seen:.1%}")
    write_table(table)


def draw_documents(shown: Sequence[tuple[str, Seen]], width: int) -> None:
    """Writes documents: where each stands, then the beginning of its text, in one line."""
    for number, (name, seen) in enumerate(shown):
        size = "" if seen.num_tokens is None else f", {seen.num_tokens:,} tokens"
        columns = "".join(f", {visible(c)} = {cut(repr(v), VALUE_WIDTH)}" for c, v in seen.columns.items())
        if number:
            write("")
        place = f"{visible(name)}: {visible(seen.file)}, record {seen.record:,}"
        write(f"{place}, {seen.num_bytes:,} bytes{size}{columns}")
        if seen.fault is not None:
            text = f"cannot be used ({visible(seen.fault.kind)}): {cut(seen.fault.got, width)}"
        elif not seen.num_bytes:
            text = "(empty)"
        else:
            text = cut(seen.text, width) or "(token ids, without a tokenizer)"
        write(f"  {text}")


def survey_json(survey: Survey, count: int | None) -> dict[str, Any]:
    """Returns a survey as JSON data; `zephon data stats --help` names the keys."""
    return {
        "name": survey.name,
        "documents": count,
        "looked_at": survey.num_seen,
        "empty": survey.num_empty,
        "faults": dict(sorted(survey.faults.items())),
        "bytes": _lengths_json(survey.bytes),
        "tokens": _lengths_json(survey.tokens),
        "about_tokens": _about_tokens(survey, count),
        "columns": {name: _column_json(survey, name) for name in survey.columns},
    }


def _lengths_json(lengths: Sequence[int]) -> dict[str, Any] | None:
    points = quantiles(lengths)
    return None if points is None else {"total": sum(lengths), "mean": _mean(lengths)} | points


def _column_json(survey: Survey, name: str) -> dict[str, Any]:
    values = survey.columns[name]
    return {
        "values": {str(value): number for value, number in values.most_common() if value is not None},
        "others": survey.num_others[name],
        "missing": values[None],
        "numbers": plain(quantiles(_numbers(values))),
    }


def _numbers(values: Counter[Any]) -> list[int | float]:
    """Returns the values of a column of numbers, as often as each was seen; none of any other column."""
    found = {value: number for value, number in values.items() if value is not None}
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in found):
        return []
    return [value for value, number in found.items() if value == value for _ in range(number)]  # no NaN


def plain(value: Any) -> Any:
    """Returns values as JSON has them: what it has no form for as its text."""
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    is_finite = not isinstance(value, float) or value - value == 0
    known = value is None or isinstance(value, bool | int | float | str)
    return value if known and is_finite else str(value)


def _about_tokens(survey: Survey, count: int | None) -> int | None:
    tokens = None if count is None else survey.tokens_of(count)
    return None if tokens is None else round(tokens)


def _mean(lengths: Sequence[int]) -> float:
    return sum(lengths) / len(lengths)


def _number(value: int | None, missing: str = "not counted") -> str:
    return missing if value is None else f"{value:,}"
