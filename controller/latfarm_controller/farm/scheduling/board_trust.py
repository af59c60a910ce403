"""Which boards get work: failures lead to quarantine and probation, decisions hold a board."""

from __future__ import annotations

from latfarm_controller.farm.scheduling.messages import (
    CHECKS,
    BoardHeld,
    BoardPartitioned,
    Instruction,
    ProbeAnswered,
    Quarantine,
    Standing,
    Withdraw,
)
from latfarm_controller.farm.scheduling.scheduler_state import SchedulerState
from latfarm_controller.farm.scheduling.state import Policy, ScheduledBoard


class BoardTrust:
    """Counts the failures of boards, and obeys what was decided about them.

    Args:
        state: of the scheduler; it is changed.
        policy: after how many failures and for how long a board is quarantined.
        out: instructions are appended to it.
    """

    def __init__(self, state: SchedulerState, policy: Policy, out: list[Instruction]) -> None:
        self._state = state
        self._policy = policy
        self._out = out

    def strike(
        self, board: ScheduledBoard, reason: str, now_s: float, *, last: bool = False
    ) -> None:
        """Count a failure; one at the limit, or one that is `last`, quarantines the board."""
        if last:
            board.strikes = max(board.strikes, self._policy.strike_limit - 1)
        board.strikes += 1
        if board.strikes >= self._policy.strike_limit and board.until_s is None:
            self._quarantine(board, reason, now_s)

    def probed(self, event: ProbeAnswered, now_s: float) -> None:
        """End the quarantine of a board that answered its probe well; else begin the next one."""
        board = self._state.boards.get(event.board_id)
        if board is None or not board.probing:
            return
        board.probing = False
        if event.healthy:
            board.until_s = None
            # On probation: the next failure in a row quarantines the board again.
            board.strikes = self._policy.strike_limit - 1
        else:
            self._quarantine(board, event.reason or "it failed its probe", now_s)

    def hold(self, event: BoardHeld) -> None:
        """Obey a decision: a drained board finishes what it runs, a quarantined one is stopped."""
        board = self._state.board(event.board_id)
        before = board.standing
        board.standing, board.checking = event.standing, event.checking
        if not board.held:
            if before is not Standing.UNPROVEN:
                # Whoever decides that the board works again has looked at it. A passed health check
                # leaves a board on probation that was quarantined for its failures.
                board.strikes = board.quarantines = 0
                board.until_s = None
            return
        stop = event.stop or board.standing is Standing.QUARANTINED
        for request_id in board.assigned:
            job = self._state.jobs.get(request_id)
            ours = job is not None and job.board == board.board_id
            if job is not None and ours and job.work.purpose not in CHECKS:
                # The board may have been asked to give the request back; now it must stop it too.
                if stop or not job.withdrawing:
                    self._out.append(Withdraw(board.board_id, request_id, abort=stop))
                self._state.withdraw(job)

    def partition(self, event: BoardPartitioned) -> None:
        """Note to which partitions a board belongs; it gives back what waits and is for others."""
        board = self._state.boards.get(event.board_id)
        if board is None:
            return
        board.offer(board.platforms, event.partitions)
        for request_id in board.assigned:
            job = self._state.jobs.get(request_id)
            ours = job is not None and job.board == board.board_id
            if job is None or not ours or job.withdrawing or job.work.queue in board.queues:
                continue
            self._state.withdraw(job)
            self._out.append(Withdraw(board.board_id, request_id))

    def _quarantine(self, board: ScheduledBoard, reason: str, now_s: float) -> None:
        board.quarantines += 1
        board.until_s = now_s + self._policy.quarantine(board.quarantines)
        self._out.append(Quarantine(board.board_id, board.until_s, reason))
        for request_id in board.assigned:
            job = self._state.jobs.get(request_id)
            if job is not None and job.board == board.board_id and not job.withdrawing:
                self._state.withdraw(job)
                self._out.append(Withdraw(board.board_id, request_id))
