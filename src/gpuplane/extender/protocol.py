"""The bodies of the extender protocol, as kube-scheduler writes and reads them.

Owns shapes and field names; decides nothing. Fields that are not used here are skipped unread.

Source: k8s.io/kube-scheduler/extender/v1, types.go; its types carry no JSON tags, so the names are
those of Go.
"""

from typing import Annotated, NamedTuple, TypeVar

import msgspec

from gpuplane.extender.pods import PodView

_T = TypeVar("_T")


ABSENT = msgspec.Raw(b"null")
_HEAD = b'{"Pod":'
_NAMES = b',"Nodes":null,"NodeNames":['


class BadBody(ValueError):
    """A body is not what the protocol says; the text names the field."""


class _Args(msgspec.Struct, gc=False):
    Pod: PodView
    Nodes: msgspec.Raw = ABSENT
    NodeNames: msgspec.Raw = ABSENT


class ExtenderArgs(NamedTuple):
    """What `filter` and `prioritize` are asked.

    Args:
        nodes: Whole nodes as JSON, `null` where names are sent.
        names: Node names as JSON, `null` where whole nodes are sent.
    """

    pod: PodView
    nodes: bytes
    names: bytes


class NodeList(msgspec.Struct, gc=False):
    """Whole nodes, kept as they came."""

    items: list[msgspec.Raw] | None = None


class ObjectName(msgspec.Struct, rename="camel", gc=False):
    """Which version of which object."""

    name: str
    resource_version: str = ""


class Named(msgspec.Struct, gc=False):
    """An object, read as far as its name."""

    metadata: ObjectName


class MetaPod(msgspec.Struct, gc=False):
    """A victim by uid."""

    UID: str


class MetaVictims(msgspec.Struct, gc=False):
    """Victims on one node."""

    Pods: list[MetaPod] | None = None
    NumPDBViolations: int = 0


class VictimMeta(msgspec.Struct, gc=False):
    """The uid of a whole pod."""

    uid: str = ""


class VictimPod(msgspec.Struct, gc=False):
    """A victim that came as a whole pod."""

    metadata: VictimMeta


class Victims(msgspec.Struct, gc=False):
    """Victims on one node, as whole pods."""

    Pods: list[VictimPod] | None = None
    NumPDBViolations: int = 0


class PreemptionArgs(msgspec.Struct, gc=False):
    """What `preempt` is asked."""

    Pod: PodView
    NodeNameToVictims: dict[str, Victims] | None = None
    NodeNameToMetaVictims: dict[str, MetaVictims] | None = None


Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
"""The name of an object, as the API server takes it: it becomes a part of a path."""


class BindingArgs(msgspec.Struct, gc=False):
    """What `bind` is asked."""

    PodName: Name
    PodNamespace: Name
    PodUID: str
    Node: Name


class Reader:
    """Decoders, made once."""

    def __init__(self) -> None:
        self._args = msgspec.json.Decoder(_Args)
        self._pod = msgspec.json.Decoder(PodView)
        self._names = msgspec.json.Decoder(list[str])
        self._nodes = msgspec.json.Decoder(NodeList)
        self._named = msgspec.json.Decoder(Named)
        self._preemption = msgspec.json.Decoder(PreemptionArgs)
        self._binding = msgspec.json.Decoder(BindingArgs)

    def args(self, body: bytes) -> ExtenderArgs:
        """Return the question of `filter` and `prioritize`; the list of nodes is not read yet."""
        args = _read(self._args, body)
        return ExtenderArgs(args.Pod, bytes(args.Nodes), bytes(args.NodeNames))

    def pod(self, raw: bytes) -> PodView:
        """Return a pod."""
        return _read(self._pod, raw)

    def names(self, raw: bytes) -> list[str]:
        """Return node names."""
        return _read(self._names, raw)

    def nodes(self, raw: bytes) -> list[msgspec.Raw]:
        """Return whole nodes, each as it came."""
        return _read(self._nodes, raw).items or []

    def name_of(self, raw: msgspec.Raw) -> ObjectName:
        """Return which version of which node this is."""
        return _read(self._named, bytes(raw)).metadata

    def preemption(self, body: bytes) -> PreemptionArgs:
        """Return the question of `preempt`."""
        return _read(self._preemption, body)

    def binding(self, body: bytes) -> BindingArgs:
        """Return the question of `bind`."""
        return _read(self._binding, body)


def split(body: bytes) -> tuple[bytes, bytes] | None:
    """Return pod and node names of a question as JSON, None for one that is written otherwise.

    kube-scheduler writes the fields in one order, so that the list, most of a body, can be cut off
    without reading it.
    """
    end = body.find(_NAMES)
    if end > 0 and body.startswith(_HEAD) and body.endswith(b"]}"):
        return body[len(_HEAD) : end], body[end + len(_NAMES) - 1 : -1]
    return None


def is_split(body: bytes, head: bytes) -> bool:
    """Tell whether `split` finds the same pod as in a body that began with this head.

    Args:
        body: A question.
        head: All of a question that was split up to the bracket before its first name.
    """
    return body.startswith(head) and body.endswith(b"]}")


def _read(decoder: msgspec.json.Decoder[_T], body: bytes) -> _T:
    """Return a body that is as it should be.

    Raises:
        BadBody: If it is not.
    """
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadBody(str(error)) from error
