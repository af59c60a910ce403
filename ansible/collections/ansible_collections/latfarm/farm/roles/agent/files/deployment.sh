#!/bin/sh
# Keeps and restores what a board runs: the link to its release, its units, configuration and settings.
# Certificates, models and results are no part of it.
# Usage: deployment.sh VERB PLACE COPY
#   save:    store what the board runs in COPY
#   restore: let the board run what COPY holds; the services are not restarted
#   keep:    COPY becomes "former", to which a rollback goes
#   forget:  remove COPY
# PLACE: "-" for the board that has its machine for itself, or "/agents/NAME" for one that shares it.
# LATFARM_ROOT in the environment: folder below which all files are found; for tests.
set -eu
verb=$1 copy=$3
root=${LATFARM_ROOT:-}
below=
name=
if [ "$2" != - ]; then
  below=$2
  name=${2##*/}
fi
state=$root/var/lib/latfarm$below
store=$state/$copy
link=$root/opt/latfarm$below/venv

paths() {
  for file in agent.json agent.env settings.json; do
    echo "/etc/latfarm$below/$file"
  done
  for unit in worker agent settings; do
    echo "/etc/systemd/system/latfarm-$unit${name:+@$name}.service"
  done
  echo "/etc/udev/rules.d/70-latfarm${name:+-$name}.rules"
  # Files of the whole machine belong to the board that has it for itself.
  if [ -z "$name" ]; then
    echo /etc/systemd/system/latfarm-adb.service
    echo /etc/systemd/journald@latfarm.conf
    echo /etc/systemd/journald.conf.d/latfarm.conf
    echo /etc/systemd/timesyncd.conf.d/latfarm.conf
    echo /etc/chrony/conf.d/latfarm.conf
  fi
}

case $verb in
  save)
    rm -rf "$store" "$store.part"
    mkdir -m 0700 "$store.part"
    paths | while read -r path; do
      if [ -e "$root$path" ]; then
        mkdir -p "$store.part/files$(dirname "$path")"
        cp -a "$root$path" "$store.part/files$path"
      fi
    done
    readlink "$link" >"$store.part/release"
    mv "$store.part" "$store"
    ;;
  restore)
    release=$(cat "$store/release")
    test -e "$(dirname "$link")/$release/release.json" || {
      echo "the release $release is not installed any more" >&2
      exit 1
    }
    paths | while read -r path; do
      if [ -e "$store/files$path" ]; then
        cp -a "$store/files$path" "$root$path"
      else
        rm -f "$root$path"
      fi
    done
    ln -sfn "$release" "$link.new"
    mv -T "$link.new" "$link"
    [ -n "$root" ] || systemctl daemon-reload
    ;;
  keep)
    rm -rf "$state/former"
    mv "$store" "$state/former"
    ;;
  forget)
    rm -rf "$store"
    ;;
esac
