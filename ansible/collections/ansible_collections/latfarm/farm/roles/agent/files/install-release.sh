#!/bin/sh
# Creates /opt/latfarm/releases/RELEASE from /opt/latfarm/wheels.tar with the interpreter PYTHON. It is a
# virtual environment that holds only what the archive lists, and each file is checked by its hash.
# Usage: install-release.sh PYTHON RELEASE [--system-site-packages] [--no-compile]
set -eu
python=$1 release=$2
shift 2
compile=--compile
site=
for word in "$@"; do
  case $word in
    --system-site-packages) site=$word ;;
    --no-compile) compile=$word ;;
  esac
done
umask 022
cd /opt/latfarm
place=releases/$release
# The programs of an environment contain the path of their folder, so it is created at its final place.
rm -rf "$place" wheels
mkdir wheels
tar -C wheels -xf wheels.tar
"$python" -m venv --without-pip $site "$place"
for pip in wheels/pip-*.whl; do :; done
"$place/bin/python" -B "$pip/pip" install --quiet --disable-pip-version-check --no-input --no-cache-dir \
  --no-index --find-links wheels --no-deps --ignore-installed --require-hashes $compile --requirement wheels/requirements.txt
cp wheels/release.json "$place/release.json"
rm -rf wheels wheels.tar
