"""Runs one scenario from its start to its figures."""

from __future__ import annotations

import shutil
import tempfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from latfarm_controller.campaigns.kinds import make_campaign
from latfarm_controller.errors import ControllerError
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.measurement import Measurement

from tests.faults import checks
from tests.faults import scenario as kinds
from tests.faults.boards_under_test import PLATFORM, LeftAtBoard
from tests.faults.checks import Evidence, Findings, Values
from tests.faults.farm_under_test import (
    CAMPAIGN,
    FarmUnderTest,
    campaign_config,
    command_lines,
)
from tests.faults.fault_actions import ACTIONS, Strike
from tests.faults.programs.warm_start import WarmStart
from tests.faults.relay import RelayThread
from tests.faults.scenario import Scenario

RUN_S = 240.0
"""Longest time of a run in seconds; a campaign that is not done by then needs a hand."""

SETTLE_S = 20.0
"""How long boards may still hand over results after the campaign is done, in seconds."""

MOST_REQUESTS = 140
"""The largest campaign of all scenarios."""


def requests_of(count: int) -> list[str]:
    """The ids of the requests of a campaign of so many networks."""
    campaign = make_campaign("networks", PLATFORM, campaign_config(count))
    return [request.request_id for request in campaign.ask(count)]


def undisturbed_values(warm: WarmStart) -> dict[str, Values]:
    """The values of all requests in a run without any fault."""
    calm = Scenario(0, False, kinds.RACK, 4, MOST_REQUESTS, 1, 30_000)
    found, stored = _evidence(calm, warm, {})
    assert not found.story, found.story
    assert len(stored) == MOST_REQUESTS, "the undisturbed run is not complete"
    return {measurement.request_id: checks.values_of(measurement) for measurement in stored}


def run_scenario(
    scenario: Scenario, warm: WarmStart, undisturbed: Mapping[str, Values]
) -> dict[str, Any]:
    """Run a scenario; gives its report.

    Args:
        scenario: what to do.
        warm: starts processes.
        undisturbed: see `undisturbed_values`.
    """
    began_s = time.monotonic()
    try:
        evidence, _ = _evidence(scenario, warm, undisturbed)
        findings = checks.judged(evidence)
    except Exception as error:  # the other runs are worth their time all the same
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        findings = Findings(story=f"{type(error).__name__} at {where}: {error}", hands=1)
    return {
        **scenario.to_json(),
        "passed": findings.passed,
        "wall_s": round(time.monotonic() - began_s, 1),
        "findings": findings.to_json(),
    }


def _evidence(
    scenario: Scenario, warm: WarmStart, undisturbed: Mapping[str, Values]
) -> tuple[Evidence, list[Measurement]]:
    """Run a scenario; gives what was found, and the stored measurements."""
    folder = Path(tempfile.mkdtemp(prefix="lf-"))  # sockets need a short path
    try:
        with RelayThread() as relays:
            farm = FarmUnderTest(scenario, folder, warm, relays, time.monotonic() + RUN_S)
            found = Evidence(scenario, (), (), undisturbed, "", (), (), {}, (), ())
            try:
                found = _played(farm, found)
            finally:
                farm.close()
        stored, state = _stored(farm)
        found = replace(
            found,
            requests=requests_of(scenario.requests),
            stored=stored,
            state=state,
            events=farm.journal.events,
        )
        return found, stored
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _played(farm: FarmUnderTest, found: Evidence) -> Evidence:
    """Let everything happen, and look at what is left."""
    strikes: list[Strike] = []
    story = ""
    try:
        farm.start()
        _strike_all(farm, strikes)
        farm.wait_until(lambda: farm.ended, "the end of the campaign")
        _settle(farm)
    except (TimeoutError, AssertionError, ControllerError) as error:
        last = " ".join(farm.log_tail().split())[-600:]
        story = f"{type(error).__name__}: {error}; the controller's last words: {last}"
    if not farm.stop_controller():
        story = story or "the controller did not end in order"
    left = _left_for_good(farm)
    for process in farm.processes:
        process.stop()
    processes = _left_processes(farm)
    return replace(
        found,
        strikes=tuple(strikes),
        left=tuple(left),
        processes=tuple(processes),
        story=story,
        board_ids=_board_ids(farm),
    )


def _strike_all(farm: FarmUnderTest, strikes: list[Strike]) -> None:
    """Let each fault happen at its moment, one after the other."""
    for fault in farm.scenario.faults:
        action = ACTIONS.get(fault.kind)
        if action is None:
            continue
        if not farm.journal.wait_for_ends(fault.after, lambda: farm.over or farm.ended):
            return
        strike = action.strike(farm, fault)
        if strike is not None:
            strikes.append(strike)


def _settle(farm: FarmUnderTest) -> None:
    """Wait until the boards rest and have handed over everything, or for `SETTLE_S` seconds."""
    until_s = time.monotonic() + SETTLE_S
    while time.monotonic() < until_s and not farm.over:
        if not any(board.spooled or board.state == "running" for board in _left(farm)):
            return
        time.sleep(0.1)


def _left_for_good(farm: FarmUnderTest) -> list[LeftAtBoard]:
    """What boards keep although a lease that nobody gave back has ended by itself.

    A link that is cut as the controller stops keeps the board from hearing that it is free.
    """
    until_s = time.monotonic() + farm.scenario.lease_ms / 1000.0 + SETTLE_S
    while time.monotonic() < until_s:
        if all(board.state in checks.FREE_STATES for board in _left(farm)):
            break
        time.sleep(0.1)
    return _left(farm)


def _left(farm: FarmUnderTest) -> list[LeftAtBoard]:
    return [board for process in farm.processes for board in process.left()]


def _left_processes(farm: FarmUnderTest) -> list[str]:
    """Processes that do not end by themselves within `SETTLE_S` seconds."""
    for process in farm.processes:
        farm.started += process.pids
    until_s = time.monotonic() + SETTLE_S
    while (pids := farm.left_processes()) and time.monotonic() < until_s:
        time.sleep(0.1)
    return command_lines(pids)


def _board_ids(farm: FarmUnderTest) -> dict[str, str]:
    """The ids of the boards by their names, as the controller has noted them."""
    return {entry.name: entry.board_id for entry in farm.registry.list()}


def _stored(farm: FarmUnderTest) -> tuple[list[Measurement], str]:
    """The measurements of the campaign, and its state."""
    with DuckDBStore(farm.config.store_file) as store:
        record = store.get_campaign(CAMPAIGN)
        if record is None:
            return [], "never started"
        found = store.measurements(campaign_id=record.campaign_id)
        return list(found), record.state
