"""`latfarm serve`: the controller as a process of its own, for many commands at once."""

from __future__ import annotations

from typing import Annotated

import typer

from latfarm_controller.cli import output


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve")(serve)


def serve(
    wait_s: Annotated[float, typer.Option("--wait", help="seconds to wait for the store")] = 0.0,
) -> None:
    """Run the controller until interrupted; other commands of this home become its clients.

    \b
    Examples:
      latfarm serve
      latfarm --home /srv/latfarm serve -v
    """
    import asyncio

    from latfarm_controller.app import Server
    from latfarm_controller.config import load_config

    async def run() -> None:
        server = await Server.open(load_config(), wait_s=wait_s, public=True)
        output.err().print(f"latfarm serves on {server.address}; Ctrl-C ends it")
        try:
            await server.wait()
        finally:
            await server.close()

    asyncio.run(run())
