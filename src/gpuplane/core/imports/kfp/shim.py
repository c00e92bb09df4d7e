"""What a lightweight component finds in place of the `kfp` package, as source of a FUNCTION step.

A component's own source imports `kfp`, `kfp.dsl` and `typing`. `FRONT` makes the first two of them,
`BACK` calls the function with what the step got and answers what it gave. Only the part that runs
inside a task is there; compiling pipelines is not. The interface is that of kfp 2.x
(kfp.dsl.executor, kfp.dsl.types.artifact_types), the code is our own.

Artifacts travel inside the outputs of steps: an object with `name`, `type`, `uri`, `metadata` and
`files`, the content by relative path, base64. So they are bounded by what a result may hold.
"""

FRONT = """\
import base64 as _base64, inspect as _inspect, json as _json, os as _os, sys as _sys
import types as _types, typing as _typing

_PREFIXES = {"gs://": "/gcs/", "minio://": "/minio/", "s3://": "/s3/", "oci://": "/oci/"}


class Artifact:
    schema_title, schema_version = "system.Artifact", "0.0.1"

    def __init__(self, name=None, uri=None, metadata=None):
        self.name, self.uri, self.metadata = name or "", uri or "", metadata or {}
        self.custom_path = ""

    @property
    def path(self):
        if self.custom_path:
            return self.custom_path
        for prefix, place in _PREFIXES.items():
            if self.uri.startswith(prefix):
                return place + self.uri[len(prefix):]
        return self.uri

    @path.setter
    def path(self, path):
        self.uri = path

    def set_path(self, path):
        self.custom_path = path


class Model(Artifact):
    schema_title = "system.Model"

    @property
    def framework(self):
        return self.metadata.get("framework", "")

    @framework.setter
    def framework(self, value):
        self.metadata["framework"] = value


class Dataset(Artifact):
    schema_title = "system.Dataset"


class HTML(Artifact):
    schema_title = "system.HTML"


class Markdown(Artifact):
    schema_title = "system.Markdown"


class Metrics(Artifact):
    schema_title = "system.Metrics"

    def log_metric(self, metric, value):
        self.metadata[metric] = value


class ClassificationMetrics(Artifact):
    schema_title = "system.ClassificationMetrics"

    def log_roc_data_point(self, fpr, tpr, threshold):
        points = self.metadata.setdefault("confidenceMetrics", [])
        points.append({"confidenceThreshold": threshold, "falsePositiveRate": fpr, "recall": tpr})

    def log_roc_curve(self, fpr, tpr, threshold):
        if not len(fpr) == len(tpr) == len(threshold):
            raise ValueError("fpr, tpr and threshold have different lengths")
        self.metadata["confidenceMetrics"] = [
            {"confidenceThreshold": t, "falsePositiveRate": f, "recall": r}
            for f, r, t in zip(fpr, tpr, threshold)
        ]

    def set_confusion_matrix_categories(self, categories):
        self._matrix = [[0] * len(categories) for _ in categories]
        self._names = list(categories)
        self._store()

    def log_confusion_matrix_row(self, row_category, row):
        self._matrix[self._names.index(row_category)] = list(row)
        self._store()

    def log_confusion_matrix_cell(self, row_category, col_category, value):
        row = self._matrix[self._names.index(row_category)]
        row[self._names.index(col_category)] = value
        self._store()

    def log_confusion_matrix(self, categories, matrix):
        self.set_confusion_matrix_categories(categories)
        if len(matrix) != len(categories) or any(len(r) != len(categories) for r in matrix):
            raise ValueError("the matrix has another size than its categories")
        self._matrix = [list(row) for row in matrix]
        self._store()

    def _store(self):
        self.metadata["confusionMatrix"] = {
            "annotationSpecs": [{"displayName": name} for name in self._names],
            "rows": [{"row": row} for row in self._matrix],
        }


class SlicedClassificationMetrics(Artifact):
    schema_title = "system.SlicedClassificationMetrics"


class _Mark:
    def __init__(self, kind):
        self.kind = kind

    def __getitem__(self, what):
        return _typing.Annotated[what, self.kind]


class _Path:
    def __init__(self, type=None):
        self.type = type


class InputPath(_Path):
    pass


class OutputPath(_Path):
    pass


class PipelineTaskFinalStatus:
    def __init__(self, state=None, pipeline_job_resource_name=None, pipeline_task_name=None,
                 error_code=None, error_message=None):
        self.state, self.error_code, self.error_message = state, error_code, error_message
        self.pipeline_job_resource_name = pipeline_job_resource_name
        self.pipeline_task_name = pipeline_task_name


class TaskConfig:
    def __init__(self, **values):
        self.__dict__.update(values)


class TaskConfigField:
    pass


class TaskConfigPassthrough:
    def __init__(self, **values):
        self.__dict__.update(values)


def _same(function=None, **_):
    return function if function is not None else _same


def get_uri(suffix="Output"):
    return _os.path.join(_os.getcwd(), "outputs", suffix)


_dsl = _types.ModuleType("kfp.dsl")
_TYPES = (Artifact, Model, Dataset, HTML, Markdown, Metrics, ClassificationMetrics,
          SlicedClassificationMetrics)
for _each in (*_TYPES, InputPath, OutputPath, PipelineTaskFinalStatus, TaskConfig,
              TaskConfigField, TaskConfigPassthrough, get_uri):
    setattr(_dsl, _each.__name__, _each)
_dsl.Input, _dsl.Output, _dsl.EmbeddedInput = _Mark("input"), _Mark("output"), _Mark("embedded")
for _each in ("component", "container_component", "pipeline", "notebook_component"):
    setattr(_dsl, _each, _same)
_dsl.PIPELINE_TASK_NAME_PLACEHOLDER = "{{$.pipeline_task_name}}"
_dsl.PIPELINE_JOB_NAME_PLACEHOLDER = "{{$.pipeline_job_name}}"
_dsl.PIPELINE_JOB_ID_PLACEHOLDER = "{{$.pipeline_job_uuid}}"
_dsl.__all__ = [_name for _name in vars(_dsl) if not _name.startswith("_")]
_kfp = _types.ModuleType("kfp")
_kfp.dsl, _kfp.__version__, _kfp.__path__ = _dsl, "2", []
_sys.modules["kfp"], _sys.modules["kfp.dsl"] = _kfp, _dsl
for _name in [_each for _each in list(globals()) if not _each.startswith("_")]:
    del globals()[_name]
"""

