"""Registering from the command line: what is too many for now, and files that hold nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpuplane.cli.client import Client
from gpuplane.cli.commands.access import read_kubeconfig_text
from gpuplane.cli.commands.registration import COMMANDS, PATIENCE_S, _post_patiently
from gpuplane.cli.errors import ApiError, CliError, Exit
from gpuplane.cli.runviews import draw_steps

PROBLEM = {"detail": "You have made 10 of these calls.", "fix": "Wait as long as Retry-After says."}


class Busy(Client):
    """A client whose server has other things to do, and says for how long."""

    def __init__(self, *waits_s: int | None) -> None:
        self.waits_s = list(waits_s)
        self.asked = 0

    def post(self, path: str, body: Any = None, **query: Any) -> Any:
        self.asked += 1
        if self.waits_s:
            raise ApiError(429, PROBLEM, self.waits_s.pop(0))
        return {"made": path}


def test_a_refusal_of_too_many_says_in_how_many_seconds() -> None:
    assert ApiError(429, PROBLEM, 7).fix == "Try again in 7 s."
    assert ApiError(429, {"fix": "Cancel some."}, 7).fix == "Cancel some. Try again in 7 s."
    assert ApiError(429, PROBLEM).fix == PROBLEM["fix"]
    assert ApiError(409, {"fix": "Wait."}, 7).fix == "Wait."


def test_a_registration_is_sent_again_when_it_may_be() -> None:
    client = Busy(0, 0)
    assert _post_patiently(client, "/clusters", {}, "gpuplane …") == {"made": "/clusters"}
    assert client.asked == 3


def test_one_that_would_wait_for_long_says_what_to_repeat_and_when() -> None:
    client = Busy(PATIENCE_S + 1)
    with pytest.raises(ApiError) as caught:
        _post_patiently(client, "/clusters", {}, "gpuplane clusters register east …")
    assert caught.value.fix == f"Repeat it in {PATIENCE_S + 1} s: gpuplane clusters register east …"
    assert client.asked == 1


def test_other_refusals_are_told_at_once() -> None:
    with pytest.raises(ApiError):
        _post_patiently(Busy(None), "/clusters", {}, "gpuplane …")


def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(" \n")
    with pytest.raises(CliError, match="is empty: it holds no kubeconfig") as caught:
        read_kubeconfig_text(str(path))
    assert caught.value.code is Exit.USAGE
    assert "kubectl config view" in caught.value.fix


def test_a_step_that_left_something_out_says_so_where_it_is_drawn() -> None:
    row = {
        "seq": 1, "parent": 0, "key": "deploy_nfd", "status": "completed", "needs": [],
        "started_at": None, "ended_at": None, "attempt": 1, "attempts": 1,
        "message": "nfd: left out. It was not asked for.",
    }  # fmt: skip
    [line] = draw_steps([row])
    assert "deploy_nfd" in line
    assert "left out. It was not asked for." in line


@pytest.mark.parametrize(
    "words",
    [["register", "east", "--kubeconfig", "-"], ["register-again", "east"]],
    ids=["register", "register-again"],
)
def test_some_add_ons_and_none_are_not_asked_for_at_once(words: list[str]) -> None:
    command = next(each for each in COMMANDS if each.name == words[0])
    done = CliRunner().invoke(command, [*words[1:], "--addon", "kueue", "--no-addons"])
    assert done.exit_code == Exit.USAGE
    assert "Give either --addon NAME or --no-addons." in done.output
