"""Calls of a benchmark binary on a phone: what is copied there, how it runs, and how it ends.

A call's processes end with us, however we end: the script on the phone watches its standard input,
which closes when the client, its server or the cable is gone, and then kills the binary. What an
older agent may have left behind in spite of that is killed before the next session.
"""

from __future__ import annotations

import secrets
import shlex
from pathlib import Path
from typing import Mapping, Sequence

from latfarm_agent.phones.device import ROOT, AdbDevice, AdbError, CommandOutput
from latfarm_agent.runtimes.adb.options import Binary
from latfarm_agent.runtimes.base import RuntimeFailure

_BINARIES = "bin"
_MODELS = "models"
_RUNS = f"{ROOT}/run"
_LONGEST_S = 86_400.0  # the protocol's own patience ends sooner

# Asynchronous lists read nothing unless told to: hence the third descriptor.
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
    """Runs binaries on one phone; raises `RuntimeFailure` whatever goes wrong.

    Args:
        device: the phone.
        core_mask: cores for the binaries, as `taskset` takes them; empty: any.
    """

    def __init__(self, device: AdbDevice, core_mask: str = "") -> None:
        self._device = device
        self._core_mask = core_mask

    def ready(self) -> None:
        """Reconnect if needed."""
        with _Typed():
            self._device.ready()

    def tidy(self, keep: int) -> None:
        """End what an older agent left behind; only the `keep` models last used stay there."""
        scripts = (
            _TIDY.format(runs=_RUNS, root=ROOT, binaries=_BINARIES),
            _PRUNE.format(root=ROOT, models=_MODELS, after=keep + 1),
        )
        with _Typed():
            self._device.shell("\n".join(scripts))

    def install(self, binary: Binary) -> str:
        """Have a binary or library on the phone; its checksum is verified before.

        Raises:
            RuntimeFailure: RUNTIME_MISSING where the file is not what the configuration says.
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
        """Have a model's files on the phone; gives their paths there."""
        with _Typed():
            return {name: self._device.push(path, _MODELS, name) for name, path in parts.items()}

    def call(
        self, binary: str, arguments: Sequence[str], libraries: Sequence[str] = ()
    ) -> CommandOutput:
        """Run a binary to its end."""
        words = [binary, *arguments]
        if self._core_mask:
            words = ["taskset", self._core_mask, *words]
        folders = ":".join(sorted({path.rsplit("/", 1)[0] for path in libraries}))
        environment = f"LD_LIBRARY_PATH={shlex.quote(folders)} " if folders else ""
        script = _SCRIPT.format(
            run=f"{_RUNS}/{secrets.token_hex(8)}",  # an older call's end must not touch ours
            environment=environment,
            command=" ".join(shlex.quote(word) for word in words),
        )
        with _Typed():
            return self._device.shell(script, timeout_s=_LONGEST_S, guarded=True)


class _Typed:
    """Turns an `AdbError` into the `RuntimeFailure` of the same code."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, AdbError):
            raise RuntimeFailure(error.code, str(error)) from error
