"""What Argo's variables come to: `inputs.parameters.x`, `steps.a.outputs.result` and the like."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuplane.core.imports.naming import word_of
from gpuplane.core.imports.results import Malformed
from gpuplane.core.imports.values import Const, Expr, Value, cel_of, member

NOT_KNOWN = "{{%s}} is not known here."


@dataclass(slots=True)
class Done:
    """What a call of a template came to, as its siblings see it.

    Args:
        ids: Its steps.
        status: Its status as CEL; empty where siblings run only if it succeeded.
        guard: When it runs, as CEL; empty if always.
        is_list: Whether it is a loop: then outputs are lists.
        parameters: Of a loop the outputs of each iteration, as a list of objects.
    """

    ids: list[str]
    outputs: dict[str, Value] = field(default_factory=dict)
    artifacts: dict[str, Value] = field(default_factory=dict)
    result: Value | None = None
    status: str = ""
    guard: str = ""
    is_list: bool = False
    failed: str = ""
    ip: Value | None = None
    parameters: Value | None = None


@dataclass(slots=True)
class Workflow:
    """What is the same everywhere in one workflow.

    Args:
        outputs: Parameters with a global name, as they become known.
        failed: CEL of what failed, where that can be asked.
        duration: CEL of how long it took, where that can be asked.
        asked: Parameters that are read and not declared; whoever starts it has to give them.
    """

    name: str
    parameters: Mapping[str, Value]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    outputs: dict[str, Value] = field(default_factory=dict)
    artifacts: dict[str, Value] = field(default_factory=dict)
    failed: str = ""
    duration: str = ""
    asked: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Frame:
    """What one use of a template knows.

    Args:
        inputs: Its input parameters.
        paths: Where a template's artifacts and output parameters lie: `inputs.artifacts.x`,
            `outputs.parameters.x`, `outputs.artifacts.x`.
        siblings: Calls before this one, by name.
        item: The item of the loop around it.
        artifacts: Where its input artifacts are.
    """

    workflow: Workflow
    inputs: Mapping[str, Value] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)
    siblings: Mapping[str, Done] = field(default_factory=dict)
    item: Value | None = None
    step: str = ""
    artifacts: Mapping[str, Value] = field(default_factory=dict)

    def any(self, name: str) -> Value:
        """Return a variable's value or an artifact's place, whichever has the name.

        Raises:
            Malformed: If there is none of that name.
        """
        return self.artifact(name) if ".outputs.artifacts." in name else self(name)

    def __call__(self, name: str) -> Value:
        """Return the value of a variable.

        Raises:
            Malformed: If there is none of that name.
        """
        root, _, rest = name.partition(".")
        if root == "inputs" and rest.startswith("parameters."):
            key = rest.removeprefix("parameters.")
            if key in self.inputs:
                return self.inputs[key]
        elif root in ("steps", "tasks"):
            found = self._sibling(rest)
            if found is not None:
                return found
        elif root == "workflow":
            return self._workflow(rest, name)
        elif root == "item" and self.item is not None:
            return self._item(rest)
        elif root in ("pod", "node") and rest == "name":
            return Expr(f'run.id + "-{self.step}"')
        elif name.endswith(".path") and name.removesuffix(".path") in self.paths:
            return Const(self.paths[name.removesuffix(".path")])
        raise Malformed("", NOT_KNOWN % name)

    def artifact(self, name: str) -> Value:
        """Return the path of an artifact that another step made.

        Raises:
            Malformed: If there is none of that name.
        """
        root, _, rest = name.partition(".")
        if root in ("steps", "tasks"):
            step, _, key = rest.partition(".outputs.artifacts.")
            found = self.siblings.get(step)
            if found is not None and key in found.artifacts:
                return found.artifacts[key]
        if root == "inputs" and rest.removeprefix("artifacts.") in self.artifacts:
            return self.artifacts[rest.removeprefix("artifacts.")]
        if name.startswith("workflow.outputs.artifacts."):
            key = name.removeprefix("workflow.outputs.artifacts.")
            if key in self.workflow.artifacts:
                return self.workflow.artifacts[key]
        raise Malformed("", NOT_KNOWN % name)

    def _item(self, rest: str) -> Value:
        assert self.item is not None
        if isinstance(self.item, Const):
            return self.item
        cel = self.item.cel
        if rest:
            return Expr(f"string({cel}{member(rest)})")
        return Expr(f"string({cel})")

    def _sibling(self, rest: str) -> Value | None:
        step, _, part = rest.partition(".")
        found = self.siblings.get(step)
        if found is None:
            return None
        if part == "outputs.result":
            return found.result
        if part == "outputs.parameters":
            return found.parameters
        if part.startswith("outputs.parameters."):
            return found.outputs.get(part.removeprefix("outputs.parameters."))
        if part == "status":
            return Expr(found.status) if found.status else Const("Succeeded")
        if part == "ip":
            return found.ip
        if part in ("id", "name"):
            return Const(found.ids[-1] if found.ids else step)
        return None

    def _workflow(self, rest: str, name: str) -> Value:
        workflow = self.workflow
        plain: dict[str, Value] = {
            "name": Expr(f'"{workflow.name}-" + run.id'),
            "uid": Expr("run.id"),
            "namespace": Const("default"),
            "scheduledTime": Expr("string(run.started_at)"),
            "creationTimestamp": Expr("string(run.started_at)"),
            "creationTimestamp.RFC3339": Expr("string(run.started_at)"),
            "mainEntrypoint": Const("main"),
            "serviceAccountName": Const("default"),
        }
        if rest in plain:
            return plain[rest]
        if rest.startswith("parameters."):
            key = rest.removeprefix("parameters.")
            if key not in workflow.parameters:
                workflow.asked.add(key)
                return Expr(f"params{member(word_of(key))}")
            return workflow.parameters[key]
        if rest == "parameters":
            pairs = ", ".join(f'{{ "name": "{key}", "value": {cel_of(each)} }}'
                              for key, each in workflow.parameters.items())  # fmt: skip
            return Expr(f"json.encode([{pairs}])")
        for kind, values in (("labels.", workflow.labels), ("annotations.", workflow.annotations)):
            if rest.startswith(kind) and rest.removeprefix(kind) in values:
                return Const(values[rest.removeprefix(kind)])
        if rest.startswith("outputs.parameters."):
            key = rest.removeprefix("outputs.parameters.")
            if key in workflow.outputs:
                return workflow.outputs[key]
        if workflow.failed and rest == "status":
            return Expr(f'size({workflow.failed}) == 0 ? "Succeeded" : "Failed"')
        if workflow.duration and rest == "duration":
            return Expr(workflow.duration)
        if workflow.failed and rest == "failures":
            return Expr(f"json.encode({workflow.failed})")
        raise Malformed("", NOT_KNOWN % name)
