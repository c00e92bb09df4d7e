"""Which control plane is meant: never the admin's token where another was to be shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplane.cli.errors import CliError, Exit
from gpuplane.cli.settings import load_target


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "address").write_text("http://127.0.0.1:7070\n")
    (tmp_path / "admin-token").write_text("gp_admin\n")
    return {"GPUPLANE_HOME": str(tmp_path)}


def test_without_a_variable_the_token_of_this_machine_is_shown(
    environment: dict[str, str],
) -> None:
    assert load_target(environment).token == "gp_admin"
    assert load_target({**environment, "GPUPLANE_TOKEN": "gp_ada"}).token == "gp_ada"


@pytest.mark.parametrize("empty", ["", "  ", "\n"])
def test_a_variable_that_is_set_and_empty_does_not_make_the_caller_the_admin(
    environment: dict[str, str], empty: str
) -> None:
    with pytest.raises(CliError, match="GPUPLANE_TOKEN is set and empty") as refused:
        load_target({**environment, "GPUPLANE_TOKEN": empty})
    assert refused.value.code is Exit.REFUSED
    assert "unset it" in refused.value.fix


@pytest.mark.parametrize("variable", ["GPUPLANE_URL", "GPUPLANE_PROJECT", "GPUPLANE_HOME"])
@pytest.mark.parametrize("empty", ["", " "])
def test_a_variable_that_is_set_and_empty_is_refused_by_name(
    environment: dict[str, str], variable: str, empty: str
) -> None:
    with pytest.raises(CliError, match=f"{variable} is set and empty") as refused:
        load_target({**environment, variable: empty})
    assert refused.value.code is Exit.USAGE
    assert "or unset it for" in refused.value.fix


def test_a_home_of_a_user_who_is_not_there_is_a_sentence() -> None:
    with pytest.raises(CliError, match="GPUPLANE_HOME '~nobody-of-this-name' is no folder") as no:
        load_target({"GPUPLANE_HOME": "~nobody-of-this-name"})
    assert (no.value.code, no.value.fix) == (Exit.USAGE, "Write its whole path.")
