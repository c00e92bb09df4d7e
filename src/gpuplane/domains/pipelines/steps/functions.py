"""FUNCTION: user Python in a child process, its output kept beside the step."""

from gpuplane.core.runs.plans import Answer, Completed, Failed, StepCall
from gpuplane.domains.pipelines import service
from gpuplane.domains.pipelines.documents.configs import FunctionConfig
from gpuplane.domains.pipelines.steps.names import rendered
from gpuplane.domains.pipelines.steps.tools import StepTools
from gpuplane.domains.pipelines.steps.transforming import as_outputs
from gpuplane.kit.pythons.limits import PythonLimits, PythonWord
from gpuplane.kit.pythons.running import run_python

AGAIN = frozenset({PythonWord.CRASHED})
"""How a function may end that another try may mend; what it raised itself is retried too."""
FINAL = frozenset(
    {
        PythonWord.BAD_SOURCE,
        PythonWord.INPUT_NOT_JSON,
        PythonWord.INPUT_TOO_LARGE,
        PythonWord.NOT_ISOLATED,
        PythonWord.PROCESS_REFUSED,
        PythonWord.NETWORK_REFUSED,
        PythonWord.RESULT_NOT_JSON,
        PythonWord.RESULT_TOO_LARGE,
        PythonWord.NO_RESULT,
    }
)


class Functions:
    """The handler of FUNCTION."""

    def __init__(self, tools: StepTools) -> None:
        self._tools = tools

    async def __call__(self, call: StepCall) -> Answer:
        """Answer with what the user's function returned."""
        config = rendered(call, FunctionConfig)
        if config.network and not self._tools.function_network:
            return Failed(
                "NetworkNotGranted",
                "The server grants no network to functions. Set GPUPLANE_PIPELINES_NETWORK.",
                is_final=True,
            )
        inputs = config.inputs
        if not isinstance(inputs, dict):
            return Failed("InvalidConfig", "config.inputs: This must be an object.", is_final=True)
        seconds = config.timeout_seconds
        limits = PythonLimits(
            wall_s=seconds,
            cpu_s=max(round(seconds), 1),
            memory_mib=config.memory_mb,
            network=config.network,
        )
        source = config.code
        if config.entrypoint != "main":
            source = f"{source}\nmain = {config.entrypoint}\n"
        result = await run_python(source, inputs, limits)
        if result.output:
            await self._tools.database.write(
                "pipelines.keep_log",
                lambda s: service.keep_log(s, call.step_id, call.attempt, result.output, call.now),
            )
        detail = {"duration_ms": result.duration_ms, "isolation": dict(result.isolation)}
        if result.word is PythonWord.COMPLETED:
            return Completed(as_outputs(result.result))
        return Failed(
            str(result.word), result.message, is_final=result.word in FINAL, detail=detail
        )
