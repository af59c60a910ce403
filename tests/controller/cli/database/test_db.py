"""`latfarm db` and `latfarm query` on a store without a running controller."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from latfarm_controller.cli.shell import complete
from latfarm_controller.config import load_config
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.store.lock import StoreLock
from latfarm_predictors.frontends.onnx import read_onnx
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Outcome
from onnx import TensorProto, helper, save

if TYPE_CHECKING:
    from tests.controller.cli.conftest import Latfarm

PLATFORM = "toy-sim1.0-fp32-1t"


@pytest.fixture
def model(home: Path, tmp_path: Path) -> Path:
    """A model whose latency the store knows."""
    path = tmp_path / "model.onnx"
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, (1, 8)) for n in "xy")
    graph_proto = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", [x], [y])
    save(helper.make_model(graph_proto, opset_imports=[helper.make_opsetid("", 13)]), path)
    graph = read_onnx(path)
    assert home.name == "home"
    config = load_config()
    config.make_dirs()
    told = Measurement(
        "r", hash_of(graph), PLATFORM, "query", Outcome.OK, latency_ms=2.5, received_at_s=1e9
    )
    with DuckDBStore(config.store_file) as store:
        store.add_measurements("c", [(told, graph)])
    return path


def test_a_hit_needs_no_controller(latfarm: Latfarm, model: Path) -> None:
    ended = latfarm("query", model, "-p", PLATFORM, "--no-measure", "--json")
    assert ended.code == 0, ended
    told = json.loads(ended.out)
    assert told["hit"] is True
    assert told["same_export"] is True
    assert told["corrected_ms"] == 2.5
    table = latfarm("query", model, "-p", PLATFORM)
    assert "store" in table.out


def test_what_cannot_be_answered(latfarm: Latfarm, model: Path) -> None:
    ended = latfarm("query", model, "-p", PLATFORM, "--no-measure", "--max-age", "1d")
    assert ended.code == 1
    assert "leave out --no-measure" in ended.line
    ended = latfarm("query", model, "-p", "toy-sim1.0-fp32-2t", "--no-measure")
    assert ended.code == 2
    assert f"did you mean {PLATFORM} (it differs in its threads)?" in ended.line
    ended = latfarm("query", model, "-p", PLATFORM, "--max-age", "soon")
    assert ended.code == 2
    assert "90s, 30m, 12h or 7d" in ended.line
    ended = latfarm("query", model, "-p", PLATFORM, "--publish", "--survey")
    assert ended.code == 2
    both = latfarm("query", model, "-p", PLATFORM, "-p", "x-y1-fp32", "--no-measure", "--json")
    assert both.code == 2
    good, bad = json.loads(both.out)
    assert good["latency_ms"] == 2.5
    assert bad["error"]["kind"] == "UsageError"


@pytest.mark.usefixtures("model")
def test_the_store_is_looked_into_and_checked(latfarm: Latfarm, tmp_path: Path) -> None:
    told = json.loads(latfarm("db", "info", "--json").out)
    assert told["rows"]["measurements"] == 1
    assert told["platforms"][0]["platform"] == PLATFORM
    assert PLATFORM in latfarm("db", "info").out
    assert json.loads(latfarm("db", "verify", "--json").out)["sound"] is True
    assert "sound" in latfarm("db", "verify").out
    made = latfarm("db", "snapshot", tmp_path / "snapshot", "--json")
    assert json.loads(made.out)["rows"]["measurements"] == 1
    assert (tmp_path / "snapshot" / "measurements.parquet").is_file()
    assert json.loads(latfarm("db", "gc", "--json").out)["removed"] is False
    assert "can be removed" in latfarm("db", "gc").err
    saved = latfarm("db", "repair", "--json")
    assert saved.code == 0, saved
    told = json.loads(saved.out)
    assert told["lost"] == []
    assert Path(told["path"]).is_file()
    assert latfarm("db", "repair").code == 2, "the file is there already"


def test_measurements_travel_to_another_farm(
    latfarm: Latfarm, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "export"
    ended = latfarm("db", "export", folder, "--source", "us", "--licence", "CC0-1.0", "--json")
    assert json.loads(ended.out)["measurements"] == 1
    monkeypatch.setenv("LATFARM_HOME", str(tmp_path / "other"))
    ended = latfarm("db", "import", folder, "--json")
    assert ended.code == 0, ended
    assert json.loads(ended.out)["added"] == 1
    assert "imported before" in latfarm("db", "import", folder).err
    question = ("query", model, "-p", PLATFORM, "--no-measure", "--json")
    assert latfarm(*question).code == 1
    assert "--foreign lists theirs, too" in latfarm("results", "-p", PLATFORM).line
    context: Any = SimpleNamespace(params={"foreign": False})
    assert complete.measured_platforms(context, "toy") == []
    context.params["foreign"] = True
    assert complete.measured_platforms(context, "toy") == [PLATFORM]
    told = json.loads(latfarm(*question, "--foreign").out)
    assert told["latency_ms"] == 2.5
    assert told["origin"]["foreign_source"] == "us"
    assert told["origin"]["foreign_licence"] == "CC0-1.0"
    assert latfarm("db", "import", tmp_path / "nothing").code == 2


def test_an_export_takes_a_campaign_by_its_name_or_id(
    latfarm: Latfarm, model: Path, tmp_path: Path
) -> None:
    with DuckDBStore(load_config().store_file) as store:
        store.put_campaign(CampaignRecord("c", "demo", "networks", PLATFORM))
    options = ("--source", "us", "--licence", "CC0-1.0", "--json", "--campaign")
    for name in ("c", "demo"):
        told = json.loads(latfarm("db", "export", tmp_path / name, *options, name).out)
        assert told["measurements"] == 1
    assert (
        "no measurement has the campaign 'no'"
        in latfarm("db", "export", tmp_path / "no", *options, "no").line
    )


def test_without_a_store_or_beside_another_process(latfarm: Latfarm, home: Path) -> None:
    for command in ("info", "verify", "gc"):
        ended = latfarm("db", command)
        assert ended.code == 2
        assert "no store yet" in ended.line
    with StoreLock(load_config().lock_file):
        ended = latfarm("db", "info")
        assert ended.code == 1
        assert "held by" in ended.line
    assert home.exists()


def test_published_measurements_are_rehearsed_and_then_taken(
    latfarm: Latfarm, home: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "cells"
    folder.mkdir()
    cell = "|nor_conv_3x3~0|+|none~0|skip_connect~1|+|skip_connect~0|none~1|none~2|"
    rows = (f"1,{cell},0.7,train", f"2,{cell},0.8,train", "3,|bad|,0.9,test")
    (folder / "cells.csv").write_text("\n".join(["index,cell,latency_ms,stage", *rows, ""]))
    ended = latfarm("db", "import", folder, "--dry-run")
    assert ended.code == 1, "rows were refused"
    assert "1 measurements and 1 graphs would be new" in ended.err
    assert "THE CELL IS INFERRED" in ended.err
    assert "cells.csv:3: the same network and platform stand in line 2 already" in ended.err
    assert not (home / "store.duckdb").exists()
    assert "are new" in latfarm("db", "import", folder).err
    told = json.loads(latfarm("db", "info", "--json").out)
    assert told["rows"]["foreign_measurements"] == 1
    assert told["imports"][0]["kind"] == "nnlqp-cells"
    (platform,) = told["foreign_platforms"]
    assert (platform["platform"], platform["graphs"]) == ("gpu-gtx1660-trt7.1-fp32", 1)
    assert "gpu-gtx1660-trt7.1-fp32" in latfarm("db", "info").out
    own = latfarm("db", "import", folder, "--own")
    assert own.code == 2
    assert "only what latfarm exported" in own.err
    assert latfarm("db", "import", folder, "--format", "xml").code == 2
    assert "gt.txt is missing" in latfarm("db", "import", folder, "--format", "nnlqp").err
