"""The Gantt chart: what stands in which cell."""

from __future__ import annotations

from gpuplane.cli.charts import Line, Span, draw, fit, letters, tick_step
from gpuplane.cli.output import Column, fitting


def plain(text: str, style: str) -> str:
    return text


def rows_of(lines: list[Line], since: float, until: float, now: float, width: int) -> list[str]:
    return draw(lines, since, until, now, width, plain)[2:]


def test_what_happened_is_solid_and_what_is_expected_is_light() -> None:
    line = Line("a", [Span(0, 50), Span(50, 100, "░")])
    (row,) = rows_of([line], 0, 100, 50, 44)
    assert row == "a " + "█" * 20 + "░" * 20


def test_the_present_is_marked_where_nothing_is_drawn() -> None:
    (row,) = rows_of([Line("a", [Span(0, 25)])], 0, 100, 50, 44)
    assert row == "a " + "█" * 10 + " " * 10 + "│"


def test_a_stretch_shorter_than_a_cell_is_still_seen() -> None:
    (row,) = rows_of([Line("a", [Span(10.0, 10.1)])], 0, 100, 200, 44)
    assert row.count("█") == 1


def test_a_stretch_outside_the_window_is_not_drawn_and_one_across_its_edge_is_cut() -> None:
    outside, across = rows_of(
        [Line("a", [Span(-50, -10)]), Line("b", [Span(-50, 25)])], 0, 100, 200, 44
    )
    assert "█" not in outside
    assert across == "b " + "█" * 10


def test_no_line_is_wider_than_the_terminal() -> None:
    lines = [
        Line("a-rather-long-name-that-does-not-fit-into-its-column", [Span(0, 100)], "running")
    ]
    for width in (60, 80, 200):
        assert max(map(len, draw(lines, 0, 100, 50, width, plain))) <= width


def test_a_long_label_is_cut_with_an_ellipsis() -> None:
    (row,) = rows_of([Line("x" * 60, [])], 0, 100, 200, 80)
    assert row.startswith("x" * 33 + "…")


def test_styles_are_asked_for_and_plain_paint_leaves_no_escape() -> None:
    asked: list[str] = []

    def note(text: str, style: str) -> str:
        asked.append(style)
        return text

    drawn = draw([Line("a", [Span(0, 50, "█", "green")])], 0, 100, 80, 60, note)
    assert "green" in asked
    assert "\x1b" not in "".join(drawn)


def test_the_axis_has_as_many_ticks_as_fit() -> None:
    assert tick_step(3_600, 70) == 900
    assert tick_step(60, 70) == 15
    assert tick_step(10**9, 20) == 604_800


def test_the_edges_hold_every_stretch_and_the_present() -> None:
    low, high = fit([(100, 200), (150, 400)], 300)
    assert low < 100
    assert high > 400
    assert fit([], 300) == (290, 310)


def test_each_holder_has_a_letter_of_its_own_until_they_run_out() -> None:
    found = letters([*(f"job-{n}" for n in range(60)), "job-0"])
    assert found["job-0"] == "a"
    assert found["job-26"] == "A"
    assert found["job-59"] == "#"


def test_a_narrow_terminal_does_without_spare_columns_from_the_last_on() -> None:
    columns = [
        Column("NAME", lambda row: row["name"]),
        Column("WHY", lambda row: "x" * 20, spare=True),
        Column("AGE", lambda row: "y" * 10, spare=True),
        Column("ID", lambda row: "z" * 8),
    ]
    rows = [{"name": "a-name"}]

    def titles(width: int) -> list[str]:
        return [each.title for each in fitting(columns, rows, width)]

    assert titles(80) == ["NAME", "WHY", "AGE", "ID"]
    assert titles(40) == ["NAME", "WHY", "ID"]
    assert titles(10) == ["NAME", "ID"]
