"""What tests of scheduling need besides the fixtures of the rig."""

from __future__ import annotations

from tests.http_app import sealing_keys

__all__ = ["sealing_keys"]
