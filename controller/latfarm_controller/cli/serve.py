"""`latfarm serve`: the controller as a process of its own, for many commands at once."""

from __future__ import annotations

import typer

from latfarm_controller.cli import inputs, output


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve")(serve)


def serve(
    wait_s: inputs.Wait = 0.0,
) -> None:
    """Run the controller until interrupted; other commands of this home become its clients.

    \b
    Examples:
      latfarm serve
      latfarm --home /srv/latfarm serve -v
    """
    import asyncio
    import signal

    from latfarm_controller.config import load_config
    from latfarm_controller.server import Server

    config = load_config()

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        opening = asyncio.create_task(Server.open(config, wait_s=wait_s, public=True))

        def end() -> None:
            stop.set()
            opening.cancel()

        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, end)
        try:
            server = await opening
        except asyncio.CancelledError:
            return
        try:
            output.err().print(f"latfarm serves on {server.address}; Ctrl-C ends it")
            await stop.wait()
        finally:
            await server.close()

    asyncio.run(run())
    raise KeyboardInterrupt
