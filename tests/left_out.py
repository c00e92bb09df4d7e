"""Says at the end of a test run what was left out and why.

With `--may-leave-out` a run fails when anything else was left out, so that a missing server on
the build machine is not taken for a pass.
"""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("left out")
    group.addoption("--soak", action="store_true", help="run the tests marked soak, and only them")
    group.addoption(
        "--may-leave-out",
        metavar="NAMES",
        help="comma-separated markers, folders or words of a reason; fail when a test without any "
        "of them is left out",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    soak = config.getoption("--soak")
    for item in items:
        if soak and "soak" not in item.keywords:
            item.add_marker(pytest.mark.skip(reason="not a soak test"))
        if not soak and "soak" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="takes long: make soak"))


def _skipped(reporter: pytest.TerminalReporter) -> list[tuple[pytest.TestReport, str]]:
    """Return each left-out test or file with its reason, without pytest's own prefix."""
    found = []
    for report in reporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        found.append((report, reason.removeprefix("Skipped: ")))
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    config = terminalreporter.config
    if config.getoption("--soak"):
        return
    counts = Counter(
        (report.nodeid.partition("::")[0], reason) for report, reason in _skipped(terminalreporter)
    )
    terminalreporter.section("left out")
    if not counts:
        terminalreporter.write_line("left out: nothing")
    for (name, reason), count in sorted(counts.items()):
        terminalreporter.write_line(f"left out: {name} ({count}) — {reason}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    allowed = session.config.getoption("--may-leave-out")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if allowed is None or reporter is None or hasattr(session.config, "workerinput"):
        return
    names = set(allowed.split(","))
    refused = [
        report.nodeid
        for report, reason in _skipped(reporter)
        if not names & {*report.keywords, *report.nodeid.split("/")}
        and not any(name in reason for name in names)
    ]
    if refused and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.write_line("")
        reporter.write_line(f"these must not be left out here: {', '.join(refused)}", red=True)
