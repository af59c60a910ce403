"""Metrics count what happens; their names follow conventions, and each has a help."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import grpc
import pytest
from latfarm_agent import errors
from latfarm_agent.bench.records import BenchResult
from latfarm_agent.service.monitoring.collectors import (
    READER_GONE_S,
    READERS_KEPT,
    ReaderCertificateCollector,
)
from latfarm_agent.service.monitoring.metrics import AgentMetrics
from latfarm_agent.session.messages import SessionState
from latfarm_agent.worker.replies import FAILURE_CODES
from latfarm_protos.error_codes import CODES, INFRASTRUCTURE_ERRORS, MODEL_ERRORS
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from latfarm_agent.service.server import AgentServer
    from tests.agent.service.conftest import Client, Farm


def sample(metrics: AgentMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_they_tell_what_happened(farm: Farm, server: AgentServer, client: Client) -> None:
    metrics = server.metrics
    prefix = "latfarm_agent_"
    assert sample(metrics, prefix + "lease_remaining_seconds") == 0
    token = client.acquire(ttl_ms=60_000)
    assert sample(metrics, prefix + "lease_remaining_seconds") == 60
    farm.pass_time(server, 20_000)
    assert sample(metrics, prefix + "lease_remaining_seconds") == 40
    assert sample(metrics, prefix + "state", state="leased") == 1
    assert sample(metrics, prefix + "state", state="idle") == 0
    sha256 = client.upload(token, b"12345")
    client.upload(token, b"12345")
    assert sample(metrics, prefix + "uploads_total", outcome="complete") == 1
    assert sample(metrics, prefix + "uploads_total", outcome="present") == 1
    assert sample(metrics, prefix + "upload_bytes_total") == 5
    assert sample(metrics, prefix + "blob_bytes") == 5
    client.result(token, sha256)
    client.result(token, sha256)
    farm.bench.answers.append(BenchResult(outcome="model_error", error_code="MODEL_INVALID"))
    client.result(token, sha256, "r2")
    ok = {"kind": "measure", "outcome": "ok", "error_code": ""}
    bad = {"kind": "measure", "outcome": "model_error", "error_code": "MODEL_INVALID"}
    assert sample(metrics, prefix + "measurements_total", **ok) == 1
    assert sample(metrics, prefix + "measurements_total", **bad) == 1
    assert sample(metrics, prefix + "results_replayed_total") == 1
    assert sample(metrics, prefix + "stage_seconds_count", stage="timing") == 2
    assert (sample(metrics, prefix + "board_busy_seconds_total") or 0) > 0
    assert sample(metrics, prefix + "spooled_results") == 2
    with pytest.raises(grpc.RpcError):
        client.acquire("bob")
    refused = {"method": "AcquireLease", "error_code": "LEASE_HELD"}
    assert sample(metrics, prefix + "rpc_errors_total", **refused) == 1
    assert sample(metrics, prefix + "leases_total", event="refused") == 1
    farm.pass_time(server, 40_000)
    assert sample(metrics, prefix + "leases_total", event="expired") == 1


def test_names_and_help_are_conventional() -> None:
    metrics = AgentMetrics()
    metrics.leased("granted")
    metrics.uploaded("complete")
    metrics.failed("Measure", "BUSY")
    metrics.staged("timing", 1)
    families = list(text_string_to_metric_families(metrics.text()))
    assert len(families) > 15
    for family in families:
        assert re.fullmatch(r"(latfarm_agent|process)_[a-z_0-9]+", family.name)
        assert family.documentation.endswith("."), family.name
        assert "_ms" not in family.name
        if family.type == "counter":
            assert not family.name.endswith("_total"), "the format adds it"


def test_labels_stay_few_whatever_a_stage_is_called() -> None:
    metrics = AgentMetrics()
    for number in range(100):
        metrics.staged(f"stage{number}", 0.1)
    assert sample(metrics, "latfarm_agent_stage_seconds_count", stage="other") == 100


def test_exactly_one_state_is_on() -> None:
    metrics = AgentMetrics()
    for state in SessionState:
        metrics.set_state(state)
        values = [sample(metrics, "latfarm_agent_state", state=one.value) for one in SessionState]
        assert sum(value or 0 for value in values) == 1
        assert sample(metrics, "latfarm_agent_state", state=state.value) == 1


def test_the_http_server_answers_and_frees_its_port() -> None:
    metrics = AgentMetrics()
    server = metrics.serve("127.0.0.1", 0)
    with urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as reply:
        assert b"latfarm_agent_build_info" in reply.read()
    with pytest.raises(errors.AgentUsageError, match="--metrics-port"):
        metrics.serve("127.0.0.1", server.port)
    server.close()
    metrics.serve("127.0.0.1", server.port).close()


def test_failures_have_series_before_the_first_one() -> None:
    name = "latfarm_agent_measurements_total"
    for outcome, codes in CODES.items():
        for code in codes:
            labels = {"kind": "measure", "outcome": outcome, "error_code": code}
            assert sample(AgentMetrics(), name, **labels) == 0


def test_all_codes_of_results_are_known() -> None:
    told = re.compile(
        r'(?:Worker|Runtime)Failure\(\s*"([A-Z_]+)"|(?:fail|failure)\([^"()]*"([A-Z_]+)"'
    )
    folder = Path(errors.__file__).parent
    texts = [path.read_text() for path in folder.rglob("*.py") if "testing" not in path.parts]
    found = {code for text in texts for pair in told.findall(text) for code in pair if code}
    assert {"MODEL_INVALID", "WORKER_FAILED", "AGENT_FAULT", "NOT_READY"} <= found
    assert len(found) > 12
    assert found | FAILURE_CODES <= MODEL_ERRORS | INFRASTRUCTURE_ERRORS
    assert not MODEL_ERRORS & INFRASTRUCTURE_ERRORS


def test_certificates_of_readers_are_told_while_they_come() -> None:
    now_s = 0.0
    readers = ReaderCertificateCollector(lambda: now_s)
    registry = CollectorRegistry()
    registry.register(readers)
    name = "latfarm_agent_reader_certificate_expiry_timestamp_seconds"
    readers.saw("prometheus", 1000.0)
    readers.saw("somebody", float("inf"))  # its end is not known
    assert registry.get_sample_value(name, {"reader": "prometheus"}) == 1000
    assert registry.get_sample_value(name, {"reader": "somebody"}) is None
    readers.saw("prometheus", 2000.0)
    assert registry.get_sample_value(name, {"reader": "prometheus"}) == 2000, "a new certificate"
    now_s = READER_GONE_S + 1.0
    assert registry.get_sample_value(name, {"reader": "prometheus"}) is None
    for number in range(READERS_KEPT + 1):
        readers.saw(f"r{number}", 1000.0)
    assert registry.get_sample_value(name, {"reader": "r0"}) is None
    assert registry.get_sample_value(name, {"reader": f"r{READERS_KEPT}"}) == 1000
