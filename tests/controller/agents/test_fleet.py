"""Which boards are believed, by the ids that they give."""

from __future__ import annotations

from pathlib import Path

import pytest
from latfarm_controller.agents.board import BoardInfo
from latfarm_controller.agents.fleet import LOCAL, BoardView, identified
from latfarm_controller.agents.registry import BoardEntry, Registry


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    registry = Registry(tmp_path / "boards.json")
    for port, name in enumerate("abc", 1):
        registry.add(name, f"h:{port}")
    return registry


def view(registry: Registry, name: str, board_id: str) -> BoardView:
    entry = BoardEntry(LOCAL, "h:9") if name == LOCAL else registry.get(name)
    return BoardView(entry, BoardInfo(board_id, name))


def told(views: list[BoardView]) -> dict[str, str]:
    """The ids of the boards that are believed; of the others, why they are not."""
    assert all(v.foreign == (v.info is None and "id is" in v.error) for v in views)
    return {v.entry.name: v.info.board_id if v.info else v.error for v in views}


def test_an_id_is_noted_at_first_contact(registry: Registry) -> None:
    away = BoardView(registry.get("c"), error="no answer")
    found = identified([view(registry, "a", "1"), view(registry, "b", "2"), away], registry)
    assert told(found) == {"a": "1", "b": "2", "c": "no answer"}
    assert [entry.board_id for entry in registry.list()] == ["1", "2", ""]
    assert [v.entry.board_id for v in found] == ["1", "2", ""]


def test_another_id_than_before_is_refused(registry: Registry) -> None:
    registry.pin("a", "1")
    found = told(identified([view(registry, "a", "2")], registry))
    assert "its id is 2, but it was 1" in found["a"]
    assert "latfarm boards accept a" in found["a"]
    assert registry.get("a").board_id == "1"


@pytest.mark.parametrize("order", [1, -1])
def test_the_id_of_another_board_is_refused(registry: Registry, order: int) -> None:
    registry.pin("a", "1")
    views = [view(registry, "a", "1"), view(registry, "b", "1")][::order]
    found = told(identified(views, registry))
    assert found["a"] == "1"
    assert "which is that of board a" in found["b"]
    assert registry.get("b").board_id == ""


def test_the_id_of_a_board_that_is_away_is_refused(registry: Registry) -> None:
    registry.pin("a", "1")
    found = told(identified([view(registry, "b", "1")], registry))
    assert "which is that of board a" in found["b"]


def test_of_several_boards_with_a_new_id_none_is_believed(registry: Registry) -> None:
    views = [view(registry, name, "1") for name in "ab"] + [view(registry, "c", "3")]
    found = told(identified(views, registry))
    assert found["c"] == "3"
    assert "boards a, b all say that their id is 1" in found["a"]
    assert found["a"] == found["b"]
    assert [entry.board_id for entry in registry.list()] == ["", "", "3"]


def test_the_id_of_this_machine_is_its_own(registry: Registry) -> None:
    registry.pin("a", "1")
    views = [view(registry, "a", "1"), view(registry, "b", "1"), view(registry, LOCAL, "1")]
    found = told(identified(views, registry, LOCAL))
    assert found[LOCAL] == "1"
    assert "which is that of board local" in found["a"]
    assert "which is that of board local" in found["b"]


def test_a_board_that_is_only_called_local_is_a_board_as_any_other(registry: Registry) -> None:
    registry.pin("a", "1")
    registry.add(LOCAL, "h:9")
    found = told(identified([view(registry, "a", "1"), view(registry, LOCAL, "1")], registry))
    assert found["a"] == "1"
    assert "which is that of board a" in found[LOCAL]


def test_an_inventory_that_cannot_be_written_keeps_no_board_away(registry: Registry) -> None:
    views = [view(registry, "a", "1")]
    registry.path.write_text("{")
    assert told(identified(views, registry)) == {"a": "1"}
