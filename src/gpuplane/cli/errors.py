"""What the command line says when something goes wrong, and the exit code of each case.

Owns the exit codes. The text is always a sentence, the field if one is to blame, and the fix.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import click


class Exit(IntEnum):
    """The exit codes of every command; `run` and `exec` end with the job's own code."""

    OK = 0
    FAILED = 1
    """It was done and came to a bad end, or the server failed."""
    USAGE = 2
    """What was written cannot be meant: an option, an argument, a field of a manifest."""
    NOT_FOUND = 3
    """Nothing of that name or id, or it is not yours to see."""
    REFUSED = 4
    """It was understood and may not be done: rights, the thing's state, a limit, your answer."""
    UNREACHABLE = 5
    """No control plane answers."""
    INTERRUPTED = 130
    """Ctrl-C."""


_EXIT_OF_STATUS = {
    400: Exit.USAGE,
    401: Exit.REFUSED,
    403: Exit.REFUSED,
    404: Exit.NOT_FOUND,
    405: Exit.REFUSED,
    409: Exit.REFUSED,
    410: Exit.NOT_FOUND,
    413: Exit.REFUSED,
    422: Exit.USAGE,
    429: Exit.REFUSED,
    502: Exit.UNREACHABLE,
    503: Exit.UNREACHABLE,
    504: Exit.UNREACHABLE,
}


class CliError(click.ClickException):
    """A sentence, the field to blame, the fix, and an exit code."""

    def __init__(
        self, message: str, *, fix: str = "", field: str = "", code: Exit = Exit.FAILED
    ) -> None:
        """Make an error.

        Args:
            message: A whole sentence.
            fix: What to do about it, a sentence too.
            field: The option or field to blame.
            code: How the process ends.
        """
        super().__init__(message)
        self.fix = fix
        self.field = field
        self.code = code

    @property
    def exit_code(self) -> int:  # type: ignore[override]  # click reads it, and keeps it on the class
        """Return how the process ends."""
        return int(self.code)

    def show(self, file: Any = None) -> None:
        """Write the error to standard error."""
        place = f"{self.field}: " if self.field else ""
        lines = [f"gpuplane: {place}{self.message}"]
        if self.fix:
            lines.append(f"  {self.fix}")
        click.echo("\n".join(lines), file=file, err=file is None)


class Unreachable(CliError):
    """No control plane answers."""

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message, fix=fix, code=Exit.UNREACHABLE)


class ApiError(CliError):
    """The server refused; made from its problem document."""

    def __init__(
        self, status: int, problem: Mapping[str, Any], retry_after_s: int | None = None
    ) -> None:
        """Make the error that a problem document (RFC 9457) describes.

        Args:
            status: Of HTTP.
            problem: The document.
            retry_after_s: When it may be asked again, where the server said so.
        """
        self.status = status
        self.retry_after_s = retry_after_s
        self.problem = dict(problem)
        default = Exit.FAILED if status >= 500 else Exit.REFUSED
        field = str(problem.get("field") or "")
        detail = str(problem.get("detail") or problem.get("title") or f"It answered {status}.")
        super().__init__(
            detail.removeprefix(f"{field}: "),  # shown in front of every error anyway
            fix=_fix_of(str(problem.get("fix") or ""), status, retry_after_s),
            field=field,
            code=_EXIT_OF_STATUS.get(status, default),
        )

    def show(self, file: Any = None) -> None:
        """Write the refusal, and every further field that cannot hold."""
        super().show(file)
        for each in self.problem.get("errors") or []:
            if each.get("field") == self.field and each.get("reason") == self.message:
                continue
            fix = f" {each['fix']}" if each.get("fix") else ""
            click.echo(f"  {each.get('field')}: {each.get('reason')}{fix}", file=file, err=True)
        if self.status >= 500 and self.problem.get("request_id"):
            click.echo(f"  request {self.problem['request_id']}", file=file, err=True)


def _fix_of(fix: str, status: int, retry_after_s: int | None) -> str:
    """Return what to do, with the seconds to wait where the server named them."""
    if status != 429 or retry_after_s is None:
        return fix
    again = f"Try again in {retry_after_s} s."
    return again if not fix or "Retry-After" in fix else f"{fix} {again}"