BACK = '''\


def _class_of(title):
    return {each.schema_title: each for each in _TYPES}.get(title, _dsl.Artifact)


def _received(name, value, at):
    """Make the artifact of another step, its files put down here."""
    if not isinstance(value, dict):
        return None
    made = _class_of(value.get("type"))(value.get("name"), value.get("uri"),
                                        dict(value.get("metadata") or {}))
    files = value.get("files")
    if files is not None:
        place = _os.path.join(_os.getcwd(), "inputs", at)
        for path, content in files.items():
            target = _os.path.join(place, path) if path else place
            _os.makedirs(_os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as file:
                file.write(_base64.b64decode(content))
        made.uri = place
    return made


def _sent(artifact, name):
    """Take an artifact apart, with the files that lie where it points."""
    path, files = artifact.path, {}
    if path and _os.path.isfile(path):
        files[""] = path
    elif path and _os.path.isdir(path):
        for folder, _, names in _os.walk(path):
            for each in names:
                whole = _os.path.join(folder, each)
                files[_os.path.relpath(whole, path)] = whole
    is_here = _os.path.isabs(artifact.uri)
    uri = _os.path.relpath(artifact.uri) if is_here else artifact.uri
    told = {"name": artifact.name or name, "type": artifact.schema_title, "uri": uri,
            "metadata": artifact.metadata}
    if files or is_here:
        told["files"] = {
            each: _base64.b64encode(open(whole, "rb").read()).decode()
            for each, whole in sorted(files.items())
        }
    return told


def _flat(artifacts):
    """Return the artifacts of loops within loops as one list."""
    return [one for each in artifacts
            for one in (_flat(each) if isinstance(each, list) else [each])]


def _typed(value, kind):
    if value is None:
        return None
    if kind == "NUMBER_INTEGER":
        return int(value)
    if kind == "NUMBER_DOUBLE":
        return float(value)
    if kind == "BOOLEAN":
        return value if isinstance(value, bool) else str(value).lower() == "true"
    if kind == "STRING":
        return value if isinstance(value, str) else _json.dumps(value)
    if isinstance(value, str) and kind in ("LIST", "STRUCT"):
        return _json.loads(value)
    return value


def _read(path, kind):
    with open(path) as file:
        text = file.read()
    return text if kind == "STRING" else _typed(text.strip(), kind)


def _returned(name, value, outputs, made):
    kind = _SPEC["parameters"].get(name)
    if kind is not None:
        accepted = {"NUMBER_INTEGER": int, "NUMBER_DOUBLE": (int, float), "BOOLEAN": bool,
                    "STRING": str, "LIST": (list, tuple), "STRUCT": dict}.get(kind, object)
        if not isinstance(value, accepted):
            raise ValueError(f"{name} is a {type(value).__name__}; {kind} is wanted")
        outputs[name] = value
    elif isinstance(value, _dsl.Artifact):
        made[name] = value
    elif name in made:
        with open(made[name].path, "w") as file:
            file.write(str(value))


def _prepared(inputs):
    """Return the arguments, the artifacts to be made, and the files of output parameters."""
    arguments, made, paths = {}, {}, {}
    outside = _os.path.join(_os.getcwd(), "outputs")
    _os.makedirs(outside, exist_ok=True)
    for name, title in _SPEC["artifacts"].items():
        made[name] = _class_of(title)(name, _os.path.join(outside, name))
    for name, parameter in _inspect.signature(_function).parameters.items():
        short = name
        for suffix in ("_path", "_file"):
            if name.endswith(suffix) and name not in {**_SPEC["inputs"], **made}:
                short = name[: -len(suffix)]
        note = parameter.annotation
        if name in _SPEC["parameters"] and name not in inputs:
            paths[name] = arguments[name] = _os.path.join(outside, name)
        elif short in made:
            is_path = isinstance(note, _Path)
            arguments[name] = made[short].path if is_path else made[short]
        elif _SPEC["inputs"].get(short) == "artifact" and inputs.get(short) is not None:
            found = _received(short, inputs[short], short)
            arguments[name] = found.path if isinstance(note, _Path) else found
        elif _SPEC["inputs"].get(short) == "artifacts" and inputs.get(short) is not None:
            arguments[name] = [_received(short, each, f"{short}/{at}")
                               for at, each in enumerate(_flat(inputs[short]))]
        elif getattr(note, "__metadata__", ()) == ("embedded",):
            known = globals()
            arguments[name] = (note.__origin__ if isinstance(note.__origin__, type)
                               else _dsl.Artifact)()
            arguments[name].path = known.get("__KFP_EMBEDDED_ASSET_FILE") or known.get(
                "__KFP_EMBEDDED_ASSET_DIR")
        elif note is _dsl.PipelineTaskFinalStatus:
            told = inputs.get(name) or {}
            error = told.get("error") or {}
            arguments[name] = _dsl.PipelineTaskFinalStatus(
                told.get("state"), told.get("pipelineJobResourceName"),
                told.get("pipelineTaskName"), error.get("code"), error.get("message"))
        elif inputs.get(name) is not None:
            arguments[name] = _typed(inputs[name], _SPEC["inputs"].get(name))
        elif _SPEC["inputs"].get(short) in ("artifact", "artifacts"):
            arguments[name] = None
    return arguments, made, paths


def main(**inputs):
    arguments, made, paths = _prepared(inputs)
    value, outputs = _function(**arguments), {}
    if value is not None:
        note = _inspect.signature(_function).return_annotation
        names = getattr(note, "_fields", None)
        if names is None:
            _returned("Output", value, outputs, made)
        else:
            for at, name in enumerate(names):
                one = value[at] if type(value) is tuple else getattr(value, name)
                _returned(name, one, outputs, made)
    for name, path in paths.items():
        if _os.path.exists(path):
            outputs[name] = _read(path, _SPEC["parameters"][name])
    outputs.update({name: _sent(each, name) for name, each in made.items()})
    return outputs
'''
