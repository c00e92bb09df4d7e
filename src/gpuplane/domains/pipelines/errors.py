"""What can be wrong with a request about pipelines."""

from gpuplane.kit.errors import Conflict, Forbidden, NotFound, TooLarge, Unprocessable


class PipelineNotFound(NotFound):
    """No pipeline of that name or id, or not the caller's to see."""

    code = "pipeline_not_found"


class VersionNotFound(NotFound):
    """The pipeline has no version of that number."""

    code = "pipeline_version_not_found"


class BadPipeline(Unprocessable):
    """The document cannot be meant; `errors` names every place."""

    code = "invalid_pipeline"


class ImportRefused(Unprocessable):
    """A file of another system does what no pipeline does; `errors` names every feature."""

    code = "import_refused"


class PipelineTooLarge(TooLarge):
    """The document is over a named limit."""

    code = "pipeline_too_large"


class BadParameters(Unprocessable):
    """The parameters of a run do not fit the pipeline's."""

    code = "invalid_parameters"


class PipelineExists(Conflict):
    """The project has a pipeline of that name."""

    code = "pipeline_exists"


class PipelineInUse(Conflict):
    """Runs of the pipeline are under way."""

    code = "pipeline_in_use"


class StalePipeline(Conflict):
    """The pipeline was changed by somebody else meanwhile."""

    code = "stale_version"


class PipelineArchived(Conflict):
    """An archived pipeline starts no runs."""

    code = "pipeline_archived"


class RunExists(Conflict):
    """Another run of the project has the deduplication id."""

    code = "run_exists"


class BadSignature(Forbidden):
    """A webhook's call that its secret's holder did not sign, or not now."""

    code = "bad_signature"
