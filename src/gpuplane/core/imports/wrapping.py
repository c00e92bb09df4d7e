"""The few lines that run around a container's command, so that its files become outputs of a step.

A job's outputs are one JSON object in the file that GPUPLANE_OUTPUTS names. Containers of other
systems write each output into a file of its own, or to stdout. The lines are POSIX sh with sed and
awk, which nearly every image has; one without them cannot be mapped so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuplane.core.imports.values import plain

TASK = "@TASK@"
"""In arguments: replaced by the id of the job, for paths that nobody else writes to."""
RAW, BOOL, TEXT, STDOUT, ARTIFACT = "raw", "bool", "text", "stdout", "artifact"

_ESCAPE = r"""
j() { printf '"'; tr -d '\000-\010\013\014\016-\037' < "$1" | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' \
 -e "s/$T/\\\\t/g" -e "s/$R/\\\\r/g" | awk 'NR>1{printf "\\n"}{printf "%s",$0}'; printf '"'; }
"""
_HEAD = r"""T=$(printf '\t'); R=$(printf '\r')
for a; do shift; a=$(printf '%sx' "$a" | sed "s|@TASK@|$GPUPLANE_JOB_ID|g"); set -- "$@" "${a%x}"
done
"""
_RUN = '"$@" || exit $?\n'
_RUN_KEEPING = """{ "$@"; echo $? > .code; } | tee .stdout
code=$(cat .code); [ "$code" = 0 ] || exit "$code"
"""


@dataclass(frozen=True, slots=True)
class Output:
    """One output of a command.

    Args:
        kind: RAW is JSON in a file, BOOL true or false in any case, TEXT plain text in a file,
            STDOUT what was printed, ARTIFACT a path whose content stays where it is.
        path: The file; for an artifact what other steps are told.
        default: Text that stands in where there is no such file; None if that is an error.
        about: Further fields of an artifact.
    """

    kind: str
    path: str = ""
    default: str | None = None
    about: Mapping[str, str] | None = None
    source: str = ""
    """Where the command left an artifact that is copied to its path; empty if it is there."""


def wrapped(
    command: Sequence[object], outputs: Mapping[str, Output], before: Sequence[str] = ()
) -> list[object]:
    """Return a command that runs another and tells its outputs; the other itself without any.

    Args:
        command: The words of the other, expressions among them.
        outputs: What it leaves, by name.
        before: Lines of sh that come before it.
    """
    uses_task = any(isinstance(each, str) and TASK in each for each in command)
    if not outputs and not uses_task and not before:
        return list(command)
    keeps = any(each.kind == STDOUT for each in outputs.values())
    folders = sorted({_folder(each.path) for each in outputs.values() if each.path} - {""})
    lines = [_HEAD]
    if folders:
        lines.append(f"mkdir -p {' '.join(_word(each) for each in folders)}\n")
    lines.extend(before)
    lines.append(_RUN_KEEPING if keeps else _RUN)
    lines.extend(copied(each.source, each.path, is_optional=each.default is not None)
                 for each in outputs.values() if each.source)  # fmt: skip
    if outputs:
        lines.append(_ESCAPE.lstrip("\n"))
        lines.append("{ printf '{'\n")
        for at, (name, output) in enumerate(outputs.items()):
            lines.append(_told(name, output, is_first=at == 0))
        lines.append("printf '}'; } > \"$GPUPLANE_OUTPUTS\"\n")
    return ["sh", "-c", plain("".join(lines)), "sh", *command]


def _told(name: str, output: Output, *, is_first: bool) -> str:
    key = ("" if is_first else ",") + _json(name) + ":"
    start = f"printf '%s' {_quoted(key)}; "
    path = _word(output.path)
    if output.kind == STDOUT:
        # As a shell does with $( ): the newlines at the end are no part of a result.
        return start + "printf '%s' \"$(cat .stdout)\" > .result; j .result\n"
    if output.kind == ARTIFACT:
        about = ",".join(f"{_json(key)}:{_json(each)}" for key, each in
                         (output.about or {}).items())  # fmt: skip
        first = _quoted("{" + about + ("," if about else "") + '"metadata":{},"uri":"')
        return start + f"printf '%s%s\"}}' {first} {path}\n"
    show = {RAW: f"cat {path}", BOOL: f"tr TF tf < {path}"}.get(output.kind, f"j {path}")
    if output.default is None:
        return start + show + "\n"
    other = output.default if output.kind in (RAW, BOOL) else _json(output.default)
    return start + f"if [ -e {path} ]; then {show}; else printf '%s' {_quoted(other)}; fi\n"


def copied(source: str, target: str, *, is_optional: bool = False) -> str:
    """Return the line of sh that copies a file or folder; `$NAME` as a source is a variable."""
    name = f'"{source}"' if source.startswith("$") else _word(source)
    line = f"mkdir -p {_word(_folder(target) or '.')} && cp -r {name} {_word(target)}"
    return (
        f"if [ -e {name} ]; then {line}; fi || exit 1\n" if is_optional else f"{line} || exit 1\n"
    )


def stored(variable: str, target: str) -> str:
    """Return the line of sh that writes the value of an environment variable into a file."""
    folder = _word(_folder(target) or ".")
    return f"mkdir -p {folder} && printf '%s' \"${variable}\" > {_word(target)}\n"


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _word(path: str) -> str:
    """Return a path as one word of sh, the task's id in it."""
    return '"$GPUPLANE_JOB_ID"'.join(_quoted(part) for part in path.split(TASK))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _json(text: str) -> str:
    signs = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return (
        '"' + "".join(signs.get(each, each) for each in text if each >= " " or each in signs) + '"'
    )
