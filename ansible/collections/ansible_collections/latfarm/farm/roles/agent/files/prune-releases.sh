#!/bin/sh
# Removes releases from /opt/latfarm/releases and prints their names. A release stays if a board of this
# machine uses it or can go back to it, and if it is among the KEEP newest. FAILED goes even if it is new.
# Usage: prune-releases.sh KEEP [FAILED]
# LATFARM_ROOT in the environment: folder below which all files are found; for tests.
set -eu
keep=$1 failed=${2:-}
root=${LATFARM_ROOT:-}
cd "$root/opt/latfarm/releases"
used=$(
  for link in "$root"/opt/latfarm/venv "$root"/opt/latfarm/agents/*/venv; do
    [ ! -L "$link" ] || basename "$(readlink "$link")"
  done
  for file in "$root"/var/lib/latfarm/former/release "$root"/var/lib/latfarm/agents/*/former/release; do
    [ ! -e "$file" ] || basename "$(cat "$file")"
  done
)
number=0
for name in $(ls -t); do
  number=$((number + 1))
  if printf '%s\n' "$used" | grep -qxF -- "$name"; then
    continue
  fi
  if [ "$name" = "$failed" ] || [ "$number" -gt "$keep" ]; then
    rm -rf -- "$name"
    printf '%s\n' "$name"
  fi
done
