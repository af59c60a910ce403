#!/bin/sh
# Makes /opt/latfarm/releases/RELEASE from /opt/latfarm/wheels.tar, with PYTHON: a virtual
# environment with nothing in it but what the archive lists, each file checked by its hash.
# install-release.sh PYTHON RELEASE [--system-site-packages] [--no-compile]
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
# Its programs name the folder that they lie in, so it is made in place; release.json comes last.
rm -rf "$place" wheels
mkdir wheels
tar -C wheels -xf wheels.tar
"$python" -m venv --without-pip $site "$place"
for pip in wheels/pip-*.whl; do :; done
"$place/bin/python" -B "$pip/pip" install --quiet --disable-pip-version-check --no-input --no-cache-dir \
  --no-index --find-links wheels --no-deps --ignore-installed --require-hashes $compile --requirement wheels/requirements.txt
cp wheels/release.json "$place/release.json"
rm -rf wheels wheels.tar
