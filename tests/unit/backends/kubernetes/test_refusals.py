"""What a cluster refuses at a start: for good, or so that another try may do."""

from __future__ import annotations

import pytest

from gpuplane.backends.interface import BackendError, Unavailable
from gpuplane.backends.kubernetes.starting import told, told_at_start
from gpuplane.core.reasons import Word
from gpuplane.kube.errors import Forbidden, Invalid, KubeError, Unreachable

NEGATIVE = 'Job.batch "j" is invalid: requests.cpu: Invalid value: "-1": must not be negative'


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (Invalid(422, "Invalid", NEGATIVE), Word.START_REFUSED),
        (Invalid(422, "Invalid", "spec.template: field is immutable"), Word.START_FAILED),
        (Invalid(422, "Invalid", "webhook x denied the request: no"), Word.START_FAILED),
        (Forbidden(403, "Forbidden", "exceeded quota"), Word.START_FAILED),
    ],
)
def test_only_what_the_api_server_finds_invalid_is_never_tried_again(
    error: KubeError, word: Word
) -> None:
    with pytest.raises(BackendError) as refused, told_at_start():
        raise error
    assert refused.value.word == word
    assert error.message in refused.value.message
    with pytest.raises(BackendError) as otherwise, told():
        raise error
    assert otherwise.value.word == Word.START_FAILED, "other verbs end no job"


def test_a_cluster_that_does_not_answer_refuses_nothing() -> None:
    with pytest.raises(Unavailable), told_at_start():
        raise Unreachable("no route")
