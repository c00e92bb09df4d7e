"""What a chart renders never says what is decided here: ranks, GPUs, quotas, what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from gpuplane.backends.kubernetes import names
from gpuplane.backends.kubernetes.manifests.charts import DECIDED
from gpuplane.backends.kubernetes.manifests.pods import owner_labels
from gpuplane.backends.kubernetes.sweeping import UNUSED_SINCE
from tests.unit.backends.kubernetes.test_charts import a_release_plan, an_object, computed

FORGED = "forged-by-the-chart"
OURS = (
    names.RANK, names.PART, names.RECORD, names.RELEASE, names.GPU_IDS, names.TENANT_ID,
    names.ATTEMPT_ID, names.HAMI_GPUS, names.DISPATCHED, UNUSED_SINCE,
    "nvidia.com/nouse-gputype", "hami.io/vgpu-devices-to-allocate",
    "kueue.x-k8s.io/podset-required-topology",
)  # fmt: skip

words = st.from_regex(r"[a-z]{1,8}", fullmatch=True)
decided = st.sampled_from(OURS) | st.builds(str.__add__, st.sampled_from(DECIDED), words)
own = st.builds("{}.example.org/{}".format, words, words)


@st.composite
def metadata(draw: st.DrawFn) -> dict[str, Any]:
    """Draw what a template may write: marks that are ours, and some of its own."""
    found: dict[str, Any] = {"name": "thing"}
    for part in ("labels", "annotations"):
        forged = dict.fromkeys(draw(st.lists(decided, max_size=3)), FORGED)
        found[part] = {**forged, **dict.fromkeys(draw(st.lists(own, max_size=2)), "kept")}
    return found


def marks_in(value: Any) -> Iterator[tuple[str, object]]:
    """Yield every label and annotation of whatever is in a value."""
    if isinstance(value, list):
        for each in value:
            yield from marks_in(each)
    elif isinstance(value, dict):
        for part in ("labels", "annotations"):
            yield from ((value.get("metadata") or {}).get(part) or {}).items()
        for each in value.values():
            yield from marks_in(each)


def objects_with(drawn: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an object of each kind, which has this metadata wherever it may have some."""
    volume = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"metadata": drawn}}}
    pod = {"containers": [{"name": "c", "image": "i"}], "volumes": [volume]}
    template = {"metadata": drawn, "spec": pod}
    claims = {"template": template, "volumeClaimTemplates": [{"metadata": drawn, "spec": {}}]}
    job = {"metadata": drawn, "spec": {"template": template}}
    nightly = {"concurrencyPolicy": "Forbid", "jobTemplate": job}
    plain = [
        {"apiVersion": "v1", "kind": kind, "metadata": drawn}
        for kind in ("ConfigMap", "Secret", "Service", "ServiceAccount")
    ]
    return [
        an_object(spec={"template": template}, metadata=drawn),
        an_object("StatefulSet", spec=claims, metadata=drawn),
        an_object("Job", spec={"template": template}, metadata=drawn),
        an_object("CronJob", api="batch/v1", spec=nightly, metadata=drawn),
        an_object("Pod", pod={"volumes": [volume]}, metadata=drawn),
        *plain,
    ]


@given(metadata())
@example({"name": "thing", "labels": dict.fromkeys(OURS, FORGED), "annotations": None})
@example({"name": "thing", "annotations": dict.fromkeys(OURS, FORGED)})
def test_no_mark_of_ours_survives_from_what_a_chart_renders(drawn: dict[str, Any]) -> None:
    plan = a_release_plan()
    rendered = objects_with(drawn)
    release = computed(plan, *rendered)
    given_here = {*owner_labels(plan, "cluster").items()}
    found = list(marks_in(list(release.objects)))
    for key, text in found:
        is_ours = (key, text) in given_here or key == names.PART
        assert is_ours or not key.startswith(DECIDED)
        assert text != FORGED
    kept = [each for each in marks_in(rendered) if each[1] == "kept"]
    assert len(kept) == len([each for each in found if each[1] == "kept"])
