"""Single measurements are withdrawn, while the lease and the other measurements stay."""

from __future__ import annotations

from latfarm_agent import errors
from latfarm_agent.session.messages import (
    AcquireRequested,
    CancelJob,
    DropJob,
    MeasurementFinished,
    MeasureRequested,
    Refuse,
    ReleaseRequested,
    StartJob,
    Verdict,
    WithdrawRequested,
)
from latfarm_agent.session.session import CANCELLED
from tests.agent.session.test_session import job, running


def test_a_withdrawn_job_is_stopped_once_or_dropped_and_the_others_stay() -> None:
    session = running()
    for request_id in "bc":
        session.handle(MeasureRequested(2, job(request_id)))
    text = "the request was withdrawn before the measurement was done"
    assert session.handle(WithdrawRequested(3, 1, "b")) == [DropJob(job("b"), CANCELLED, text)]
    assert session.handle(WithdrawRequested(4, 1, "a")) == [CancelJob(job(), CANCELLED, text)]
    assert session.handle(WithdrawRequested(5, 1, "a")) == []
    assert session.queued == [job("c")]
    assert session.handle(MeasurementFinished(6, job(), Verdict.VOID)) == [StartJob(job("c"))]


def test_only_the_holder_can_withdraw_and_only_what_is_not_finished() -> None:
    session = running()
    [refused] = session.handle(WithdrawRequested(2, 7, "a"))
    assert isinstance(refused, Refuse)
    assert isinstance(refused.error, errors.LeaseLostError)
    assert session.handle(WithdrawRequested(3, 1, "unknown")) == []
    session.handle(MeasurementFinished(4, job(), Verdict.GOOD))
    assert session.handle(WithdrawRequested(5, 1, "a")) == []


def test_a_job_of_an_earlier_lease_is_not_withdrawn_by_the_next_holder() -> None:
    session = running()
    session.handle(ReleaseRequested(2, 1))
    session.handle(AcquireRequested(3, "bob", 5000))
    assert session.handle(WithdrawRequested(4, 2, "a")) == []
    assert session.running == job()
