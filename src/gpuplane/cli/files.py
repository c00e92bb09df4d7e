"""Text of the files that people name: read as UTF-8, or refused with a sentence and what to do.

Owns no format: what the text means is its reader's to say.
"""

import sys
from pathlib import Path

from gpuplane.cli.errors import CliError, Exit

STANDARD_INPUT = "-"


def read_named(path: str, *, field: str = "") -> str:
    """Return the text of a file, or of standard input for `-`.

    Args:
        path: As it was written; `~` is the home folder.
        field: The option to blame.

    Raises:
        CliError: If it is not there, may not be read, or is no text.
    """
    try:
        if path == STANDARD_INPUT:
            return sys.stdin.read()
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        raise unreadable(path, error, field=field) from error


def unreadable(path: str, error: Exception, *, field: str = "") -> CliError:
    """Return the refusal of a file that cannot be read, with what to do about it."""
    name = "standard input" if path == STANDARD_INPUT else path
    fix = f"Look at it with `ls -l {path}`, or name another file."
    match error:
        case FileNotFoundError():
            said, fix = f"There is no file {name}.", "Name a file that is there."
        case IsADirectoryError():
            said, fix = f"{name} is a folder.", "Name a file in it."
        case PermissionError():
            said = f"{name} cannot be read: you may not."
        case UnicodeDecodeError():
            said = f"{name} is not text in UTF-8: byte {error.start} is not."
            fix = "Save it as UTF-8, or name another file."
        case _:
            said = f"{name} cannot be read: {_told(error)}."
    return CliError(said, fix=fix, field=field, code=Exit.USAGE)


def unwritable(path: str, error: OSError, *, field: str = "") -> CliError:
    """Return the refusal of a file that cannot be written, with what to do about it."""
    said = f"{path} cannot be written: {_told(error)}."
    fix = "Name a new file in a folder that is there and that you may write to."
    return CliError(said, fix=fix, field=field, code=Exit.USAGE)


def _told(error: Exception) -> str:
    """Return an error in the system's words, without its number."""
    return str(getattr(error, "strerror", None) or error)
