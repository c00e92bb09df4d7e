"""What a cluster says of a webhook that does not answer."""

from __future__ import annotations

from gpuplane.kube.webhooks import find_silent, told

REFUSED = (
    'Internal error occurred: failed calling webhook "mjob.kb.io": failed to call webhook: Post '
    '"https://kueue-webhook-service.kueue-system.svc:443/mutate-batch-v1-job?timeout=10s": dial '
    "tcp 10.0.0.7:443: connect: connection refused"
)
MISSING = (
    'Internal error occurred: failed calling webhook "pods.example.com": failed to call webhook: '
    'Post "https://guard.security.svc:443/?timeout=1s": service "guard" not found'
)
DENIED = 'admission webhook "pods.example.com" denied the request: no such team'


def test_a_webhook_that_is_not_reached_is_named_with_its_service_its_cause_and_what_to_do() -> None:
    found = find_silent(REFUSED)
    assert found is not None
    assert (found.name, found.service) == ("mjob.kb.io", "kueue-webhook-service.kueue-system")
    assert found.cause == "dial tcp 10.0.0.7:443: connect: connection refused"
    assert "Look after the pods of kueue-webhook-service.kueue-system" in found.sentence
    assert told(MISSING).startswith(
        'The webhook "pods.example.com" (guard.security) of the cluster'
    )


def test_a_webhook_outside_the_cluster_and_one_without_an_address_are_named_too() -> None:
    outside = 'failed calling webhook "x.y": failed to call webhook: Post "https://a.b/c": EOF'
    found, bare = find_silent(outside), find_silent('failed calling webhook "x.y": no answer.')
    assert found is not None
    assert bare is not None
    assert (found.service, found.cause) == ("a.b", "EOF")
    assert (bare.service, bare.cause) == ("", "no answer")
    assert "Look after what serves it" in bare.sentence


def test_a_webhook_that_answers_with_a_refusal_is_not_silent() -> None:
    assert find_silent(DENIED) is None
    assert told(DENIED) == DENIED
