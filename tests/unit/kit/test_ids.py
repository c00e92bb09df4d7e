"""Ids sort by time, never repeat, and a forked child makes its own."""

import os
import uuid

import pytest

from gpuplane.kit.ids import find_id, new_id

HASH = "d41d8cd98f00b204e9800998ecf8427e"


def test_ids_sort_in_the_order_they_were_made() -> None:
    made = [new_id() for _ in range(10_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_an_id_is_a_uuid_of_version_7() -> None:
    made = new_id()
    assert (made.version, made.variant) == (7, "specified in RFC 4122")


def test_only_the_canonical_form_of_a_uuid_is_an_id() -> None:
    made = uuid.UUID(HASH)
    assert find_id(str(made)) == made
    assert find_id(str(made).upper()) == made


@pytest.mark.parametrize(
    "name", [HASH, "-".join("a" * 32), f"{{{uuid.UUID(HASH)}}}", f"urn:uuid:{HASH}", f"{HASH}-", ""]
)
def test_a_name_of_32_hexadecimal_digits_is_no_id(name: str) -> None:
    assert find_id(name) is None


def test_a_forked_child_makes_other_ids_than_its_parent() -> None:
    new_id()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, new_id().bytes[8:])
        os._exit(0)
    os.close(writing)
    own = new_id().bytes[8:]
    with os.fdopen(reading, "rb") as file:
        assert file.read() != own
    os.waitpid(child, 0)
