"""Requests to buckets are signed as AWS publishes it."""

from __future__ import annotations

from datetime import UTC, datetime

from gpuplane.loops.triggers.polling import sign_v4


def test_a_list_of_objects_is_signed_as_in_the_example_of_aws() -> None:
    # Amazon S3 API Reference, "Authenticating Requests (AWS Signature Version 4)", GET Bucket.
    headers = sign_v4(
        "https://examplebucket.s3.amazonaws.com/?max-keys=2&prefix=J",
        ("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
        "us-east-1",
        round(datetime(2013, 5, 24, tzinfo=UTC).timestamp() * 1000),
    )
    assert headers["x-amz-date"] == "20130524T000000Z"
    assert headers["Authorization"].endswith(
        "Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
    )
    assert "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request" in headers["Authorization"]
