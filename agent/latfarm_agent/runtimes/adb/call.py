"""Calls of a benchmark binary on a phone: what is copied there, how it runs, and how it ends.

The processes of a call end when this agent ends, in whatever way: the script on the phone watches
its standard input, which closes when the adb client, its server or the cable is gone, and then
kills the binary. If an older agent has left a process behind nevertheless, it is killed before the
next session.
"""

from __future__ import annotations

import secrets
import shlex
from pathlib import Path
from typing import Mapping, Sequence

from latfarm_agent.phones.device import ROOT, AdbDevice, AdbError, CommandOutput
from latfarm_agent.runtimes.adb.options import Binary
from latfarm_agent.runtimes.base import RuntimeFailure

# Folders on the phone.
_BINARIES = "bin"
_MODELS = "models"
_RUNS = f"{ROOT}/run"
_LONGEST_S = 86_400.0  # time limit of a call; the measuring loop's own limits are shorter

# A shell gives background commands no standard input, hence the third file descriptor.
_SCRIPT = """\
mkdir -p {run} && cd {run} || exit 125
exec 3<&0
{environment}{command} </dev/null 3<&- &
pid=$!
echo $pid >{run}/pid
trap 'kill -9 $pid 2>/dev/null' HUP TERM
( read -r x <&3; kill -9 $pid ) >/dev/null 2>&1 &
guard=$!
wait $pid
code=$?
kill -9 $guard 2>/dev/null
wait $guard 2>/dev/null
cd / && rm -rf {run}
exit $code"""

_TIDY = """\
for run in {runs}/*; do
  if [ -f $run/pid ]; then
    read -r pid <$run/pid
    case "$(tr '\\000' ' ' </proc/$pid/cmdline 2>/dev/null)" in
      *{root}/{binaries}/*) kill -9 $pid ;;
    esac
  fi
  rm -rf $run
done"""

_PRUNE = """\
cd {root}/{models} 2>/dev/null || exit 0
ls -t | tail -n +{after} | while read -r old; do rm -rf "$old"; done"""


class Caller:
    """Runs binaries on one phone. All its methods raise `RuntimeFailure` if anything goes wrong.

    Args:
        device: the phone.
        core_mask: cores for the binaries, as a hexadecimal mask of `taskset`; empty: all cores.
    """

    def __init__(self, device: AdbDevice, core_mask: str = "") -> None:
        self._device = device
        self._core_mask = core_mask

    def ready(self) -> None:
        """Reconnect to the phone if needed."""
        with _Typed():
            self._device.ready()

    def tidy(self, keep: int) -> None:
        """Kill processes of older agents, and remove all but the `keep` models used last."""
        scripts = (
            _TIDY.format(runs=_RUNS, root=ROOT, binaries=_BINARIES),
            _PRUNE.format(root=ROOT, models=_MODELS, after=keep + 1),
        )
        with _Typed():
            self._device.shell("\n".join(scripts))

    def install(self, binary: Binary) -> str:
        """Copy a binary or library to the phone, unless it is there; return its path there.

        Raises:
            RuntimeFailure: RUNTIME_MISSING if the file does not have the configured checksum.
        """
        try:
            with _Typed():
                return self._device.push(binary.path, _BINARIES, binary.path.name, binary.sha256)
        except RuntimeFailure as failure:
            if failure.code != AdbError.code:
                raise
            raise RuntimeFailure(
                "RUNTIME_MISSING",
                f"{failure.message}; install that file, or correct the configuration",
            ) from failure

    def send(self, parts: Mapping[str, Path]) -> dict[str, str]:
        """Copy the files of a model to the phone if needed; return their paths there."""
        with _Typed():
            return {name: self._device.push(path, _MODELS, name) for name, path in parts.items()}

    def call(
        self, binary: str, arguments: Sequence[str], libraries: Sequence[str] = ()
    ) -> CommandOutput:
        """Run a binary to its end.

        Args:
            binary: its path on the phone.
            arguments: its arguments.
            libraries: paths on the phone of shared libraries that it needs.
        """
        words = [binary, *arguments]
        if self._core_mask:
            words = ["taskset", self._core_mask, *words]
        folders = ":".join(sorted({path.rsplit("/", 1)[0] for path in libraries}))
        environment = f"LD_LIBRARY_PATH={shlex.quote(folders)} " if folders else ""
        script = _SCRIPT.format(
            run=f"{_RUNS}/{secrets.token_hex(8)}",  # an older call must not remove this folder
            environment=environment,
            command=" ".join(shlex.quote(word) for word in words),
        )
        with _Typed():
            return self._device.shell(script, timeout_s=_LONGEST_S, guarded=True)


class _Typed:
    """A context that turns an `AdbError` into a `RuntimeFailure` with the same code."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, AdbError):
            raise RuntimeFailure(error.code, str(error)) from error
