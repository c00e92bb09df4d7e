"""The ports that programs of a rig listen on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rig import ports

PROJECT = Path(__file__).parents[3]
CHOOSE = """
from rig import ports
ports.CHOICES = range({first}, {last})
for _ in range({count}):
    print(ports.find_free_port(), flush=True)
input()
"""


def choose(first: int, last: int, count: int) -> subprocess.Popen[str]:
    program = CHOOSE.format(first=first, last=last, count=count)
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=PROJECT,
    )


def read(chooser: subprocess.Popen[str], count: int) -> list[int]:
    assert chooser.stdout is not None
    return [int(chooser.stdout.readline()) for _ in range(count)]


def test_two_processes_never_choose_the_same_port() -> None:
    with choose(15_000, 15_040, 12) as one, choose(15_000, 15_040, 12) as other:
        chosen = read(one, 12) + read(other, 12)
        for chooser in (one, other):
            chooser.communicate("\n")
    assert len(set(chosen)) == 24


def test_a_port_is_free_again_when_the_process_that_chose_it_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with choose(15_050, 15_051, 1) as chooser:
        assert read(chooser, 1) == [15_050]
        monkeypatch.setattr(ports, "CHOICES", range(15_050, 15_051))
        with pytest.raises(ports.NoFreePort, match="15050 to 15050"):
            ports.find_free_port()
        chooser.kill()
    assert ports.find_free_port() == 15_050


def test_ports_of_outgoing_connections_are_not_chosen(tmp_path: Path) -> None:
    told = tmp_path / "ip_local_port_range"
    told.write_text("15000\t65535\n")
    assert set(ports._choices(told)) == set(range(10_000, 15_000))


def test_where_nearly_all_ports_are_for_outgoing_connections_any_may_be_chosen(
    tmp_path: Path,
) -> None:
    told = tmp_path / "ip_local_port_range"
    told.write_text("1024\t65535\n")
    assert ports._choices(told) == ports.CHOICES
    assert ports._choices(tmp_path / "missing") == ports.CHOICES
