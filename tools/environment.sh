#!/usr/bin/env bash
# Brings a virtual environment to what a hashed requirement file says, and does nothing when it
# already is: `tools/environment.sh .venv-run requirements/runtime.txt`.
# The stamp is written last, so an interrupted set-up is simply done again.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1 requirements=$2

find_python() {
    local name
    for name in ${PYTHON:-python3.11 python3 python3.12 python3.13}; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    echo "gpuplane needs Python 3.11 or newer. On Debian 12: apt install python3 python3-venv" >&2
    exit 1
}

# The folder's own path is part of it, because a moved environment does not start.
# The settings of the tools in pyproject.toml are not: they install nothing.
stamp=$folder/.made-from-$(
    { cat "$requirements"; sed '/^\[tool\.ruff/,$d' pyproject.toml; pwd; } | sha256sum | cut -c1-16
)
if [ -e "$stamp" ] && [ -x "$folder/bin/python" ]; then
    exit 0
fi

python=$(find_python)
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "$python cannot make virtual environments. On Debian 12: apt install python3-venv" >&2
    exit 1
fi
echo "Making $folder from $requirements …" >&2
rm -f "$folder"/.made-from-*
if ! "$folder/bin/python" -c '' 2>/dev/null; then
    "$python" -m venv --clear "$folder"
fi
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
"$folder/bin/python" -m pip install --quiet --require-hashes -r "$requirements"
"$folder/bin/python" -m pip install --quiet --no-deps --no-build-isolation --editable .
touch "$stamp"
