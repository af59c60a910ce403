"""Sends the files of a model to a board."""

from __future__ import annotations

from latfarm_controller.builders.model_files import ModelFiles
from latfarm_controller.errors import AgentError
from latfarm_controller.farm.boards.board_client import BoardClient
from latfarm_controller.farm.boards.interfaces import Order


async def upload_model(
    client: BoardClient, board: str, order: Order, files: ModelFiles, most_companions: int
) -> None:
    """Upload the files of a model.

    Args:
        client: of the board.
        board: name of the board.
        order: the request for which the board needs the model.
        files: the model.
        most_companions: how many files beside a model the board takes.

    Raises:
        AgentError: the board takes no such model.
    """
    if len(order.companions) > most_companions:
        raise AgentError(
            f"board {board} takes {most_companions} files beside a model, and this model, of "
            f"{files.size_bytes} bytes, has {len(order.companions)}; install a newer agent on the "
            "board if it takes none"
        )
    await client.upload(order.sha256, files.model)
    for name, sha256 in order.companions.items():
        await client.upload(sha256, files.companions[name])
