#!/usr/bin/env bash
# python-environment.sh PYTHON VENV REQUIREMENTS: a virtual environment with exactly the locked packages and this project.
set -euo pipefail
python=$1 venv=$2 requirements=$3

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "frostline needs Python 3.11 or newer as '$python'. Install it, or say: make PYTHON=/path/to/python3.11 …" >&2
  exit 1
fi
if [ ! -x "$venv/bin/python" ]; then
  if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    echo "Python's venv module is missing; installing it …" >&2
    sudo=""; [ "$(id -u)" = 0 ] || sudo=sudo
    $sudo apt-get install -y -q python3-venv >/dev/null ||
      { echo "Please run: sudo apt-get update && sudo apt-get install python3-venv" >&2; exit 1; }
  fi
  "$python" -m venv "$venv"
fi
echo "Installing the locked packages of $requirements …" >&2
"$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps --require-hashes -r "$requirements"
"$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
