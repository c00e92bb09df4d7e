"""Writes docs/reference/settings.md from the settings themselves."""

from pathlib import Path

from gpuplane.entry.settings import describe_settings

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
TABLE = "| variable | default | unit | why |\n|---|---|---|---|\n"
HEAD = f"# Settings\n\n{INTRO}\n\n{CLIENT}\n\n{MADE}\n\n{TABLE}"


def render() -> str:
    """Return the page."""
    rows = [
        f"| `{row.variable}` | `{row.default}` | {row.unit} | {row.reason} |"
        if row.default
        else f"| `{row.variable}` |  | {row.unit} | {row.reason} |"
        for row in describe_settings()
    ]
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    Path("docs/reference/settings.md").write_text(render(), encoding="utf-8")
