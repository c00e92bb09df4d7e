"""Reads in a cluster's sentence that a webhook of it does not answer, and says what to do.

Owns the reading of such sentences: a webhook that answers with a refusal is none of them.
"""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

_FAILED = re.compile(
    r'failed calling webhook "(?P<name>[^"]+)": (?:failed to call webhook: )?(?P<cause>.*)',
    re.DOTALL,
)
_ASKED = re.compile(r'^(?:Post|Get) "(?P<url>[^"]+)": (?P<cause>.*)$', re.DOTALL)
MAX_CAUSE_CHARS = 300


@dataclass(frozen=True, slots=True)
class SilentWebhook:
    """A webhook that the API server asked and that did not answer.

    Attributes:
        name: As its configuration has it, such as `mjob.kb.io`.
        service: `service.namespace` behind it; the host where it is outside the cluster, empty
            where the sentence tells neither.
        cause: Why there was no answer.

    Source:
        Kubernetes, apiserver `pkg/admission/plugin/webhook`: the error of a webhook whose
        failurePolicy is Fail.
    """

    name: str
    service: str
    cause: str

    @property
    def sentence(self) -> str:
        """Return what does not answer, what it means and what to do."""
        behind = f" ({self.service})" if self.service else ""
        where = f"the pods of {self.service}" if self.service else "what serves it"
        return (
            f'The webhook "{self.name}"{behind} of the cluster does not answer: {self.cause}. Until'
            " it does the cluster takes no such object; it is tried again by itself. Look after"
            f" {where}, or take its webhook configuration away if it is not used any more."
        )


def find_silent(message: str) -> SilentWebhook | None:
    """Return the webhook of which a message says that it does not answer, None without one."""
    found = _FAILED.search(message)
    if found is None:
        return None
    cause, service = found["cause"].strip(), ""
    asked = _ASKED.match(cause)
    if asked is not None:
        cause, host = asked["cause"], urlsplit(asked["url"]).hostname or ""
        service = host.removesuffix(".svc")
    return SilentWebhook(found["name"], service, cause[:MAX_CAUSE_CHARS].rstrip(". "))


def told(message: str) -> str:
    """Return a cluster's sentence, in other words where it says that a webhook is silent."""
    found = find_silent(message)
    return message if found is None else found.sentence
