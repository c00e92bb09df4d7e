"""Makes the step of a template that does something: container, script, http, suspend."""

import ast
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuplane.core.imports.argo.expressions import Lookup, resolved, without_tags
from gpuplane.core.imports.argo.fetching import Fetch
from gpuplane.core.imports.argo.fields import CONTAINER_LEFT_OUT, sort_fields
from gpuplane.core.imports.argo.pods import Pods
from gpuplane.core.imports.naming import word_of
from gpuplane.core.imports.reading import (
    find_seconds,
    mapping,
    scalar,
    sequence,
    shown,
    text,
    texts,
)
from gpuplane.core.imports.resources import job_resources
from gpuplane.core.imports.results import Containers, Malformed, Table
from gpuplane.core.imports.values import Const, Expr, Value, cel_of, output_of, quoted, written
from gpuplane.core.imports.wrapping import (
    ARTIFACT,
    STDOUT,
    TASK,
    TEXT,
    Output,
    copied,
    stored,
    wrapped,
)

VOLUME = "pipeline-artifacts"
RESULT = "result"
SCRIPT = 'printf \'%s\' "$1" > .script; shift; exec "$@" .script'
FUNCTION = """\
import contextlib, io

def main(source):
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(source, "<script>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    finally:
        print(out.getvalue(), end="")
    return {"result": out.getvalue().rstrip("\\n")}
"""
_STATUS = re.compile(r"\s*response\.statusCode\s*==\s*(\d{3})\s*")
_BODY = re.compile(r"\s*response\.body\s+contains\s+(['\"])([^'\"]*)\1\s*")
ENTRY_POINTS = {"argoproj/argosay:v1": ["cowsay"], "argoproj/argosay:v2": ["/argosay"],
                "docker/whalesay:latest": ["cowsay"]}  # fmt: skip
"""What images of Argo's examples run by themselves (its workflow-controller-configmap)."""
_NO_FUNCTION = frozenset(
    {"subprocess", "multiprocessing", "socket", "urllib", "http", "ftplib", "smtplib", "ssl"}
)


@dataclass(slots=True)
class Leaf:
    """A step under construction, and what it gives."""

    fields: dict[str, Any]
    outputs: dict[str, Value] = field(default_factory=dict)
    artifacts: dict[str, Value] = field(default_factory=dict)
    result: Value | None = None
    ip: Value | None = None
    check: str = ""
    """CEL of what has to hold once it is over."""


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a template: its step, the call's name, and what its inputs come to."""

    step: str
    name: str
    place: str
    lookup: Lookup
    artifacts: Mapping[str, Value]


