"""Whether an address and a token can be sent at all: said before anything is. Pure."""

from urllib.parse import urlsplit

from gpuplane.cli.errors import CliError, Exit


def check_address(url: str) -> None:
    """Return when an address can be asked.

    Raises:
        CliError: If it cannot; says why.
    """
    wrong = _wrong_with(url)
    if wrong:
        raise CliError(
            f"GPUPLANE_URL {url!r} {wrong}.",
            fix="Write it like http://127.0.0.1:7070.",
            code=Exit.USAGE,
        )


def check_token(token: str) -> str:
    """Return a token without the blanks and line ends that a file or a paste leaves around it.

    Raises:
        CliError: If it holds what no HTTP header may; the token itself is not shown.
    """
    bare = token.strip()
    if not (bare.isascii() and bare.isprintable()):
        raise CliError(
            "GPUPLANE_TOKEN holds a character that no token has, such as a line end.",
            fix="Set it to the one line that `gpuplane tokens create NAME` printed.",
            code=Exit.USAGE,
        )
    return bare


def _wrong_with(url: str) -> str:
    """Return what is wrong with an address, empty for nothing."""
    if not url.isprintable() or " " in url:
        return "holds a blank or a character that no URL has"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")
    except UnicodeError:
        return "names no host that can be"
    except ValueError as error:
        return f"is no URL ({error})"
    if not host or port == 0:
        return "names no host and port that can be asked"
    return "" if url.isascii() else "holds a character that a URL writes as %XX"
