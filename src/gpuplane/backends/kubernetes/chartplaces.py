"""Where the chart of a job is: the server's folder, the job's working directory, a repository.

Owns which places are taken. Blocking, but small: paths and one archive.
"""

import contextlib
import re
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuplane.backends.interface import AttemptPlan
from gpuplane.backends.kubernetes.manifests.chartrules import refusal
from gpuplane.core.addresses import is_below_any
from gpuplane.core.workloads import ChartRequest
from gpuplane.kube.helm import Chart

MAX_CHART_BYTES = 4 << 20
"""Of a chart in a working directory, unpacked; a release of more would not fit its Secret."""
MAX_CHART_FILES = 2_000

_WORD = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_VERSION = re.compile(r"[0-9A-Za-z.+-]{0,64}")


@dataclass(frozen=True, slots=True)
class ChartTools:
    """What jobs with charts need on this server.

    Args:
        helm: Path or name of the binary; empty refuses charts.
        folder: Charts as folders or `<name>-<version>.tgz`; empty for none.
        sources: Beginnings of repository and `oci://` addresses that charts may come from.
        timeout_s: How long one operation of Helm may take, its hooks among it.
        wait_s: How long a start waits for it before it asks again at the next turn.
        memory_mib: What rendering one chart may take of this server.
    """

    helm: str = ""
    folder: str = ""
    sources: tuple[str, ...] = ()
    timeout_s: float = 300.0
    wait_s: float = 3.0
    memory_mib: int = 1024


@contextlib.contextmanager
def find_chart(tools: ChartTools, plan: AttemptPlan) -> Iterator[Chart]:
    """Yield where the chart of a job is, for as long as it is there.

    Raises:
        BackendError: If it is nowhere, or in a place that charts may not come from.
    """
    asked = plan.execution.chart
    if asked is None:
        raise refusal("the job names no chart", "Give its name in spec.chart.name.")
    if asked.name.startswith("./"):
        with _unpacked(plan, asked) as folder:
            yield Chart(str(folder))
    elif asked.repo or asked.name.startswith("oci://"):
        yield _remote(tools, asked)
    else:
        yield _local(tools, asked)


def _remote(tools: ChartTools, asked: ChartRequest) -> Chart:
    address = asked.repo or asked.name
    if not is_below_any(address, tools.sources):
        known = ", ".join(tools.sources) or "none"
        raise refusal(
            f"charts may not come from {address}; places they may come from: {known}",
            "Have an administrator add it to GPUPLANE_CLUSTERS_CHART_SOURCES.",
            "spec.chart.repo" if asked.repo else "spec.chart.name",
        )
    if not asked.version:
        raise refusal("a chart of the network needs its version", "Name it.", "spec.chart.version")
    if asked.repo:
        # `qdrant/qdrant` is how `helm repo add` has it: the address says the first half.
        return Chart(asked.name.rpartition("/")[2], asked.version, asked.repo)
    return Chart(asked.name, asked.version)


def _local(tools: ChartTools, asked: ChartRequest) -> Chart:
    if not _WORD.fullmatch(asked.name) or not _VERSION.fullmatch(asked.version):
        raise refusal(f"{asked.name!r} is no name of a chart", "Give a word.", "spec.chart.name")
    found = find_own(tools.folder, asked.name, asked.version)
    if found is not None:
        return Chart(str(found))
    called = f"{asked.name} {asked.version}".strip()
    raise refusal(
        f"this server has no chart {called} of its own",
        "Name its repository in spec.chart.repo, or have an administrator put it into the folder"
        " GPUPLANE_CLUSTERS_CHARTS.",
        "spec.chart.name",
    )


def find_own(folder: str, name: str, version: str) -> Path | None:
    """Return where a chart of this server is: a folder, or `<name>-<version>.tgz`; None for none.

    Args:
        folder: Of the charts; empty where the server has none.
        name: A word; anything else is nowhere.
        version: Empty for the folder of that name.
    """
    if not folder or not _WORD.fullmatch(name) or not _VERSION.fullmatch(version):
        return None
    if version:
        found = Path(folder, f"{name}-{version}.tgz")
        return found if found.is_file() else None
    found = Path(folder, name)
    return found if (found / "Chart.yaml").is_file() else None


@contextlib.contextmanager
def _unpacked(plan: AttemptPlan, asked: ChartRequest) -> Iterator[Path]:
    if plan.workspace_archive is None:
        raise refusal(
            f"{asked.name} lies in a working directory, and the job has none",
            "Send it with --workdir, or name a chart.",
            "spec.workspace_digest",
        )
    inside = asked.name.removeprefix("./").strip("/")
    with tempfile.TemporaryDirectory(prefix="gpuplane-chart-") as place:
        size = count = 0
        try:
            with tarfile.open(plan.workspace_archive, "r:gz") as archive:
                for member in archive:
                    name = member.name.removeprefix("./")
                    if inside and name != inside and not name.startswith(f"{inside}/"):
                        continue
                    # A link could lead out of the chart: Helm follows those.
                    if not (member.isfile() or member.isdir()):
                        continue
                    size, count = size + member.size, count + 1
                    if size > MAX_CHART_BYTES or count > MAX_CHART_FILES:
                        raise refusal(
                            f"the chart is larger than {MAX_CHART_BYTES >> 20} MiB or has more"
                            f" than {MAX_CHART_FILES} files",
                            "Leave out what is no part of it by .gpuplaneignore.",
                        )
                    archive.extract(member, place, filter="data")
        except (tarfile.TarError, OSError, EOFError) as error:
            raise refusal(
                f"the working directory cannot be read: {error}", "Send it again."
            ) from error
        folder = Path(place, inside)
        if not (folder / "Chart.yaml").is_file():
            raise refusal(
                f"{asked.name} of the working directory holds no Chart.yaml",
                "Name the folder that does.",
                "spec.chart.name",
            )
        yield folder
