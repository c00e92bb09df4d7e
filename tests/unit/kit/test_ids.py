"""Ids sort by time, never repeat, and a forked child makes its own."""

import os

from gpuplane.kit.ids import new_id


def test_ids_sort_in_the_order_they_were_made() -> None:
    made = [new_id() for _ in range(10_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_an_id_is_a_uuid_of_version_7() -> None:
    made = new_id()
    assert (made.version, made.variant) == (7, "specified in RFC 4122")


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
