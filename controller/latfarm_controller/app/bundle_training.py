"""Trains bundles for the controller, in a process of their own.

A fit computes for minutes. In a thread of the controller it would share the interpreter with the
event loop, and all questions would wait for it. Only the controller reads the store; the process is
given what it needs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from latfarm_controller.errors import ControllerError, UsageError
from latfarm_controller.store.base import CampaignRecord, Store
from latfarm_controller.training.entering import EnteredModel, enter_model
from latfarm_controller.training.fit_child import FitTask
from latfarm_controller.training.new_bundle import numbered, unnumbered_bundle
from latfarm_controller.training.training import read_inputs

_MAIN = "from latfarm_controller.training.fit_child import main; main()"
COMMAND = (sys.executable, "-P", "-c", _MAIN)
"""Starts the process that fits a bundle, whatever modules the present folder has."""
END_S = 30.0
"""Longest wait for the process to end after its last word, in seconds."""

_log = logging.getLogger(__name__)


class TrainingStoppedError(ControllerError):
    """The training was stopped by a user."""


async def trained_bundle(
    store: Store,
    bundles_dir: Path,
    record: CampaignRecord,
    on_progress: Callable[[str, int, int], None],
    stop: asyncio.Event,
) -> EnteredModel:
    """Train a bundle from a campaign, and put it in use unless it predicts worse.

    Args:
        store: holds the measurements.
        bundles_dir: the folder of all bundles.
        record: the campaign.
        on_progress: called in the event loop with each stage, and how far it is.
        stop: ends the training when it is set.

    Raises:
        TrainingStoppedError: `stop` was set.
        UsageError: the campaign measured too little.
        StoreError: the measurements cannot be read, or the register cannot be written.
        ControllerError: the process failed.
    """
    platform = record.platform
    inputs = await asyncio.to_thread(
        read_inputs, store, platform, record.campaign_id, bundles_dir=bundles_dir
    )
    with unnumbered_bundle(bundles_dir, platform) as path:
        task = await asyncio.to_thread(FitTask(inputs, path, bundles_dir).to_bytes)
        fitting = asyncio.create_task(fit_apart(task, on_progress))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({fitting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not fitting.done():
                raise TrainingStoppedError("the training was stopped; the measurements are kept")
            fitting.result()
        finally:
            for each in (fitting, stopping):
                each.cancel()
            await asyncio.gather(fitting, stopping, return_exceptions=True)
        kept = await asyncio.to_thread(numbered, path)
    entered = await asyncio.to_thread(enter_model, kept, promote=True)
    for sentence in entered.sentences:
        _log.info("%s: %s", platform, sentence)
    return entered


async def fit_apart(task: bytes, on_progress: Callable[[str, int, int], None]) -> None:
    """Fit a bundle in another process; that is killed if this is cancelled.

    Args:
        task: what `FitTask.to_bytes` made.
        on_progress: called with each stage, and how far it is.

    Raises:
        UsageError: the campaign measured too little.
        ControllerError: the process failed.
    """
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C in a terminal reaches the controller alone
    )
    assert process.stdin is not None
    assert process.stdout is not None
    end: dict[str, Any] = {}
    try:
        with suppress(ConnectionError):  # its end says why it does not read
            process.stdin.write(task)
            await process.stdin.drain()
        async for line in process.stdout:
            told = json.loads(line)
            if "end" in told:
                end = told
            else:
                on_progress(str(told["stage"]), int(told["done"]), int(told["total"]))
        async with asyncio.timeout(END_S):
            await process.wait()
    finally:
        process.stdin.close()
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.stdout.read()  # to the end, so that the pipe is closed
            await process.wait()
    if end.get("end") == "usage":
        raise UsageError(end["error"])
    if end.get("end") != "done":
        why = end.get("error") or f"the process ended with code {process.returncode}"
        raise ControllerError(f"the training failed: {why}")
