"""The session decides without I/O, so that whole lists of instructions are compared."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from latfarm_agent import errors
from latfarm_agent.session.messages import (
    AcquireRequested,
    AdmitJob,
    CancelJob,
    DropJob,
    EndLease,
    GrantLease,
    Instruction,
    JoinJob,
    MeasurementFinished,
    MeasurementJob,
    MeasureRequested,
    PersistToken,
    Refuse,
    ReleaseRequested,
    RenewRequested,
    ReplayResult,
    SessionState,
    StartJob,
    StopRequested,
    Ticked,
    Verdict,
    WithdrawRequested,
)
from latfarm_agent.session.session import (
    AGENT_STOPPED,
    LEASE_LOST,
    QUARANTINED,
    Session,
    SessionLimits,
)

LIMITS = SessionLimits(
    max_ttl_ms=10_000, max_queue=2, cooldown_ms=100, faults_to_quarantine=2, quarantine_ms=1000
)


def job(request_id: str = "a", token: int = 1, question: str = "?") -> MeasurementJob:
    return MeasurementJob(request_id, token, question)


def leased(ttl_ms: int = 5000) -> Session:
    session = Session(limits=LIMITS)
    session.handle(AcquireRequested(0, "ann", ttl_ms))
    return session


def running(ttl_ms: int = 5000) -> Session:
    session = leased(ttl_ms)
    session.handle(MeasureRequested(1, job()))
    return session


def refusal(instructions: list[Instruction]) -> errors.LatfarmAgentError:
    (refuse,) = instructions
    assert isinstance(refuse, Refuse)
    return refuse.error


def test_a_lease_persists_its_token_before_it_is_granted() -> None:
    session = Session(last_token=7, limits=LIMITS)
    assert session.handle(AcquireRequested(0, "ann", 500)) == [PersistToken(8), GrantLease(8, 500)]
    assert session.state is SessionState.LEASED
    assert session.next_deadline_ms == 500


def test_a_lease_is_never_longer_than_allowed() -> None:
    session = Session(limits=LIMITS)
    assert GrantLease(1, 10_000) in session.handle(AcquireRequested(0, "ann", 2**32 - 1))
    assert session.handle(RenewRequested(1, 1, 2**32 - 1)) == [GrantLease(1, 10_000)]


@pytest.mark.parametrize(("holder", "ttl_ms"), [("", 500), ("x" * 201, 500), ("ann", 0)])
def test_a_lease_without_holder_or_time_is_refused(holder: str, ttl_ms: int) -> None:
    error = refusal(Session(limits=LIMITS).handle(AcquireRequested(0, holder, ttl_ms)))
    assert isinstance(error, errors.RequestError)


def test_a_second_holder_hears_who_has_the_board() -> None:
    error = refusal(leased().handle(AcquireRequested(1000, "bob", 500)))
    assert isinstance(error, errors.LeaseHeldError)
    assert str(error) == "the board is leased to ann for another 4.0 s"


def test_an_expired_lease_frees_the_board_and_its_token_is_dead() -> None:
    session = leased(ttl_ms=500)
    assert session.handle(AcquireRequested(500, "bob", 700)) == [
        EndLease(1, "ann", "expired"),
        PersistToken(2),
        GrantLease(2, 700),
    ]
    for event in (
        RenewRequested(501, 1, 500),
        ReleaseRequested(501, 1),
        MeasureRequested(501, job()),
    ):
        error = refusal(session.handle(event))
        assert isinstance(error, errors.LeaseLostError)
        assert "bob holds token 2" in str(error)


@pytest.mark.parametrize("token", [0, 2, 2**64 - 1])
def test_a_token_that_was_never_granted_is_refused(token: int) -> None:
    error = refusal(leased().handle(MeasureRequested(1, job(token=token))))
    assert isinstance(error, errors.LeaseLostError)
    assert "never granted" in str(error)


def test_renewal_moves_the_end() -> None:
    session = leased(ttl_ms=500)
    session.handle(RenewRequested(400, 1, 500))
    assert session.handle(Ticked(899)) == []
    assert session.handle(Ticked(900)) == [EndLease(1, "ann", "expired")]


def test_a_clock_that_goes_back_revives_nothing() -> None:
    session = leased(ttl_ms=500)
    session.handle(Ticked(600))
    assert isinstance(refusal(session.handle(RenewRequested(100, 1, 500))), errors.LeaseLostError)


def test_one_measurement_at_a_time_the_rest_queue_in_order() -> None:
    session = leased()
    one, two, three = job("1"), job("2"), job("3")
    assert session.handle(MeasureRequested(1, one)) == [AdmitJob(one), StartJob(one)]
    assert session.handle(MeasureRequested(2, two)) == [AdmitJob(two)]
    assert session.handle(MeasureRequested(3, three)) == [AdmitJob(three)]
    error = refusal(session.handle(MeasureRequested(4, job("4"))))
    assert isinstance(error, errors.BusyError)
    assert session.handle(MeasurementFinished(5, one, Verdict.GOOD)) == [StartJob(two)]
    assert session.handle(MeasurementFinished(6, two, Verdict.GOOD)) == [StartJob(three)]
    assert session.handle(MeasurementFinished(7, three, Verdict.GOOD)) == []
    assert session.state is SessionState.LEASED


def test_the_same_question_joins_and_another_under_its_id_conflicts() -> None:
    session = running()
    assert session.handle(MeasureRequested(2, job())) == [JoinJob(job())]
    other = refusal(session.handle(MeasureRequested(3, job(question="!"))))
    assert isinstance(other, errors.RequestConflictError)


def test_a_spooled_answer_is_replayed_and_another_question_conflicts() -> None:
    session = leased()
    assert session.handle(MeasureRequested(1, job(), answered="?")) == [ReplayResult("a")]
    other = refusal(session.handle(MeasureRequested(2, job(), answered="!")))
    assert isinstance(other, errors.RequestConflictError)


def test_the_end_of_a_lease_cancels_what_runs_and_drops_what_waits() -> None:
    session = running(ttl_ms=500)
    session.handle(MeasureRequested(2, job("b")))
    ended, cancel, drop = session.handle(Ticked(500))
    assert ended == EndLease(1, "ann", "expired")
    assert isinstance(cancel, CancelJob)
    assert (cancel.job, cancel.code) == (job(), LEASE_LOST)
    assert "ann was expired" in cancel.message
    assert isinstance(drop, DropJob)
    assert (drop.job, drop.code) == (job("b"), LEASE_LOST)
    assert session.state is SessionState.RUNNING, "until the bench has stopped"


def test_a_new_holder_waits_for_the_cancelled_job_and_does_not_join_it() -> None:
    session = running()
    session.handle(ReleaseRequested(2, 1))
    session.handle(AcquireRequested(3, "bob", 500))
    again = job(token=2)
    assert session.handle(MeasureRequested(4, again)) == [AdmitJob(again)]
    assert session.handle(MeasurementFinished(5, job(), Verdict.VOID)) == [StartJob(again)]


def test_a_hot_board_rests_before_the_next_measurement() -> None:
    session = running()
    assert session.handle(MeasurementFinished(10, job(), Verdict.HOT)) == []
    assert session.state is SessionState.COOLING
    assert session.handle(MeasureRequested(11, job("b"))) == [AdmitJob(job("b"))]
    assert session.next_deadline_ms == 110
    assert session.handle(Ticked(110)) == [StartJob(job("b"))]


def test_faults_in_a_row_quarantine_and_one_more_on_probation_does_again() -> None:
    session = running()
    session.handle(MeasurementFinished(2, job(), Verdict.FAULTY))
    session.handle(MeasureRequested(3, job("b")))
    session.handle(MeasureRequested(3, job("c")))
    (drop,) = session.handle(MeasurementFinished(4, job("b"), Verdict.FAULTY))
    assert isinstance(drop, DropJob)
    assert (drop.job, drop.code) == (job("c"), QUARANTINED)
    assert session.state is SessionState.QUARANTINED
    refused = refusal(session.handle(MeasureRequested(5, job("d"))))
    assert isinstance(refused, errors.QuarantinedError)
    assert session.handle(RenewRequested(6, 1, 5000)) == [GrantLease(1, 5000)]

    session.handle(MeasureRequested(1004, job("e")))
    session.handle(MeasurementFinished(1005, job("e"), Verdict.FAULTY))
    assert session.state is SessionState.QUARANTINED
    session.handle(ReleaseRequested(1006, 1))
    error = refusal(session.handle(AcquireRequested(1007, "bob", 500)))
    assert isinstance(error, errors.QuarantinedError)


@pytest.mark.parametrize(("verdict", "state"), [
    (Verdict.GOOD, SessionState.LEASED), (Verdict.VOID, SessionState.QUARANTINED)
])  # fmt: skip
def test_a_good_measurement_forgives_faults_and_a_void_one_does_not(
    verdict: Verdict, state: SessionState
) -> None:
    session = running()
    session.handle(MeasurementFinished(2, job(), Verdict.FAULTY))
    session.handle(MeasureRequested(3, job("b")))
    session.handle(MeasurementFinished(4, job("b"), verdict))
    session.handle(MeasureRequested(5, job("c")))
    session.handle(MeasurementFinished(6, job("c"), Verdict.FAULTY))
    assert session.state is state


def test_stopping_cancels_drops_and_refuses() -> None:
    session = running()
    session.handle(MeasureRequested(2, job("b")))
    cancel, drop = session.handle(StopRequested(3))
    assert isinstance(cancel, CancelJob)
    assert cancel.code == AGENT_STOPPED
    assert isinstance(drop, DropJob)
    assert drop.code == AGENT_STOPPED
    refused = refusal(session.handle(MeasureRequested(4, job("c"))))
    assert isinstance(refused, errors.StoppingError)
    session.handle(ReleaseRequested(5, 1))
    refused = refusal(session.handle(AcquireRequested(6, "bob", 1)))
    assert isinstance(refused, errors.StoppingError)


def test_only_the_running_job_can_finish() -> None:
    with pytest.raises(ValueError, match="not the running job"):
        running().handle(MeasurementFinished(2, job("b"), Verdict.GOOD))


class SessionMachine(RuleBasedStateMachine):
    """Holders that come, go and crash, and a clock that usually goes forward."""

    def __init__(self) -> None:
        super().__init__()
        self.session = Session(limits=LIMITS)
        self.now_ms = 0.0
        self.granted: list[int] = []
        self.persisted = 0
        self.active_token: int | None = None
        self.started: MeasurementJob | None = None
        self.live: dict[MeasurementJob, str] = {}
        self.stopping = False

    def send(self, event: object) -> list[Instruction]:
        instructions = self.session.handle(event)  # type: ignore[arg-type]
        for instruction in instructions:
            if isinstance(instruction, PersistToken):
                assert instruction.token > self.persisted, "tokens only grow"
                self.persisted = instruction.token
            elif isinstance(instruction, GrantLease):
                assert instruction.token <= self.persisted, "granted before it was persisted"
                assert 0 < instruction.ttl_ms <= LIMITS.max_ttl_ms
                if instruction.token != self.active_token:
                    assert self.active_token is None, "two leases at once"
                    self.granted.append(instruction.token)
                self.active_token = instruction.token
            elif isinstance(instruction, EndLease):
                assert instruction.token == self.active_token
                self.active_token = None
            elif isinstance(instruction, AdmitJob):
                assert instruction.job not in self.live
                assert instruction.job.token == self.active_token
                self.live[instruction.job] = "queued"
            elif isinstance(instruction, JoinJob):
                assert self.live[instruction.job] in ("queued", "running")
                assert instruction.job.token == self.active_token
            elif isinstance(instruction, StartJob):
                assert self.started is None, "two measurements at once"
                assert self.live[instruction.job] == "queued"
                assert instruction.job.token == self.active_token, "started under a lost lease"
                self.live[instruction.job] = "running"
                self.started = instruction.job
            elif isinstance(instruction, CancelJob):
                assert instruction.job == self.started
                assert self.live[instruction.job] == "running", "cancelled twice"
                self.live[instruction.job] = "cancelled"
            elif isinstance(instruction, DropJob):
                assert self.live.pop(instruction.job) == "queued"
        return instructions

    @rule(step_ms=st.sampled_from([-50, 0, 1, 60, 400, 3000, 20_000]))
    def pass_time(self, step_ms: int) -> None:
        self.now_ms += step_ms
        self.send(Ticked(self.now_ms))

    @rule(
        holder=st.sampled_from(["ann", "bob"]),
        ttl_ms=st.sampled_from([1, 500, 50_000]),
        holder_id=st.sampled_from(["", "", "secret"]),
    )
    def acquire(self, holder: str, ttl_ms: int, holder_id: str) -> None:
        self.send(AcquireRequested(self.now_ms, holder, ttl_ms, holder_id))

    @rule(age=st.integers(-1, 2), ttl_ms=st.sampled_from([1, 500, 50_000]))
    def renew(self, age: int, ttl_ms: int) -> None:
        token = max(0, self.persisted - age)
        instructions = self.send(RenewRequested(self.now_ms, token, ttl_ms))
        held = token == self.active_token
        assert isinstance(instructions[-1], StartJob) or (
            isinstance(instructions[-1], GrantLease) == held
        )

    @rule(age=st.integers(-1, 2))
    def release(self, age: int) -> None:
        self.send(ReleaseRequested(self.now_ms, max(0, self.persisted - age)))

    @rule(
        request_id=st.sampled_from("abcd"),
        question=st.sampled_from("??!"),
        age=st.sampled_from([-1, 0, 0, 0, 0, 1]),
        answered=st.sampled_from([None, None, "?"]),
    )
    def measure(self, request_id: str, question: str, age: int, answered: str | None) -> None:
        token = max(0, self.persisted - age)
        asked = MeasurementJob(request_id, token, question)
        instructions = self.send(MeasureRequested(self.now_ms, asked, answered))
        answers = [
            item
            for item in instructions
            if isinstance(item, (Refuse, AdmitJob, JoinJob, ReplayResult))
        ]
        assert len(answers) == 1, "each request has exactly one answer"
        if token != self.active_token or self.stopping:
            assert isinstance(answers[0], Refuse)

    @rule(request_id=st.sampled_from("abcd"), age=st.sampled_from([-1, 0, 0, 0, 1]))
    def withdraw(self, request_id: str, age: int) -> None:
        token = max(0, self.persisted - age)
        before = dict(self.live)
        instructions = self.send(WithdrawRequested(self.now_ms, token, request_id))
        touched = [item for item in instructions if isinstance(item, (CancelJob, DropJob))]
        if token == self.active_token and not any(isinstance(i, EndLease) for i in instructions):
            asked = {"queued", "running"}
            named = [one for one in before if (one.request_id, one.token) == (request_id, token)]
            assert [item.job for item in touched] == [n for n in named if before[n] in asked][:1]

    @precondition(lambda self: self.started is not None)
    @rule(verdict=st.sampled_from(list(Verdict)))
    def finish(self, verdict: Verdict) -> None:
        assert self.started is not None
        job_done, self.started = self.started, None
        if self.live.pop(job_done) == "cancelled":
            verdict = Verdict.VOID
        self.send(MeasurementFinished(self.now_ms, job_done, verdict))

    @precondition(lambda self: len(self.granted) > 3)
    @rule()
    def restart(self) -> None:
        """The agent is killed: only the token on disk remains."""
        self.session = Session(self.persisted, LIMITS)
        self.active_token = None
        self.started = None
        self.live.clear()
        self.granted.clear()
        self.stopping = False

    @precondition(lambda self: len(self.granted) > 2)
    @rule()
    def stop(self) -> None:
        self.send(StopRequested(self.now_ms))
        self.stopping = True
        assert all(state == "cancelled" for state in self.live.values())

    @invariant()
    def the_session_tells_what_it_told(self) -> None:
        session = self.session
        assert session.running == self.started
        lease = session.lease
        assert (lease.token if lease else None) == self.active_token
        assert session.queued == [one for one, state in self.live.items() if state == "queued"]
        assert len(session.queued) <= LIMITS.max_queue
        assert session.state is not SessionState.RUNNING or self.started is not None
        if session.queued and self.started is None:
            assert session.next_deadline_ms is not None, "somebody waits for nothing"
        assert session.last_token == self.persisted

    @invariant()
    def no_lease_outlives_its_time(self) -> None:
        lease = self.session.lease
        assert lease is None or lease.expires_at_ms > self.now_ms


TestSessionMachine = SessionMachine.TestCase
TestSessionMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