class Leaves:
    """Makes steps of the templates of one workflow."""

    def __init__(
        self, pods: Pods, containers: Containers, table: Table, read: frozenset[str]
    ) -> None:
        """Take what pods of the workflow share, and the calls whose `result` is read."""
        self._pods, self._containers, self._table = pods, containers, table
        self._read = read
        self._root = "artifacts" if containers is Containers.PROCESS else "/artifacts"

    def make(self, template: Mapping[str, Any], use: Use) -> Leaf:
        """Return the step of a template.

        Raises:
            Malformed: If it cannot be read, or does what no step does.
        """
        if "container" in template:
            return self._container(template, use)
        if "script" in template:
            return self._script(template, use)
        if "http" in template:
            return self._http(template, use)
        if "suspend" in template:
            return self._suspend(template, use)
        kinds = [each for each in ("resource", "data", "plugin") if each in template]
        if kinds:  # refused by name where its fields are sorted
            return Leaf({"step_type": "transform", "config": {"expression": "null"}})
        raise Malformed(use.place, "The template does nothing that is known here.")

    def _container(self, template: Mapping[str, Any], use: Use) -> Leaf:
        place = f"{use.place}.container"
        container = mapping(template["container"], place)
        words: list[Any] = [
            written(resolved(each, use.lookup, f"{place}.{part}[{at}]"))
            for part in ("command", "args")
            for at, each in enumerate(texts(container.get(part), f"{place}.{part}"))
        ]
        known = ENTRY_POINTS.get(str(container.get("image")))
        if not container.get("command") and known is not None:
            words = [*known, *words]
        elif not container.get("command") and (words or self._containers is Containers.PROCESS):
            self._table.refused(
                f"{place}.command", "command",
                "What the image runs by itself is not known here; write the command.",
            )  # fmt: skip
        leaf = self._job(template, container, words, use, place)
        if template.get("daemon") is True:
            self._serve(container, leaf, use, place)
        return leaf

    def _serve(self, container: Mapping[str, Any], leaf: Leaf, use: Use, place: str) -> None:
        """Make a service of a job: the step ends when it is healthy, the service with the run."""
        probe = mapping(container.get("readinessProbe"), f"{place}.readinessProbe")
        http = mapping(probe.get("httpGet"), f"{place}.readinessProbe.httpGet")
        ports = [mapping(each, place).get("containerPort")
                 for each in sequence(container.get("ports"), f"{place}.ports")]  # fmt: skip
        port = http.get("port", ports[0] if ports else None)
        if not isinstance(port, int) or isinstance(port, bool):
            self._table.refused(use.place, "daemon", "On which port it listens is not said.")
            return
        config = leaf.fields["config"]
        config.update({"job_type": "service", "keep_after": False})
        config["spec"]["port"] = port
        if http:
            config["spec"]["health"] = {"path": str(http.get("path") or "/")}
        url = cel_of(output_of(use.step, "url"))
        leaf.ip = Expr(f'{url}.split("://")[1].split("/")[0].split(":")[0]')
        leaf.result = None
        self._table.mapped(use.place, "daemon",
                           "A JOB of type service, which ends with the run.")  # fmt: skip

    def fetch(self, fetch: Fetch, step: str, place: str) -> tuple[dict[str, Any], Value]:
        """Return the fields of a step that fetches an artifact, and where it then is."""
        path = f"{self._root}/{TASK}/fetched"
        words: list[Any] = ["sh", "-c", fetch.script, "sh", written(fetch.address), path]
        if fetch.revision is not None:
            words.append(written(fetch.revision))
        outputs = {"artifact-fetched": Output(ARTIFACT, path, about={"name": "fetched"})}
        spec: dict[str, Any] = {"command": wrapped(words, outputs),
                                "mounts": [{"name": VOLUME, "path": "/artifacts"}]}  # fmt: skip
        if fetch.secrets:
            spec["secrets"] = [{"name": name, "env": env} for env, name in fetch.secrets.items()]
            self._table.mapped(
                place,
                "secrets",
                f"The project's secrets {', '.join(fetch.secrets.values())}, which have to be set.",
            )
        config: dict[str, Any] = {"job_type": "batch", "max_retries": 0, "spec": spec}
        if self._containers is Containers.DOCKER:
            config["deployment_type"], spec["image"] = "docker", fetch.image
        else:
            config["deployment_type"] = "process"
        self._table.mapped(
            place, f"{fetch.kind} artifact", "A JOB that fetches it into the volume."
        )
        value = Expr(f"{cel_of(output_of(step, 'artifact-fetched'))}.uri")
        return {"step_type": "job", "config": config}, value

    def _script(self, template: Mapping[str, Any], use: Use) -> Leaf:
        place = f"{use.place}.script"
        script = mapping(template["script"], place)
        source = text(script.get("source"), f"{place}.source")
        command = texts(script.get("command"), f"{place}.command") or ["sh"]
        value = resolved(source, use.lookup, f"{place}.source")
        if _is_plain_python(command, source) and not self._needs_job(template, script):
            self._table.mapped(
                place, "script", "A FUNCTION step: Python's standard library, no network."
            )
            config = {"code": FUNCTION, "inputs": {"source": written(value)},
                      "timeout_seconds": 3600}  # fmt: skip
            leaf = Leaf({"step_type": "function", "config": config})
            leaf.result = output_of(use.step, RESULT)
            return leaf
        words = ["sh", "-c", SCRIPT, "sh", written(value),
                 *(written(resolved(each, use.lookup, place)) for each in command)]  # fmt: skip
        return self._job(template, script, words, use, place)

    def _needs_job(self, template: Mapping[str, Any], script: Mapping[str, Any]) -> bool:
        outputs = template.get("outputs") or {}
        inputs = template.get("inputs") or {}
        return bool(
            any(script.get(name) for name in ("env", "envFrom", "volumeMounts", "resources"))
            or template.get("nodeSelector")
            or not isinstance(outputs, dict) or any(outputs.get(name) for name in
                                                    ("parameters", "artifacts"))
            or not isinstance(inputs, dict) or inputs.get("artifacts")
        )  # fmt: skip

    def _job(
        self,
        template: Mapping[str, Any],
        container: Mapping[str, Any],
        words: list[Any],
        use: Use,
        place: str,
    ) -> Leaf:
        handled = frozenset({"image", "command", "args", "source", "env", "envFrom", "resources",
                             "volumeMounts", "workingDir"})  # fmt: skip
        sort_fields(self._table, container, place, handled, CONTAINER_LEFT_OUT, {})
        spec: dict[str, Any] = {}
        config: dict[str, Any] = {"job_type": "batch", "max_retries": 0, "spec": spec}
        image = resolved(text(container.get("image"), f"{place}.image"), use.lookup, place)
        if self._containers is Containers.DOCKER:
            config["deployment_type"], spec["image"] = "docker", written(image)
            self._table.mapped(place, "container", "A JOB of its image, where containers run.")
        else:
            config["deployment_type"] = "process"
            self._table.left_out(f"{place}.image", "image",
                                 "A process of the machine itself, as asked.")  # fmt: skip
        env = self._pods.environment(container, config, use.lookup, place)
        leaf = Leaf({"step_type": "job", "config": config})
        before = self._inputs(template, use, env)
        outputs = self._outputs(template, use, leaf)
        if container.get("workingDir"):
            folder = resolved(scalar(container["workingDir"], place), use.lookup, place)
            env["WORKING_DIR"] = written(folder)
            before = [*before, 'mkdir -p "$WORKING_DIR" && cd "$WORKING_DIR" || exit 1\n']
            self._table.mapped(f"{place}.workingDir", "workingDir", "The wrapper changes to it.")
        if words:
            spec["command"] = wrapped(words, outputs, before)
        elif outputs.keys() - {RESULT} or before:
            self._table.refused(
                f"{place}.command",
                "command",
                "What the image runs by itself cannot be wrapped; write it.",
            )
        else:
            leaf.result = None
        if env:
            spec["env"] = env
        config.update(job_resources(
            mapping(container.get("resources"), f"{place}.resources"), f"{place}.resources",
            self._table,
        ))  # fmt: skip
        self._pods.mount(container, config, use.lookup, place)
        self._pods.place_job(template, config, use.lookup, use.place)
        if use.artifacts or leaf.artifacts:
            mounts = spec.setdefault("mounts", [])
            mounts.append({"name": VOLUME, "path": "/artifacts"})
        return leaf

    def _inputs(
        self, template: Mapping[str, Any], use: Use, env: dict[str, Any]
    ) -> list[str]:  # fmt: skip
        """Return the lines that put input artifacts where the command looks for them."""
        lines = []
        place = f"{use.place}.inputs.artifacts"
        inputs = mapping(template.get("inputs"), f"{use.place}.inputs")
        for at, raw in enumerate(sequence(inputs.get("artifacts"), place)):
            each = mapping(raw, f"{place}[{at}]")
            name = scalar(each.get("name"), f"{place}[{at}].name")
            if name not in use.artifacts:
                continue
            path = text(each.get("path"), f"{place}[{at}].path")
            value = use.artifacts[name]
            variable = f"ARTIFACT_{at}"
            is_raw = isinstance(value, Expr) and value.cel.startswith("raw:")
            if is_raw:
                assert isinstance(value, Expr)
                env[variable] = written(_raw_of(value))
                lines.append(stored(variable, path))
            else:
                env[variable] = written(value)
                lines.append(copied(f"${variable}", path,
                                    is_optional=bool(each.get("optional"))))  # fmt: skip
            self._table.mapped(f"{place}[{at}]", "input artifact",
                               f"Copied from the volume {VOLUME}.")  # fmt: skip
        return lines

    def _outputs(self, template: Mapping[str, Any], use: Use, leaf: Leaf) -> dict[str, Output]:
        found: dict[str, Output] = {}
        given = mapping(template.get("outputs"), f"{use.place}.outputs")
        place = f"{use.place}.outputs.parameters"
        for at, raw in enumerate(sequence(given.get("parameters"), place)):
            each = mapping(raw, f"{place}[{at}]")
            name = scalar(each.get("name"), f"{place}[{at}].name")
            source = mapping(each.get("valueFrom"), f"{place}[{at}].valueFrom")
            if "path" not in source:
                kinds = ", ".join(source) or "nothing"
                self._table.refused(
                    f"{place}[{at}]",
                    "output parameter",
                    f"A container gives it from a path, not from {kinds}.",
                )
                continue
            default = source.get("default")
            path = text(source["path"], f"{place}[{at}].path")
            found[name] = Output(
                TEXT, path, scalar(default, place) if default is not None else None
            )  # fmt: skip
            leaf.outputs[name] = output_of(use.step, name)
            self._table.mapped(f"{place}[{at}]", "output parameter", "An output of the job.")
        place = f"{use.place}.outputs.artifacts"
        for at, raw in enumerate(sequence(given.get("artifacts"), place)):
            self._output_artifact(
                mapping(raw, f"{place}[{at}]"), f"{place}[{at}]", use, leaf, found
            )
        if use.name in self._read and RESULT not in found:
            found[RESULT] = Output(STDOUT)
            leaf.result = output_of(use.step, RESULT)
        return found

    def _output_artifact(
        self,
        each: Mapping[str, Any],
        place: str,
        use: Use,
        leaf: Leaf,
        found: dict[str, Output],
    ) -> None:
        name = scalar(each.get("name"), f"{place}.name")
        for part, value in each.items():
            if part in (
                "s3",
                "gcs",
                "azure",
                "oss",
                "hdfs",
                "http",
                "git",
                "artifactory",
                "plugin",
            ):
                self._table.refused(
                    f"{place}.{part}",
                    "output artifact",
                    "Nothing here stores files elsewhere; do it in the command.",
                )
            elif part in ("archive", "artifactGC", "archiveLogs"):
                self._table.left_out(f"{place}.{part}", part,
                                     "The files lie in a volume as they are.")  # fmt: skip
            elif part not in ("name", "path", "optional", "globalName", "mode", "from"):
                self._table.refused(f"{place}.{part}", part, f"{shown(value)} is not known here.")
        key = f"artifact-{word_of(name)}"
        found[key] = Output(
            ARTIFACT, f"{self._root}/{TASK}/{word_of(name)}", "" if each.get("optional") else None,
            {"name": name}, text(each.get("path"), f"{place}.path"),
        )  # fmt: skip
        leaf.artifacts[name] = Expr(f"{cel_of(output_of(use.step, key))}.uri")
        self._table.mapped(place, "output artifact", f"Files in the volume {VOLUME}.")

    def _http(self, template: Mapping[str, Any], use: Use) -> Leaf:
        place = f"{use.place}.http"
        http = mapping(template["http"], place)

        def value(name: str) -> Any:
            return written(resolved(scalar(http.get(name), f"{place}.{name}"), use.lookup, place))

        config: dict[str, Any] = {"url": value("url"), "method": http.get("method") or "GET",
                                  "retry_count": 0}  # fmt: skip
        text(http.get("url"), f"{place}.url")
        if http.get("body"):
            config["body"] = value("body")
        headers: dict[str, Any] = {}
        for at, raw in enumerate(sequence(http.get("headers"), f"{place}.headers")):
            each = mapping(raw, f"{place}.headers[{at}]")
            name = text(each.get("name"), f"{place}.headers[{at}].name")
            if "valueFrom" in each:
                headers[name] = {"secret": self._pods.secret(each["valueFrom"], place)}
            else:
                plain = scalar(each.get("value"), f"{place}.headers[{at}].value")
                headers[name] = written(resolved(plain, use.lookup, place))
        if headers:
            config["headers"] = headers
        if http.get("timeoutSeconds"):
            config["timeout_seconds"] = float(http["timeoutSeconds"])
        condition, check = http.get("successCondition"), ""
        if condition is not None:
            found = _STATUS.fullmatch(str(condition))
            held = _BODY.fullmatch(str(condition))
            if held is not None:
                check = f"string({cel_of(output_of(use.step, 'body'))}).contains({quoted(held[2])})"
                self._table.mapped(
                    f"{place}.successCondition",
                    "successCondition",
                    "A step after it that fails if the body lacks the text.",
                )
            elif found is None:
                self._table.refused(
                    f"{place}.successCondition", "successCondition",
                    "Only response.statusCode == N and response.body contains T are understood.",
                )  # fmt: skip
            else:
                config["success_codes"] = [int(found[1])]
                self._table.mapped(f"{place}.successCondition", "successCondition",
                                   "success_codes")  # fmt: skip
        for name in http:
            if name not in ("url", "method", "body", "headers", "timeoutSeconds",
                            "successCondition"):  # fmt: skip
                self._table.refused(f"{place}.{name}", name, "An API_CALL has no such field.")
        self._table.mapped(place, "http", "An API_CALL.")
        leaf = Leaf({"step_type": "api_call", "config": config})
        leaf.result = output_of(use.step, "body")
        leaf.check = check
        return leaf

    def _suspend(self, template: Mapping[str, Any], use: Use) -> Leaf:
        place = f"{use.place}.suspend"
        suspend = mapping(template.get("suspend"), place)
        duration = suspend.get("duration")
        if duration is not None:
            plain = resolved(scalar(duration, place), use.lookup, place)
            seconds = find_seconds(plain.value) if isinstance(plain, Const) else None
            if seconds is None and isinstance(plain, Const):
                raise Malformed(f"{place}.duration", f"{shown(duration)} is no duration.")
            config: dict[str, Any] = {"duration_seconds": seconds}
            if isinstance(plain, Expr):
                config = {"duration_seconds": written(Expr(f"double({plain.cel})"))}
            self._table.mapped(place, "suspend", "A WAIT for that time.")
        else:
            config = {"wait_for_event": f"resume-{use.step}", "timeout_seconds": 31_536_000.0}
            self._table.mapped(place, "suspend", "A WAIT for an event that is sent to the run.")
        leaf = Leaf({"step_type": "wait", "config": config})
        outputs = mapping(template.get("outputs"), f"{use.place}.outputs")
        for at, raw in enumerate(sequence(outputs.get("parameters"), f"{use.place}.outputs")):
            each = mapping(raw, f"{use.place}.outputs.parameters[{at}]")
            name = scalar(each.get("name"), f"{use.place}.outputs.parameters[{at}].name")
            source = mapping(each.get("valueFrom"), f"{use.place}.outputs.parameters[{at}]")
            reached = cel_of(output_of(use.step, name))
            if "default" in source:
                other = json.dumps(scalar(source["default"], place))
                leaf.outputs[name] = Expr(f"({reached} | default({other}))")
            else:
                leaf.outputs[name] = output_of(use.step, name)
        return leaf


def raw(value: Value) -> Expr:
    """Return the mark of an artifact whose content is text that is known here."""
    return Expr(f"raw:{cel_of(value)}")


def _raw_of(value: Expr) -> Value:
    return Expr(value.cel.removeprefix("raw:"))


def _is_plain_python(command: list[str], source: str) -> bool:
    """Return whether a script is Python that needs nothing but its standard library."""
    if len(command) != 1 or not re.fullmatch(r"(.*/)?python3?(\.\d+)?", command[0]):
        return False
    try:
        tree = ast.parse(without_tags(source, "0"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "."]
        elif isinstance(node, ast.Name) and node.id in ("open", "input"):
            return False
        for name in names:
            first = name.partition(".")[0]
            if first not in sys.stdlib_module_names or first in _NO_FUNCTION:
                return False
    return True
