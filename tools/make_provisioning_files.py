"""Writes the files that the specifications of the tests make, to be reviewed as a difference.

    python -m tools.make_provisioning_files

The tests compare what is made with these files byte for byte.
"""

from gpuplane.core.provisioning.files import MAIN, plan_files
from gpuplane.core.provisioning.joining import Role, join_script
from tests.unit.core.provisioning.specifications import GOLDEN, of_clouds, of_machines


def made_files() -> dict[str, bytes]:
    """Return every file by its name."""
    found = {f"{name}.tf.json": plan_files(spec)[MAIN] for name, spec in of_clouds().items()}
    for name, spec in of_machines().items():
        for role in Role:
            found[f"{name}.{role}.sh"] = join_script(spec, role).encode()
    return found


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for file in GOLDEN.iterdir():
        file.unlink()
    for name, content in made_files().items():
        (GOLDEN / name).write_bytes(content)
