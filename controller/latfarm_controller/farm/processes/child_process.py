"""The Ray process as the controller sees it: how it is started, and when all of it has ended."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from latfarm_controller.farm.processes.channel import Channel
from latfarm_controller.private_files import FILE_MODE

COMMAND = (sys.executable, "-P", "-m", "latfarm_controller.farm.processes.ray_child")
"""Starts the Ray process, whatever modules the present folder has; two descriptors follow."""
KILLED_S = 15.0
"""Longest time that the cleanup process may take after the Ray process was killed, in seconds."""


class ChildProcess:
    """A started Ray process, with the channel to it. Use it from one event loop.

    It runs in a session of its own, so that Ctrl-C in a terminal reaches only the controller.
    """

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel, life: int) -> None:
        self._process = process
        self.channel = channel
        self._life = life
        self._gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(life, self._look)

    @staticmethod
    async def start(command: Sequence[str], log_path: Path | None) -> ChildProcess:
        """Start the process.

        Args:
            command: what starts it; the two file descriptors of `ray_child` are added.
            log_path: the file to which its output is added; None: its output is dropped.

        Raises:
            OSError: it cannot be started.
        """
        ours, theirs = socket.socketpair()
        life, held = os.pipe()
        log = -1
        try:
            if log_path is not None:
                log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
            process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(held)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if log < 0 else log,
                stderr=subprocess.DEVNULL if log < 0 else log,
                start_new_session=True,
                pass_fds=(theirs.fileno(), held),
            )
        except OSError:
            ours.close()
            os.close(life)
            raise
        finally:
            theirs.close()
            os.close(held)
            if log >= 0:
                os.close(log)
        try:
            channel = await Channel.over(ours)
        except BaseException:  # the controller stops meanwhile; the process has no task yet
            process.kill()
            process.wait()
            ours.close()
            os.close(life)
            raise
        return ChildProcess(process, channel, life)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    async def end(self, grace_s: float) -> None:
        """Close the channel, and wait until the process and its cleanup have ended.

        A cancellation ends the grace: the process is killed at once.

        Args:
            grace_s: seconds until the process is killed.
        """
        try:
            await self.channel.close()
            if not await self._ended_within(grace_s):
                self._process.kill()
                await self._ended_within(KILLED_S)
        finally:
            asyncio.get_running_loop().remove_reader(self._life)
            os.close(self._life)
            self._process.kill()  # it has usually closed the pipe, and is about to end
            await asyncio.to_thread(self._process.wait)

    async def _ended_within(self, longest_s: float) -> bool:
        try:
            async with asyncio.timeout(longest_s):
                await self._gone.wait()
        except TimeoutError:
            return False
        return True

    def _look(self) -> None:
        """Nobody writes into the pipe, so it is readable once its last holder has ended."""
        asyncio.get_running_loop().remove_reader(self._life)
        self._gone.set()
