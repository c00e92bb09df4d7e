"""What the extender remembers changes nothing: answers are those of one that was just started."""

import asyncio
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuplane.extender.http import Connection, Request, Response, Server
from tests.unit.extender.objects import Asked, a_node, a_pod, dump
from tests.unit.extender.wires import Wire

# Of one length and of several, so that both ways of writing and finding names are taken.
NAMES = (
    ["node-0", "node-1", "node-2", "node-3"],
    ["n", "node-1", "ip-10-0-0-12.example.org", "x"],
)
SHAPES = ((8, "nvswitch-8"), (8, "nvlink-cube-mesh-8"), (4, "nvlink-4"), (2, ""))
CLASSES = tuple(
    a_pod("new", gpus, annotations={"gpuplane.io/links": links})
    for gpus in (0, 1, 2, 4, 8)
    for links in ("none", "nvlink")
)
STEPS = st.one_of(
    # A pod comes or changes: its number, node, GPUs and the first of those it is annotated with.
    st.tuples(
        st.just("put"),
        st.integers(0, 6),
        st.integers(0, 3),
        st.integers(0, 3),
        st.one_of(st.none(), st.integers(0, 5)),
    ),
    st.tuples(st.just("drop"), st.integers(0, 6)),
    # A node is cordoned or opened, or has other GPUs from now on.
    st.tuples(st.just("cordon"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("gpus"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("ask"), st.sampled_from(CLASSES), st.permutations(range(4)), st.booleans()),
)


def make(names: list[str], shapes: list[int], cordoned: set[int]) -> list[dict[str, Any]]:
    return [
        a_node(name, SHAPES[shape][0], topology=SHAPES[shape][1], unschedulable=place in cordoned)
        for place, (name, shape) in enumerate(zip(names, shapes, strict=True))
    ]


@given(st.sampled_from(NAMES), st.lists(STEPS, min_size=1, max_size=25))
def test_an_extender_that_remembers_answers_as_one_that_was_just_started(
    names: list[str], steps: list[Any]
) -> None:
    shapes, cordoned = [0, 1, 2, 3], set[int]()
    long_lived = Asked(*make(names, shapes, cordoned))
    there: dict[str, Any] = {}
    for act, *more in steps:
        if act == "put":
            number, place, gpus, first = more
            uid = f"p{number}-{place}"  # a pod never leaves its node
            ids = "" if first is None else ",".join(str(first + each) for each in range(gpus))
            there[uid] = a_pod(uid, gpus, node=names[place], ids=ids)
            long_lived.put(there[uid])
        elif act == "drop":
            for uid in [each for each in there if each.startswith(f"p{more[0]}-")]:
                del there[uid]
                long_lived.answerer.drop_pod(f"uid-{uid}")
        elif act == "ask":
            pod, order, has_stranger = more
            asked = [names[place] for place in order] + ["stranger"] * has_stranger
            fresh = Asked(*make(names, shapes, cordoned))
            fresh.put(*there.values())
            for ask in ("filter", "prioritize", "filter", "prioritize"):
                # Twice, so that the second comes from what the first left behind.
                question = dump({"Pod": pod, "Nodes": None, "NodeNames": asked})
                answer = getattr(long_lived.answerer, ask)(question)
                assert json.loads(answer) == json.loads(getattr(fresh.answerer, ask)(question))
                if ask == "filter":
                    asked = json.loads(answer)["NodeNames"]
        else:
            if act == "cordon":
                (cordoned.add if more[1] else cordoned.discard)(more[0])
            else:
                shapes[more[0]] = more[1]
            for node in make(names, shapes, cordoned):
                long_lived.show(node)


HEADS = st.sampled_from(
    [
        b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n",
        b"POST /filter?timeout=5s HTTP/1.1\r\nContent-Length: %d\r\nHost: x\r\n\r\n",
        b"POST /prioritize HTTP/1.1\r\nContent-Length: %d\r\nX-One: Content-Length: 3\r\n\r\n",
        b"PUT /filter HTTP/1.1\r\ncontent-length: %d\r\n\r\n",
        b"POST /filter HTTP/1.0\r\nContent-Length: %d\r\n\r\n",
        b"POST /filter HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n",
        b"POST /filter HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n",
        b"POST /filter HTTP/1.1\r\nContent-Length: 0%d\r\n\r\n",
        b"POST /filter HTTP/1.1\r\nContent-Length: %d\r\nContent-Length: 1\r\n\r\n",
        b"POST /filter HTTP/1.1\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST  HTTP/1.1\r\nContent-Length: %d\r\n\r\n",
    ]
)
PIECES = st.tuples(HEADS, st.binary(max_size=12), st.integers(-1, 1), st.integers(0, 200))


def echo(request: Request) -> Response:
    return Response(200, b"%b %b %b" % request)


def send(server: Server, data: list[bytes]) -> bytes:
    """Return what one connection answers to these pieces."""

    async def talk() -> bytes:
        connection: Connection = server.connect()
        wire = Wire()
        connection.connection_made(wire)
        for piece in data:
            connection.data_received(piece)
        connection.connection_lost(None)
        return wire.sent

    return asyncio.run(talk())


@given(st.lists(st.lists(PIECES, min_size=1, max_size=4), min_size=1, max_size=4))
def test_a_server_that_remembers_heads_answers_as_one_that_parses_each(
    connections: list[list[tuple[bytes, bytes, int, int]]],
) -> None:
    remembering = Server(echo)
    for requests in connections:
        whole = [head % max(0, len(body) + off) + body for head, body, off, _ in requests]
        data: list[bytes] = []
        for text, (_, _, _, at) in zip(whole, requests, strict=True):
            data += [text[:at], text[at:]] if at < len(text) else [text]
        # A server that has never seen anything, told byte by byte, has nothing to remember.
        apart = [bytes([byte]) for piece in data for byte in piece]
        assert send(remembering, data) == send(Server(echo), apart)
