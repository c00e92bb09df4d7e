"""Recognises lightweight components and reads what their source needs.

Owns how kfp's compiler writes them: a shell that installs packages, a shell that stores the source
and calls `kfp.dsl.executor_main`, the source, and the name of the function among the arguments.
"""

import ast
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuplane.core.imports.kfp.shim import BACK, FRONT

_KFP = re.compile(r"^['\"]?(kfp|typing-extensions)\b", re.IGNORECASE)
_SPECIFIER = re.compile(r"'([^']+)'|\"([^\"]+)\"")
_OUTSIDE = ("/tmp/", "/mnt/", "/data/", "/home/", "/var/", "/workspace/", "/gcs/", "/s3/",
            "/minio/")  # fmt: skip
_KNOWN = frozenset({"kfp", "typing_extensions"})


@dataclass(frozen=True, slots=True)
class Lightweight:
    """One lightweight component.

    Args:
        function: Its name.
        source: The module that defines it; empty where it is in the image.
        packages: What is installed for it, kfp itself left out.
        needs: Why it cannot be a FUNCTION step; empty if it can.
    """

    function: str
    source: str
    packages: tuple[str, ...]
    needs: str


def find_lightweight(command: Sequence[str], arguments: Sequence[str]) -> Lightweight | None:
    """Return the lightweight component that a command runs, or None if it runs something else."""
    whole = [*command, *arguments]
    if "--executor_input" not in whole or "--function_to_execute" not in whole:
        return None
    at = whole.index("--function_to_execute")
    if at + 1 >= len(whole) or not whole[at + 1].isidentifier():
        return None
    function = whole[at + 1]
    source = next((each for each in reversed(command) if f"def {function}(" in each), "")
    packages = tuple(dict.fromkeys(each for text in command if text != source
                                   for each in _packages(text)))  # fmt: skip
    return Lightweight(function, source, packages, _needs(source, packages))


def _packages(script: str) -> list[str]:
    """Return the requirements of each `pip install` in a script."""
    found = []
    for line in script.replace("&&", "\n").split("\n"):
        _, word, rest = line.partition("pip install")
        if word:
            for one, two in _SPECIFIER.findall(rest):
                name = one or two
                if not name.startswith(("-", "$")) and not _KFP.match(name):
                    found.append(name)
    return found


def _needs(source: str, packages: Sequence[str]) -> str:
    if not source:
        return "its source is inside the image"
    if packages:
        return f"it installs {', '.join(packages)}"
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "its source is no Python that can be read here"
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.startswith(_OUTSIDE):
                return f"it names {node.value[:40]}, and a function has no files but its own"
            continue
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        for name in names:
            first = name.partition(".")[0]
            if first not in sys.stdlib_module_names and first not in _KNOWN:
                return f"it imports {first}, which is no part of Python"
            if first in ("subprocess", "multiprocessing", "socket", "urllib", "http", "requests"):
                return f"it imports {first}, and a function has neither processes nor network"
    return ""


def function_code(
    found: Lightweight,
    inputs: Mapping[str, str],
    parameters: Mapping[str, str],
    artifacts: Mapping[str, str],
    env: Mapping[str, str],
) -> str:
    """Return the code of a FUNCTION step that does what the component does.

    Args:
        found: The component.
        inputs: Kind of each input: a parameter's type, `artifact` or `artifacts`.
        parameters: Type of each output parameter.
        artifacts: Schema of each output artifact.
        env: Variables that its source finds in the environment.
    """
    spec = {"inputs": dict(inputs), "parameters": dict(parameters), "artifacts": dict(artifacts)}
    told = json.dumps(spec, sort_keys=True)
    middle = f"\n\n_function = {found.function}\n_SPEC = _json.loads({told!r})\n"
    before = f"_os.environ.update(_json.loads({json.dumps(dict(env))!r}))\n" if env else ""
    return FRONT + before + found.source + middle + BACK


RUNNER = """\
import json, os, subprocess, sys
given, root = json.loads(sys.argv[1].replace("@TASK@", os.environ["GPUPLANE_JOB_ID"])), "kfp"
os.makedirs(root, exist_ok=True)
output = os.path.abspath(os.path.join(root, "executor_output.json"))
given["outputs"]["outputFile"] = output
for each in given["outputs"].get("parameters", {}).values():
    os.makedirs(os.path.dirname(each["outputFile"]), exist_ok=True)
code = subprocess.call([json.dumps(given) if each == sys.argv[2] else each
                        for each in sys.argv[3:]])
if code:
    sys.exit(code)
told = json.load(open(output)) if os.path.exists(output) else {}
found = dict(told.get("parameterValues") or {})
for name, each in given["outputs"].get("parameters", {}).items():
    if name not in found and os.path.exists(each["outputFile"]):
        text = open(each["outputFile"]).read()
        if each["type"] == "BOOLEAN":
            text = text.strip().lower()
        found[name] = text if each["type"] == "STRING" else json.loads(text)
types = {name: each["artifacts"][0]["type"]["schemaTitle"]
         for name, each in given["outputs"].get("artifacts", {}).items()}
for name, each in (told.get("artifacts") or {}).items():
    first = each["artifacts"][0]
    found[name] = {"name": first["name"], "type": types[name], "uri": first["uri"],
                   "metadata": first["metadata"]}
with open(os.environ["GPUPLANE_OUTPUTS"], "w") as file:
    json.dump(found, file)
"""
"""Runs the component's own command in its own image and tells its outputs as a job does."""
