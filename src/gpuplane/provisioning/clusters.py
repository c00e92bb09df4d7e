"""Plans, makes, changes and removes clusters by the binary, one saved plan at a time.

Owns the order: lay out, initialise, plan, keep the plan sealed; later apply exactly that plan.
Knows neither clouds nor specifications: it is given files and a document to keep beside them.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from gpuplane.core.provisioning.plans import (
    Action,
    Change,
    PlanSummary,
    UnreadablePlan,
    summary_of,
)
from gpuplane.kit.failpoints import failpoint
from gpuplane.kit.sealing import SealingKeys
from gpuplane.provisioning.binaries import (
    Ended,
    environment_for,
    find_binary,
    run_binary,
    without_secrets,
)
from gpuplane.provisioning.errors import ProvisioningError, Reason
from gpuplane.provisioning.vaults import FOLDER, PLAN, Vault, write_private

TOLD = frozenset(
    {"apply_start", "apply_progress", "apply_complete", "apply_errored", "change_summary"}
)
"""Kinds of messages that are shown as they come; others may hold values."""
MAX_MESSAGE_CHARS = 4_000


class Purpose(StrEnum):
    """What a plan is for."""

    PROVISION = "provision"
    DEPROVISION = "deprovision"
    REFRESH = "refresh"


_OPTIONS = {Purpose.PROVISION: [], Purpose.DEPROVISION: ["-destroy"],
            Purpose.REFRESH: ["-refresh-only"]}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """How long each part may take, in seconds.

    A cluster with GPU nodes takes a cloud 10 to 40 minutes.
    """

    init_s: float = 900.0
    plan_s: float = 900.0
    apply_s: float = 7_200.0


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """A plan that is kept: its id, what it is for and what it would do."""

    id: str
    purpose: Purpose
    summary: PlanSummary


@dataclass(frozen=True, slots=True)
class Made:
    """A cluster that has a folder: its name, document, resources and whether a plan waits."""

    name: str
    document: dict[str, Any] | None
    resource_count: int
    has_plan: bool
    is_interrupted: bool


class Provisioner:
    """The clusters of one home, made from here."""

    def __init__(
        self,
        home: Path,
        keys: SealingKeys,
        *,
        environment: Mapping[str, str],
        binary: str | None = None,
        limits: Limits | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Start nothing yet.

        Args:
            home: Of the control plane; clusters lie in its folder `provisioning`.
            keys: That seal their state.
            environment: Of this process; credentials of the clouds are taken from it alone.
            binary: Name or path; OpenTofu, then Terraform, unless given.
            limits: How long each part may take.
            tell: Called with a line for each thing that happens.
        """
        self.home = home
        self._folder = home / FOLDER
        self._keys = keys
        self._given = environment
        self._binary = binary
        self._limits = limits or Limits()
        self._tell = tell

    def plan(self, name: str, files: Mapping[str, bytes], document: dict[str, Any]) -> SavedPlan:
        """Return what would make a cluster as its files say; the plan is kept for `apply`."""
        return self._plan(name, files, document, Purpose.PROVISION)

    def plan_removal(self, name: str, files: Mapping[str, bytes]) -> SavedPlan:
        """Return what would remove a cluster.

        Raises:
            ProvisioningError: If there is nothing of it.
        """
        self._require(name)
        return self._plan(name, files, None, Purpose.DEPROVISION)

    def saved_plan(self, name: str) -> SavedPlan:
        """Return the plan that is kept of a cluster.

        Raises:
            ProvisioningError: If there is none.
        """
        return _saved(self._told(name))

    def apply(self, name: str, plan_id: str) -> None:
        """Carry out the plan that is kept, and none but that.

        Raises:
            ProvisioningError: If another plan is kept by now, or it fails; what was made by then
                is in the state.
        """
        vault = self._vault(name)
        with self._opened(vault) as run:
            kept = vault.plan()
            if kept is None or kept[1]["id"] != plan_id:
                raise _no_plan(name)
            plan, told = kept
            _lay_out(vault, {each: text.encode() for each, text in told["files"].items()})
            run("init", ["-input=false", "-no-color"], self._limits.init_s)
            write_private(vault.work / PLAN, plan)
            if told["document"] is not None:
                vault.put_document(told["document"])
            vault.drop_plan()  # whatever comes of it, it is not applied twice
            failpoint("provisioning:before-apply")
            run("apply", ["-input=false", "-json", PLAN], self._limits.apply_s)
            failpoint("provisioning:applied")
        if told["purpose"] == Purpose.DEPROVISION:
            self._remove_if_gone(vault)

    def refresh(self, name: str, files: Mapping[str, bytes]) -> None:
        """Read anew what the cloud tells of a cluster, short-lived tokens among it."""
        self._require(name)
        plan = self._plan(name, files, None, Purpose.REFRESH)
        self.apply(name, plan.id)

    def outputs(self, name: str) -> dict[str, str]:
        """Return what the configuration put out when it was last applied; holds credentials."""
        self._require(name)
        state = self._vault(name).state() or {}
        return {
            key: str(each["value"]) for key, each in state.get("outputs", {}).items()
            if each.get("value") is not None
        }  # fmt: skip

    def document(self, name: str) -> dict[str, Any]:
        """Return the specification that was applied last, else that of the plan that is kept.

        Raises:
            ProvisioningError: If there is none.
        """
        vault = self._vault(name)
        found = vault.document() or (vault.plan() or (b"", {}))[1].get("document")
        if found is None:
            raise _no_state(name)
        return dict(found)

    def list_made(self) -> list[Made]:
        """Return every cluster that has a folder here, by name."""
        folders = sorted(self._folder.glob("*/lock")) if self._folder.exists() else []
        found = []
        for path in folders:
            vault = self._vault(path.parent.name)
            if vault.exists:
                state = vault.state() or {}
                managed = [each for each in state.get("resources", []) if each["mode"] == "managed"]
                found.append(
                    Made(vault.name, vault.document(), sum(len(m["instances"]) for m in managed),
                         (vault.folder / "plan.json").exists(), vault.work.exists())
                )  # fmt: skip
        return found

    def _plan(
        self,
        name: str,
        files: Mapping[str, bytes],
        document: dict[str, Any] | None,
        purpose: Purpose,
    ) -> SavedPlan:
        vault = self._vault(name)
        with self._opened(vault) as run:
            _lay_out(vault, files)
            run("init", ["-input=false", "-no-color"], self._limits.init_s)
            arguments = ["-input=false", "-json", f"-out={PLAN}", *_OPTIONS[purpose]]
            run("plan", arguments, self._limits.plan_s)
            shown = run("show", ["-json", PLAN], self._limits.plan_s)
            try:
                summary = summary_of(json.loads(shown.stdout))
            except (ValueError, KeyError, TypeError) as error:
                what = str(error) if isinstance(error, UnreadablePlan) else "It cannot be read."
                raise ProvisioningError(
                    Reason.FAILED, f"The binary's plan is not understood: {what}",
                    "Use a release of OpenTofu or Terraform of the 1.x line.",
                ) from error  # fmt: skip
            plan = (vault.work / PLAN).read_bytes()
            told = {
                "id": hashlib.sha256(plan).hexdigest()[:12],
                "purpose": purpose.value,
                "changes": [[each.address, each.action.value] for each in summary.changes],
                "outputs_change": summary.outputs_change,
                "document": document,
                "files": {each: text.decode() for each, text in sorted(files.items())},
            }
            vault.put_plan(plan, told)
        return _saved(told)

    @contextmanager
    def _opened(self, vault: Vault) -> Iterator[Callable[[str, list[str], float], Ended]]:
        """Hold a cluster's vault; yields what runs a command of the binary there."""
        binary = find_binary(self._binary, self._given.get("PATH", ""))
        plugins = self._folder / "plugins"
        for folder in (self.home, self._folder, plugins):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        environment = environment_for(
            self._given,
            {"TF_DATA_DIR": str(vault.folder / "data"), "TF_PLUGIN_CACHE_DIR": str(plugins)},
        )
        with vault.open() as lock:
            for address, made in vault.unrecorded().items():
                self._tell(
                    f"{address} ({made}) was made when the binary was killed and is in no state: "
                    "delete it by the cloud's own means before it is made again."
                )

            def run(command: str, arguments: list[str], timeout_s: float) -> Ended:
                messages = _Messages(self._tell)
                ended = run_binary(
                    [str(binary), command, *arguments],
                    environment=environment,
                    folder=vault.work,
                    lock=lock,
                    timeout_s=timeout_s,
                    on_line=messages.take if command in ("plan", "apply") else None,
                )
                if ended.code != 0:
                    said = "\n".join(messages.errors) or ended.stderr.strip()
                    said = without_secrets(said, environment)[-MAX_MESSAGE_CHARS:]
                    raise ProvisioningError(
                        Reason.FAILED,
                        f"`{binary.name} {command}` ended with {ended.code}: {said}",
                        "What was made by then is kept; once the cause is gone, plan again."
                        if command == "apply" else "Nothing was changed.",
                    )  # fmt: skip
                return ended

            yield run

    def _remove_if_gone(self, vault: Vault) -> None:
        state = vault.state() or {}
        if any(each["mode"] == "managed" for each in state.get("resources", [])):
            return
        with vault.open():
            vault.remove()

    def _vault(self, name: str) -> Vault:
        return Vault(self._folder / name, name, self._keys)

    def _require(self, name: str) -> None:
        if not self._vault(name).exists:
            raise _no_state(name)

    def _told(self, name: str) -> dict[str, Any]:
        kept = self._vault(name).plan()
        if kept is None:
            raise _no_plan(name)
        return kept[1]


