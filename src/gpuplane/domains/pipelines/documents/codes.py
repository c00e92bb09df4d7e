"""Whether the code of FUNCTION steps can be meant, looked at when a pipeline is saved.

It is compiled and never executed: what it does shows in its child process alone.
"""

import builtins
import dis
import warnings
from collections.abc import Iterator
from types import CodeType
from typing import Any

from gpuplane.domains.pipelines.documents.configs import FunctionConfig, config_of
from gpuplane.domains.pipelines.documents.models import Pipeline, StepType
from gpuplane.domains.pipelines.documents.reading import walk
from gpuplane.kit.errors import FieldError
from gpuplane.kit.problems import nearest

MAX_LOOKED_AT = 65_536
"""Characters; longer code is looked at when it runs, for compiling half a megabyte takes a second
in which nobody else is answered."""
_OPEN = frozenset({"exec", "globals", "locals", "vars", "setattr"})
"""What may make names that nobody can see."""
_STORES = ("STORE_NAME", "STORE_GLOBAL")


def check_codes(pipeline: Pipeline) -> Iterator[FieldError]:
    """Yield the code that is no Python or lacks its entry point, with place and line."""
    for path, step, _depth in walk(pipeline):
        if step.step_type is StepType.FUNCTION:
            yield from _check_code(f"{path}.config", step.config)
        undo = step.compensate
        if undo is not None and undo.step_type is StepType.FUNCTION:
            yield from _check_code(f"{path}.compensate.config", undo.config)


def _check_code(path: str, given: dict[str, Any]) -> Iterator[FieldError]:
    config = config_of(StepType.FUNCTION, given)
    if not isinstance(config, FunctionConfig) or len(config.code) > MAX_LOOKED_AT:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are the user's, told where it runs
            code = compile(config.code, "<function>", "exec", dont_inherit=True)
    except SyntaxError as error:
        place = f"line {error.lineno}" if error.lineno else "the code"
        column = f", column {error.offset}" if error.lineno and error.offset else ""
        yield FieldError(f"{path}.code", f"It is no Python: {place}{column}: {error.msg}.", "")
        return
    except (RecursionError, MemoryError):
        yield FieldError(f"{path}.code", "It is nested too deeply.", "Split its expressions.")
        return
    except ValueError as error:
        yield FieldError(f"{path}.code", f"It is no Python: {error}.", "")
        return
    names = _names_of(code)
    wanted = {config.entrypoint, *(["result"] if config.entrypoint == "main" else [])}
    if names is None or wanted & names or hasattr(builtins, config.entrypoint):
        return
    yield FieldError(
        f"{path}.entrypoint" if "entrypoint" in given else f"{path}.code",
        f"The code defines no {config.entrypoint}(...).",
        nearest(config.entrypoint, names) if names else f"Write `def {config.entrypoint}():`.",
    )


def _names_of(code: CodeType) -> set[str] | None:
    """Return the names that a module defines; None where that shows only when it runs."""
    names: set[str] = set()
    inner, is_top = [code], True
    while inner:
        each = inner.pop()
        inner += [part for part in each.co_consts if isinstance(part, CodeType)]
        if _OPEN & set(each.co_names) or ("*",) in each.co_consts:  # as `import *` has it
            return None
        for step in dis.get_instructions(each):
            if step.opname == "STORE_GLOBAL" or (is_top and step.opname in _STORES):
                names.add(step.argval)
        is_top = False
    return names
