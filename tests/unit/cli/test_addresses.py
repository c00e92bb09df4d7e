"""What cannot be meant by an address, a token or an instant is one sentence and a fix."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result

from gpuplane.cli.addresses import check_token
from gpuplane.cli.client import Client
from gpuplane.cli.errors import CliError, Exit
from gpuplane.cli.main import build
from gpuplane.cli.settings import Target
from gpuplane.cli.words import parse_instant

NOBODY = "http://127.0.0.1:1"


def gpuplane(*words: str, url: str = NOBODY, token: str = "gp_x") -> Result:
    """Run a command as the process would, with an address and a token of its own."""
    return CliRunner(env={"GPUPLANE_URL": url, "GPUPLANE_TOKEN": token}).invoke(build(), words)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:99999", "Port out of range"),
        ("http://[::1", "Invalid IPv6 URL"),
        ("http://127.0.0.1:abc", "Port could not be cast"),
        ("http://:7070", "names no host and port"),
        ("http://127.0.0.1:0", "names no host and port"),
        ("http://.a..b:1", "names no host that can be"),
        ("http://a b:1", "holds a blank"),
        ("http://127.0.0.1:1/→", "writes as %XX"),
    ],
)
def test_an_address_that_cannot_be_asked_is_one_sentence_and_a_fix(url: str, why: str) -> None:
    done = gpuplane("ps", url=url)
    assert done.exit_code == Exit.USAGE
    first, fix = done.output.splitlines()
    assert first.startswith(f"gpuplane: GPUPLANE_URL {url!r} ")
    assert why in first
    assert fix == "  Write it like http://127.0.0.1:7070."


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:7070", "https://[::1]:7070/gpu", "http://plane.example"]
)
def test_an_address_that_can_be_asked_is_let_through(url: str) -> None:
    client = Client(Target(url, "gp_x"))
    assert client.target.url == url


@pytest.mark.parametrize("token", ["gp_x\r", "gp_x\r\n", " gp_x \n"])
def test_line_ends_around_a_token_are_left_out(token: str) -> None:
    assert check_token(token) == "gp_x"


@pytest.mark.parametrize("token", ["gp_secret\rgp_other", "gp_secret→", "gp_secret\nHost: x"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(token: str) -> None:
    done = gpuplane("ps", token=token)
    assert done.exit_code == Exit.USAGE
    assert done.output.startswith("gpuplane: GPUPLANE_TOKEN holds a character that no token has")
    assert "secret" not in done.output
    with pytest.raises(CliError):
        check_token(token)


@pytest.mark.parametrize("text", ["+99999999h", "-99999999h", "+999999999999999999d"])
def test_a_distance_beyond_the_calendar_is_no_instant(text: str) -> None:
    with pytest.raises(ValueError, match="outside of the years 1 to 9999"):
        parse_instant(text)


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--deadline", "+99999999h", "--", "true"),
        ("usage", "--from", "-99999999h"),
    ],
)
def test_an_option_with_an_instant_beyond_the_calendar_is_a_usage_error(
    words: tuple[str, ...],
) -> None:
    done = gpuplane(*words)
    assert done.exit_code == Exit.USAGE
    assert "is no instant; write it like 2026-05-01T09:00 or +2h." in done.output
