# One power-on of a virtual board, as process 1 of a namespace of its own: whichever way it ends,
# the kernel ends all that runs in the board with it, and unmounts its disk.
#
# Standard input is a pipe that the test's process holds: it closes when that process ends.
# Takes from the environment: LOWER, UPPER, WORK (the overlay's folders), ROOT (where it is mounted),
# NETNS (path of the network namespace), CGROUPS (files to join), NOTIFY_SOCKET (told of each boot);
# its arguments are nspawn's last: --boot, or another program to run in the board.
set -eu
mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$UPPER,workdir=$WORK" "$ROOT"
# nspawn wants a folder that only it writes to; this one is seen by nobody else.
mkdir -p /run/systemd/nspawn
mount -t tmpfs -o mode=755 tmpfs /run/systemd/nspawn

boot() {
  for file in $CGROUPS; do
    echo 0 >"$file"
  done
  while true; do
    code=0
    # Started in the board's network too: /sys/class/net shows that of who mounts it.
    nsenter --net="$NETNS" systemd-nspawn --quiet --register=no --keep-unit --notify-ready=yes --console=pipe \
      --directory="$ROOT" --network-namespace-path="$NETNS" "$@" </dev/null || code=$?
    # 133: the board asks for a reboot.
    if [ "$code" -ne 133 ]; then
      return "$code"
    fi
  done
}

exec 3<&0
boot "$@" &
cat <&3 >/dev/null &
wait -n
