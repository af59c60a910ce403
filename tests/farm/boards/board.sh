# Runs a virtual board from power-on to power-off. It is process 1 of a namespace of process ids: when
# it ends, the kernel ends everything on the board and unmounts the board's disk.
#
# Standard input is a pipe from the test's process. It closes when that process ends.
# Environment: LOWER, UPPER, WORK (folders of the overlay), ROOT (where the overlay is mounted), NETNS
# (path of the network namespace), CGROUPS (files to write "0" to, to join control groups),
# NOTIFY_SOCKET (where systemd reports each boot). Arguments: the last arguments of systemd-nspawn:
# --boot, or a program to run on the board.
set -eu
mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$UPPER,workdir=$WORK" "$ROOT"
# nspawn needs a folder that no other process writes to; this one is private to the namespace.
mkdir -p /run/systemd/nspawn
mount -t tmpfs -o mode=755 tmpfs /run/systemd/nspawn

boot() {
  for file in $CGROUPS; do
    echo 0 >"$file"
  done
  while true; do
    code=0
    # nspawn itself must be in the board's network: /sys/class/net shows the network of the process
    # that mounts /sys.
    nsenter --net="$NETNS" systemd-nspawn --quiet --register=no --keep-unit --notify-ready=yes --console=pipe \
      --directory="$ROOT" --network-namespace-path="$NETNS" "$@" </dev/null || code=$?
    # Exit status 133: the board asks for a reboot.
    if [ "$code" -ne 133 ]; then
      return "$code"
    fi
  done
}

exec 3<&0
boot "$@" &
cat <&3 >/dev/null &
wait -n
