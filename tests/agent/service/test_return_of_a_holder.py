"""What a controller that comes back finds at a board: its lease, and its finished results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.agent.service.calls import Code, fails

if TYPE_CHECKING:
    from latfarm_agent.service.server import AgentServer
    from tests.agent.service.conftest import Client, Farm


def test_the_same_holder_is_back_at_once_and_the_old_token_is_of_no_use(client: Client) -> None:
    old = client.acquire(holder_id="secret")
    sha256 = client.upload(old)
    new = client.acquire(holder_id="secret")
    assert new > old
    assert fails(client.measure, old, sha256).status is Code.FAILED_PRECONDITION
    assert client.result(new, sha256).outcome == "ok"


def test_others_are_refused_and_do_not_learn_the_id(client: Client) -> None:
    client.acquire(holder_id="secret")
    refused = fails(client.acquire, holder="bob", holder_id="guess")
    assert refused.status is Code.RESOURCE_EXHAUSTED
    assert "leased to ann" in refused.details
    assert "secret" not in refused.details


def test_a_list_of_results_goes_on_where_the_last_one_ended(client: Client) -> None:
    token = client.acquire()
    sha256 = client.upload(token)
    for name in ("r1", "r2", "r3"):
        client.result(token, sha256, name)
    assert [result.request_id for result in client.spooled("r1")] == ["r2", "r3"]
    assert client.spooled("r3") == []
    assert len(client.spooled("unknown")) == 3


def test_a_result_is_not_replayed_under_another_fingerprint(
    farm: Farm, server: AgentServer, client: Client
) -> None:
    token = client.acquire()
    sha256 = client.upload(token)
    assert client.result(token, sha256).fingerprint == "f1"
    farm.stop(server)
    farm.bench.fingerprint = "f2"  # such as a newer version of the runtime
    client = farm.client(farm.start())
    again = client.result(client.acquire(), sha256)
    assert again.fingerprint == "f2"
    assert farm.bench.measured == ["r1", "r1"]
    (kept,) = client.spooled()
    assert kept == again, "the new result has taken the place of the old one"
