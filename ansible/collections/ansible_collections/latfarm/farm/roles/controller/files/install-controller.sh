#!/bin/sh
# Creates PREFIX/releases/RELEASE from PREFIX/wheels.tar with the interpreter PYTHON. It is a virtual
# environment that holds only what the archive lists, and each file is checked by its hash. Wheels that
# are handed on to boards are put beside it, as they are.
# Usage: install-controller.sh PREFIX PYTHON RELEASE [--no-compile]
set -eu
prefix=$1 python=$2 release=$3 compile=${4:---compile}
umask 022
cd "$prefix"
place=releases/$release
# The programs of an environment contain the path of their folder, so it is created at its final place.
rm -rf "$place" wheels
mkdir wheels
tar -C wheels -xf wheels.tar
"$python" -m venv --without-pip "$prefix/$place"
for pip in wheels/pip-*.whl; do :; done
"$place/bin/python" -B "$pip/pip" install --quiet --disable-pip-version-check --no-input --no-cache-dir \
  --no-index --find-links wheels --no-deps --ignore-installed --require-hashes "$compile" --requirement wheels/requirements.txt
mkdir -p "$place/share/latfarm"
cp -r wheels/boards "$place/share/latfarm/boards"
cp wheels/release.json "$place/release.json"
rm -rf wheels wheels.tar
