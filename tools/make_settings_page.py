"""Writes docs/reference/settings.md from the settings themselves."""

from pathlib import Path

from gpuplane.entry.environment import describe_settings

INTRO = (
    "Every setting of the control plane is an environment variable; `gpuplane up` takes the first "
    "four as options too. They make one frozen object at the start. A variable that begins with "
    "`GPUPLANE_` and is not in this table is an error, so that a slip of the pen is found at once."
)
CLIENT = (
    "The command line has its own: `GPUPLANE_URL` and `GPUPLANE_TOKEN` (else the address and the "
    "admin token in the home folder), `GPUPLANE_PROJECT`."
)
MADE = "This page is made by `python -m tools.make_settings_page`; a test compares it."
BOUNDS = (
    "A value outside of what a setting may be is refused before anything is opened, with exit "
    "code 2; so are `nan` and `inf`."
)
TABLE = "| variable | default | may be | unit | why |\n|---|---|---|---|---|\n"
HEAD = f"# Settings\n\n{INTRO}\n\n{CLIENT}\n\n{BOUNDS}\n\n{MADE}\n\n{TABLE}"


def render() -> str:
    """Return the page."""
    rows = [
        f"| `{row.variable}` | {_code(row.default)} | {row.values} | {row.unit} | {row.reason} |"
        for row in describe_settings()
    ]
    return HEAD + "\n".join(rows) + "\n"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    Path("docs/reference/settings.md").write_text(render(), encoding="utf-8")
