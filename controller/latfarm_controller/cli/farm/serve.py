"""`latfarm serve`: the controller as a process of its own, for many commands at once."""

from __future__ import annotations

from typing import Annotated

import typer

from latfarm_controller.cli.shell import inputs, output


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve")(serve)


def serve(
    wait_s: inputs.Wait = 0.0,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve other machines too, by certificate: see latfarm certs. Port 0: any.",
        ),
    ] = "",
    metrics_port: Annotated[
        int | None,
        typer.Option(
            help="Answer Prometheus on this port of loopback: /metrics, /-/healthy; 0: any.",
            min=0,
            max=65535,
        ),
    ] = None,
) -> None:
    """Run the controller until interrupted; other commands of this home become its clients.

    \b
    Examples:
      latfarm serve
      latfarm --home /srv/latfarm serve -v
      latfarm serve --metrics-port 9180
      latfarm serve --listen 0.0.0.0:7450
    """
    import asyncio
    import signal

    from latfarm_controller.api.server import ControllerServer
    from latfarm_controller.config import load_config

    config = load_config({"metrics_port": metrics_port})

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        opening = asyncio.create_task(
            ControllerServer.open(config, wait_s=wait_s, public=True, listen=listen)
        )

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
            if server.outside:
                output.err().print(f"latfarm serves other machines on {server.outside}")
            if server.metrics_url:
                output.err().print(f"latfarm answers {server.metrics_url}")
            await stop.wait()
        finally:
            await server.close()

    asyncio.run(run())
    raise KeyboardInterrupt
