"""The pipeline document: its models, how it is read and checked, and how it becomes a run."""

from gpuplane.domains.pipelines.documents.checking import check_pipeline
from gpuplane.domains.pipelines.documents.configs import (
    ApiCallConfig,
    ConditionConfig,
    FunctionConfig,
    JobConfig,
    LoopConfig,
    NotificationConfig,
    ParallelConfig,
    TransformConfig,
    WaitConfig,
    config_of,
)
from gpuplane.domains.pipelines.documents.models import (
    Parameter,
    Pipeline,
    PipelineSpec,
    Step,
    StepType,
)
from gpuplane.domains.pipelines.documents.reading import dump_yaml, read_documents, read_pipeline

__all__ = [
    "ApiCallConfig",
    "ConditionConfig",
    "FunctionConfig",
    "JobConfig",
    "LoopConfig",
    "NotificationConfig",
    "ParallelConfig",
    "Parameter",
    "Pipeline",
    "PipelineSpec",
    "Step",
    "StepType",
    "TransformConfig",
    "WaitConfig",
    "check_pipeline",
    "config_of",
    "dump_yaml",
    "read_documents",
    "read_pipeline",
]
