"""The signature of what is sent to webhooks, and of what webhooks send to us: one form both ways.

`Gpuplane-Signature: t=<seconds>,v1=<hex>`, where the hex is HMAC-SHA256 over `<seconds>.<body>`.
"""

import hashlib
import hmac


def sign(secret: bytes, at_s: int, body: bytes) -> str:
    """Return the hex of a signature over the time, a dot and the body."""
    return hmac.new(secret, f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()


def is_signed(secret: bytes, at_s: int, body: bytes, given: str) -> bool:
    """Return whether a signature is that of the secret, in a time that tells nothing of it."""
    return hmac.compare_digest(sign(secret, at_s, body).encode(), given.encode())