class _Messages:
    """Reads the binary's messages: shows what is known to be harmless, keeps the errors."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.errors: list[str] = []

    def take(self, line: str) -> None:
        """Take one line of `-json` output."""
        try:
            message = json.loads(line)
        except ValueError:
            return
        if not isinstance(message, dict):
            return
        if message.get("type") in TOLD:
            self._tell(str(message.get("@message", "")))
        elif message.get("type") == "diagnostic" and message.get("@level") == "error":
            found = message.get("diagnostic", {})
            place = f"{found['address']}: " if found.get("address") else ""
            self.errors.append(f"{place}{found.get('summary', '')}. {found.get('detail', '')}")


def _lay_out(vault: Vault, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        write_private(vault.work / name, content)


def _saved(told: Mapping[str, Any]) -> SavedPlan:
    changes = tuple(Change(address, Action(action)) for address, action in told["changes"])
    summary = PlanSummary(changes, told["outputs_change"])
    return SavedPlan(told["id"], Purpose(told["purpose"]), summary)


def _no_plan(name: str) -> ProvisioningError:
    return ProvisioningError(
        Reason.NO_PLAN, f"No such plan of {name} is kept.", "Plan again: a plan is applied once."
    )


def _no_state(name: str) -> ProvisioningError:
    return ProvisioningError(
        Reason.NO_STATE,
        f"Nothing here knows a cluster {name}.",
        "`gpuplane clusters provisioned` lists those made from this home.",
    )
