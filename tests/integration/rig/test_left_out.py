"""A test run says what it left out, and a build machine does not let it pass unseen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

SUITE = """
import pytest

def test_that_runs():
    assert True

@pytest.mark.hardware
def test_that_needs_a_gpu():
    pytest.skip("no GPU on this machine")

@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_on_both(database):
    if database == "postgresql":
        pytest.skip("no server on this machine")
"""


@pytest.fixture
def run_suite(tmp_path: Path):
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "test_suite.py").write_text(SUITE)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.left_out"]
        command += ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={tmp_path}", *options]
        return subprocess.run(
            [*command, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
        )

    return run


def test_what_was_left_out_is_named_with_its_reason(run_suite) -> None:
    done = run_suite()
    assert done.returncode == 0, done.stdout
    assert "left out: test_suite.py (1) — no GPU on this machine" in done.stdout
    assert "left out: test_suite.py (1) — no server on this machine" in done.stdout


def test_a_run_fails_when_more_is_left_out_than_allowed(run_suite) -> None:
    done = run_suite("--may-leave-out=hardware", "-n", "2")
    assert done.returncode == 1, done.stdout
    assert "must not be left out here: test_suite.py::test_on_both[postgresql]" in done.stdout


def test_a_run_passes_when_only_the_allowed_is_left_out(run_suite) -> None:
    assert run_suite("--may-leave-out=hardware,no server").returncode == 0
