"""Follows a job to its end: its output as it comes, why it waits meanwhile, how it ended.

A server that goes away and comes back is waited for; nothing is printed twice.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from typing import IO, Any

from gpuplane.cli.client import Client
from gpuplane.cli.errors import ApiError, CliError, Exit, Unreachable
from gpuplane.cli.lookups import OVER
from gpuplane.cli.words import first_line, when

EVENT_STREAM = "text/event-stream"
SILENCE_S = 3_600.0
"""A job may be silent for long; the connection's end is seen at once anyway."""
LOOK_S = 1.0
"""How often a waiting job is looked at, for its reason."""
FIRST_LOOK_S = 0.4
"""A job that starts at once is never looked at."""
AWAY_S = 120.0
"""How long a server that went away is waited for."""
END_LOOK_S = (0.01, 0.02, 0.05, 0.1, 0.2)
"""The pauses between looks for the end, after the output has ended; the last one repeats."""


@dataclass(slots=True)
class LogWriter:
    """Writes chunks of output where they belong, once each.

    Args:
        out: Where standard output goes.
        err: Where standard error goes.
        ranked: Whether lines begin with their rank.
    """

    out: IO[bytes]
    err: IO[bytes]
    ranked: bool = False
    attempt: int = 0
    """The attempt of the newest chunk."""
    seen: dict[tuple[int, str], int] = field(default_factory=dict)
    """Bytes written of each (rank, stream) of that attempt."""
    _open_lines: set[tuple[int, str]] = field(default_factory=set)

    def write(self, chunk: dict[str, Any]) -> None:
        """Write what is new of a chunk."""
        if chunk["attempt"] != self.attempt:
            self.attempt, self.seen = chunk["attempt"], {}
            self._open_lines.clear()
        key = (chunk["rank"], chunk["stream"])
        start, end = chunk["offset"], chunk["next_offset"]
        known = self.seen.get(key, 0)
        if end <= known:
            return
        data = chunk["text"].encode()[max(0, known - start) :]
        self.seen[key] = end
        target = self.out if chunk["stream"] == "stdout" else self.err
        target.write(self._ranked(key, data) if self.ranked else data)
        target.flush()

    def resume_at(self, attempt: int | None) -> tuple[int, int]:
        """Return the (stdout, stderr) offsets from which an attempt's output is still missing."""
        if attempt != self.attempt:
            return 0, 0
        offsets = []
        for stream in ("stdout", "stderr"):
            known = [at for (_, name), at in self.seen.items() if name == stream]
            # With several ranks one may not have been heard yet, and one offset holds for all.
            offsets.append(0 if self.ranked or not known else min(known))
        return offsets[0], offsets[1]

    def _ranked(self, key: tuple[int, str], data: bytes) -> bytes:
        mark = f"[{key[0]}] ".encode()
        lines = data.splitlines(keepends=True)
        if not lines:
            return b""
        first = b"" if key in self._open_lines else mark
        if lines[-1].endswith(b"\n"):
            self._open_lines.discard(key)
        else:
            self._open_lines.add(key)
        return first + mark.join(lines)


def follow_log(client: Client, job: dict[str, Any], writer: LogWriter) -> None:
    """Write a job's output until its stream ends.

    Raises:
        Unreachable: If the server went away meanwhile.
        CliError: If the output cannot be read.
    """
    stdout, stderr = writer.resume_at((job.get("current_attempt") or {}).get("number"))
    try:
        with client.stream(
            f"/jobs/{job['id']}/logs",
            accept=EVENT_STREAM,
            timeout_s=SILENCE_S,
            headers={},
            follow=True,
            offset=stdout,
            stderr_offset=stderr,
        ) as response:
            for name, data in read_events(response):
                if name == "log":
                    writer.write(json.loads(data))
                elif name == "error":
                    problem = json.loads(data)
                    raise CliError(problem["detail"], fix=problem.get("fix") or "")
                elif name == "end":
                    return
    except (OSError, HTTPException) as error:
        raise Unreachable("The control plane went away.") from error
    raise Unreachable("The control plane went away.")


def read_events(response: HTTPResponse) -> Iterator[tuple[str, str]]:
    """Yield (name, data) of server-sent events as they come."""
    for _, name, data in read_frames(response):
        if data:
            yield name, data


def read_frames(response: HTTPResponse) -> Iterator[tuple[str, str, str]]:
    """Yield (id, name, data) of server-sent frames as they come.

    Those without data tell where the stream is, so that a reader who has heard nothing yet goes on
    from there too; an id holds until the next one.
    """
    last_id, name, data = "", "message", ""
    while line := response.readline():
        text = line.decode("utf-8").rstrip("\r\n")
        if not text:
            yield last_id, name, data
            name, data = "message", ""
        elif text.startswith("id:"):
            last_id = text[3:].strip()
        elif text.startswith("event:"):
            name = text[6:].strip()
        elif text.startswith("data:"):
            data = f"{data}\n{text[5:].strip()}" if data else text[5:].strip()


