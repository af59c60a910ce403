"""A holder that was killed and came back gets its board at once, and nobody else does."""

from __future__ import annotations

from latfarm_agent import errors
from latfarm_agent.session.messages import (
    AcquireRequested,
    CancelJob,
    DropJob,
    EndLease,
    GrantLease,
    MeasurementFinished,
    MeasurementJob,
    MeasureRequested,
    PersistToken,
    Refuse,
    RenewRequested,
    StartJob,
    Verdict,
)
from latfarm_agent.session.session import LEASE_LOST, MAX_HOLDER_CHARS, Session


def held(holder_id: str = "secret") -> Session:
    session = Session()
    session.handle(AcquireRequested(0, "ann", 5000, holder_id))
    return session


def test_the_same_holder_gets_a_new_lease_at_once() -> None:
    session = held()
    assert session.handle(AcquireRequested(10, "ann again", 3000, "secret")) == [
        EndLease(1, "ann", "replaced"),
        PersistToken(2),
        GrantLease(2, 3000),
    ]
    lease = session.lease
    assert lease is not None
    assert (lease.holder, lease.expires_at_ms) == ("ann again", 3010)


def test_the_new_token_fences_off_the_old_one() -> None:
    session = held()
    session.handle(AcquireRequested(10, "ann", 5000, "secret"))
    (refused,) = session.handle(RenewRequested(11, 1, 5000))
    assert isinstance(refused, Refuse)
    assert isinstance(refused.error, errors.LeaseLostError)
    assert "is stale" in str(refused.error)
    assert session.handle(RenewRequested(12, 2, 5000)) == [GrantLease(2, 5000)]


def test_what_ran_under_the_old_lease_is_stopped_before_anything_new_runs() -> None:
    session = held()
    first, second = MeasurementJob("a", 1, "?"), MeasurementJob("b", 1, "?")
    session.handle(MeasureRequested(1, first))
    session.handle(MeasureRequested(2, second))
    text = "the lease of ann was replaced before the measurement was done"
    assert session.handle(AcquireRequested(10, "ann", 5000, "secret")) == [
        EndLease(1, "ann", "replaced"),
        CancelJob(first, LEASE_LOST, text),
        DropJob(second, LEASE_LOST, text),
        PersistToken(2),
        GrantLease(2, 5000),
    ]
    again = MeasurementJob("a", 2, "?")
    assert not any(isinstance(i, StartJob) for i in session.handle(MeasureRequested(11, again)))
    assert session.handle(MeasurementFinished(12, first, Verdict.VOID)) == [StartJob(again)]


def test_another_holder_waits_for_the_end_of_the_lease() -> None:
    for lease_id, asked_id in (("secret", "other"), ("secret", ""), ("", ""), ("", "secret")):
        session = held(lease_id)
        (refused,) = session.handle(AcquireRequested(10, "ann", 5000, asked_id))
        assert isinstance(refused, Refuse), (lease_id, asked_id)
        assert isinstance(refused.error, errors.LeaseHeldError)
        assert "secret" not in str(refused.error)


def test_the_id_is_never_shown() -> None:
    session = held()
    assert "secret" not in repr(session.lease)
    assert "secret" not in repr(AcquireRequested(0, "ann", 1, "secret"))


def test_a_very_long_id_is_refused() -> None:
    long = "x" * (MAX_HOLDER_CHARS + 1)
    (refused,) = Session().handle(AcquireRequested(0, "ann", 5000, long))
    assert isinstance(refused, Refuse)
    assert isinstance(refused.error, errors.RequestError)
