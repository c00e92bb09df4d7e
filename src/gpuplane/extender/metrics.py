"""Counts of the extender in Prometheus' text form.

Owns the numbers and their names; counting costs a few dictionary steps a request.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Upper bounds of the latency buckets, around the limits of 2 ms and 15 ms."""
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """What is counted since the process began."""

    def __init__(self) -> None:
        self._buckets: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}
        self._requests: Counter[tuple[str, int]] = Counter()
        self._refusals: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()

    def note_request(self, verb: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests[verb, status] += 1
        buckets = self._buckets.get(verb)
        if buckets is None:
            buckets = self._buckets[verb] = [0] * (len(BOUNDS_S) + 1)
        buckets[bisect_left(BOUNDS_S, seconds)] += 1
        self._seconds[verb] = self._seconds.get(verb, 0.0) + seconds

    def note_refused(self, word: str, nodes: int) -> None:
        """Count nodes that were refused, by the core's word."""
        self._refusals[word] += nodes

    def note(self, event: str, count: int = 1) -> None:
        """Count an event such as a binding or a conflict."""
        self._counts[event] += count

    def render(self, gauges: Mapping[str, float]) -> bytes:
        """Return everything as text.

        Args:
            gauges: What is true now, by name without prefix.
        """
        lines = ["# TYPE gpuplane_extender_requests_total counter"]
        for (verb, status), count in sorted(self._requests.items()):
            lines.append(
                f'gpuplane_extender_requests_total{{verb="{verb}",code="{status}"}} {count}'
            )
        lines.append("# TYPE gpuplane_extender_request_seconds histogram")
        for verb, buckets in sorted(self._buckets.items()):
            total = 0
            for bound, count in zip((*BOUNDS_S, "+Inf"), buckets, strict=True):
                total += count
                lines.append(
                    "gpuplane_extender_request_seconds_bucket"
                    f'{{verb="{verb}",le="{bound}"}} {total}'
                )
            lines += [
                f'gpuplane_extender_request_seconds_sum{{verb="{verb}"}} {self._seconds[verb]:.6f}',
                f'gpuplane_extender_request_seconds_count{{verb="{verb}"}} {total}',
            ]
        lines.append("# TYPE gpuplane_extender_refused_nodes_total counter")
        for word, count in sorted(self._refusals.items()):
            lines.append(f'gpuplane_extender_refused_nodes_total{{reason="{word}"}} {count}')
        lines.append("# TYPE gpuplane_extender_events_total counter")
        for event, count in sorted(self._counts.items()):
            lines.append(f'gpuplane_extender_events_total{{event="{event}"}} {count}')
        for name, value in sorted(gauges.items()):
            lines += [
                f"# TYPE gpuplane_extender_{name} gauge",
                f"gpuplane_extender_{name} {value:g}",
            ]
        return ("\n".join(lines) + "\n").encode()