class Follower:
    """Follows one job to its end."""

    def __init__(self, client: Client, job: dict[str, Any], say: Callable[[str], None]) -> None:
        """Follow a job.

        Args:
            client: Whom to ask.
            job: The job as it was answered last.
            say: Told in one line why the job waits and what becomes of it.
        """
        self.job = job
        self._client = client
        self._say = say
        ranked = job["replica_count"] > 1
        self._writer = LogWriter(sys.stdout.buffer, sys.stderr.buffer, ranked)
        self._done = threading.Event()

    def run(self) -> dict[str, Any]:
        """Return the job once it is over and everything it printed is written."""
        watcher = threading.Thread(target=self._watch, name="watch", daemon=True)
        watcher.start()
        try:
            return self._follow()
        finally:
            self._done.set()

    def _follow(self) -> dict[str, Any]:
        attempt = 0
        while True:
            try:
                follow_log(self._client, self.job, self._writer)
            except Unreachable:
                self._wait_for_server()
                continue
            except CliError as error:
                self._say(f"{error.message} {error.fix}".rstrip())
            looks = iter(END_LOOK_S)
            while True:
                self._refresh()
                if self.job["status"] in OVER:
                    return self.job
                number = (self.job.get("current_attempt") or {}).get("number") or 0
                if number > max(attempt, self._writer.attempt):
                    attempt = number
                    break
                pause = LOOK_S if self.job["condition"] == "Paused" else END_LOOK_S[-1]
                self._done.wait(next(looks, pause))

    def _refresh(self) -> None:
        try:
            self.job = self._client.get(f"/jobs/{self.job['id']}")
        except Unreachable:
            self._wait_for_server()

    def _wait_for_server(self) -> None:
        self._client, self.job = wait_for_server(
            f"/jobs/{self.job['id']}",
            self._say,
            what="job",
            fix=f"The job goes on: `gpuplane logs -f {self.job['name']}`.",
        )

    def _watch(self) -> None:
        """Say why the job waits, whenever that changes, and where it became ready."""
        client, said = Client(self._client.target), ""
        pause = FIRST_LOOK_S
        while not self._done.wait(pause):
            pause = LOOK_S
            try:
                job = client.get(f"/jobs/{self.job['id']}")
            except CliError:
                continue
            line = state_line(job)
            if line != said and (said or job["status"] != "running" or _url_of(job)):
                self._say(line)
            said = line
        client.close()


def wait_for_server(
    path: str, say: Callable[[str], None], *, what: str, fix: str
) -> tuple[Client, dict[str, Any]]:
    """Return a client of the control plane that went away, and its answer, once it is back.

    Args:
        path: What is asked for; the address is looked up anew each time.
        say: Told that it is waited for.
        what: What goes on meanwhile, in one word.
        fix: What to do where it does not come back.

    Raises:
        Unreachable: If it has not come back in time.
    """
    say(f"the control plane does not answer; the {what} goes on, waiting for it …")
    end, pause = time.monotonic() + AWAY_S, threading.Event()
    while True:
        try:
            client = Client()
            found: dict[str, Any] = client.get(path)
            say("the control plane is back")
            return client, found
        except ApiError as error:
            if error.exit_code != Exit.UNREACHABLE or time.monotonic() > end:
                raise
        except Unreachable as error:
            if time.monotonic() > end:
                raise Unreachable(
                    f"The control plane has not come back within {AWAY_S:g} s.", fix=fix
                ) from error
        pause.wait(0.2)


def state_line(job: dict[str, Any]) -> str:
    """Return in one line what a job does now, with the reason if it waits."""
    status = f"{job['status']} ({job['condition']})" if job["condition"] else job["status"]
    if job["status"] in ("pending", "queued", "preempted") or job["condition"]:
        parts = [f"{status}: {job['reason']}" if job["reason"] else status]
        if job["status_message"]:
            parts.append(f"— {first_line(job['status_message'])}")
        if job.get("estimated_start") and job["status"] == "queued":
            parts.append(f"(starts {when(job['estimated_start'])} by estimate)")
        return " ".join(parts)
    if job["status"] == "running":
        replicas = (job.get("current_attempt") or {}).get("replicas") or []
        nodes = sorted({each["node"] for each in replicas})
        where = f"running on {', '.join(nodes[:4])}{' …' if len(nodes) > 4 else ''}"
        url = _url_of(job)
        return f"{where}, ready at {url}" if url else where
    return status


def end_code(job: dict[str, Any]) -> int:
    """Return the exit code that a job's end stands for; 128 + the signal that killed it."""
    code = job.get("exit_code")
    if job["status"] == "completed":
        return int(code or 0)
    return int(code) if code else int(Exit.FAILED)


def end_line(job: dict[str, Any]) -> str:
    """Return in one line how a job ended badly; empty when it ended well."""
    if job["status"] == "completed":
        return ""
    code = f", exit code {job['exit_code']}" if job.get("exit_code") is not None else ""
    why = first_line(job["status_message"]) or job["reason"]
    return f"{job['name']} {job['status']}{code}" + (f": {why}" if why else "")


def _url_of(job: dict[str, Any]) -> str:
    replicas = (job.get("current_attempt") or {}).get("replicas") or []
    return next((each["url"] for each in replicas if each.get("url") and each.get("ready")), "")
