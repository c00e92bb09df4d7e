"""Finds the OpenTofu or Terraform binary and runs one command of it.

Owns what the binary is told by its environment: credentials of the clouds and nothing of ours.
Nothing secret is an argument, and what the binary says is passed on without the values of
credentials. Runs no shell. The lock of the cluster is handed on, so that it is held for as long as
the binary or anything it started lives, also when this process is gone; and nothing of this process
is needed for it to come to its end.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gpuplane.provisioning.errors import ProvisioningError, Reason

NAMES = ("tofu", "terraform")
"""In this order: OpenTofu is free to use by everybody, Terraform is not."""
PASSED = re.compile(
    r"(AWS|ARM|AZURE|GOOGLE|CLOUDSDK|GCLOUD)_\w+|https?_proxy|HTTPS?_PROXY|no_proxy|NO_PROXY"
    r"|SSL_CERT_(FILE|DIR)|TF_CLI_CONFIG_FILE|TF_REGISTRY_CLIENT_TIMEOUT|HOME|PATH|LANG|TMPDIR"
)
"""Of the environment. TF_LOG would print credentials, TF_CLI_ARGS change what is done."""
SECRET = re.compile(r"SECRET|TOKEN|PASSWORD|CREDENTIALS|ACCESS_KEY|CERTIFICATE|_KEY\b", re.I)
MIN_SECRET_CHARS = 6
"""Shorter values are words: taking them out would only garble what is said."""
STDERR_BYTES = 64 << 10
STDOUT_BYTES = 64 << 20
STDOUT, STDERR = "stdout", "stderr"
"""Files of the working folder, not pipes: when this process dies, a pipe without a reader would
end the binary at its next word, between making something and writing down that it was made."""
LOOK_S = 0.1
"""How often what it wrote is looked at."""
GRACE_S = 120.0
"""What the binary gets to finish what it is at and write its state, before it is killed."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: exit code, standard output, and the last of standard error."""

    code: int
    stdout: bytes
    stderr: str


def find_binary(named: str | None, search_path: str) -> Path:
    """Return the binary that is named, else OpenTofu or Terraform on the search path.

    Raises:
        ProvisioningError: If there is none.
    """
    for name in (named,) if named else NAMES:
        found = shutil.which(name, path=search_path)
        if found is not None:
            return Path(found)
    looked = named or " and ".join(NAMES)
    raise ProvisioningError(
        Reason.NO_BINARY,
        f"There is no {looked} on this machine.",
        "Install OpenTofu (or Terraform) 1.6 or newer, or name it by --binary.",
    )


def environment_for(given: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the binary: what is passed on, and what we say ourselves."""
    passed = {name: value for name, value in given.items() if PASSED.fullmatch(name)}
    quiet = {"TF_IN_AUTOMATION": "1", "TF_INPUT": "0", "CHECKPOINT_DISABLE": "1"}
    return {**passed, **quiet, **own}


def without_secrets(text: str, environment: Mapping[str, str]) -> str:
    """Return what the binary said, without the values of credentials."""
    for name, value in environment.items():
        if len(value) >= MIN_SECRET_CHARS and SECRET.search(name):
            text = text.replace(value, f"<{name}>")
    return text


def run_binary(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    lock: int,
    timeout_s: float,
    on_line: Callable[[str], None] | None = None,
) -> Ended:
    """Run a command to its end.

    Args:
        arguments: The binary and its arguments.
        environment: All of it.
        folder: Where it runs.
        lock: A descriptor that it and what it starts keep open.
        timeout_s: Then it is interrupted, which lets it write its state, and killed after a while.
        on_line: Called with each line of standard output, which then is not kept.

    Raises:
        ProvisioningError: If it ran out of time, was interrupted, or could not be started.
    """
    try:
        with (folder / STDOUT).open("wb") as stdout, (folder / STDERR).open("wb") as stderr:
            process = subprocess.Popen(
                list(arguments),
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                pass_fds=[lock],
                start_new_session=True,  # Ctrl-C reaches us alone, and is passed on once
            )
    except OSError as error:
        raise ProvisioningError(
            Reason.NO_BINARY, f"{arguments[0]} cannot be started: {error.strerror}."
        ) from error
    running = _Running(process)
    deadline = threading.Timer(timeout_s, running.interrupt_for_time)
    deadline.daemon = True
    deadline.start()
    try:
        with (folder / STDOUT).open("rb") as written:
            kept = running.follow(written, on_line)
    finally:
        deadline.cancel()
        running.end()
    if running.is_out_of_time:
        raise ProvisioningError(
            Reason.TIMED_OUT,
            f"`{arguments[1]}` had not ended after {timeout_s:g} s and was interrupted.",
            "What it had made by then is kept. Go on with a new plan, or give it more time.",
        )
    last = (folder / STDERR).read_bytes()[-STDERR_BYTES:].decode(errors="replace")
    return Ended(process.returncode, kept, without_secrets(last, environment))


class _Running:
    """A running command and its end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.is_out_of_time = False
        self._killing: threading.Timer | None = None

    def follow(self, written: IO[bytes], on_line: Callable[[str], None] | None) -> bytes:
        """Return what it writes until it ends; Ctrl-C is passed on, and its end waited for."""
        kept, begun = bytearray(), bytearray()
        is_interrupted = is_over = False
        while True:
            try:
                for line in written:
                    begun += line
                    if not line.endswith(b"\n"):
                        break  # the rest of the line is still to come
                    if on_line is not None:
                        on_line(begun.decode(errors="replace"))
                    elif len(kept) <= STDOUT_BYTES:
                        kept += begun
                    begun.clear()
                if is_over:
                    break
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(LOOK_S)
                    is_over = True  # and once more for what it wrote last
            except KeyboardInterrupt:
                is_interrupted = True
                self._send(signal.SIGINT)
        if is_interrupted:
            raise ProvisioningError(
                Reason.INTERRUPTED,
                "It was interrupted.",
                "What was made by then is kept. Go on with a new plan.",
            )
        return bytes(kept + begun)

    def interrupt_for_time(self) -> None:
        """Let it write its state and end; kill it when it does not."""
        self.is_out_of_time = True
        self._send(signal.SIGINT)
        self._killing = threading.Timer(GRACE_S, self._send, [signal.SIGKILL])
        self._killing.daemon = True
        self._killing.start()

    def end(self) -> None:
        """Leave nothing of it running."""
        if self._killing is not None:
            self._killing.cancel()
        if self.process.poll() is None:
            self._send(signal.SIGINT)
            try:
                self.process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                self._send(signal.SIGKILL)
                self.process.wait()

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)
