"""`latfarm serve`: the controller as a process of its own, which many commands use at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from latfarm_controller.cli.shell import inputs, output

if TYPE_CHECKING:
    from latfarm_controller.config import ControllerConfig


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve")(serve)


def serve(
    wait_s: inputs.Wait = 0.0,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve other machines too, on this address. People need a certificate; see "
            "latfarm certs. Port 0: any free port. Without this, only this machine is served.",
        ),
    ] = "",
    metrics_port: Annotated[
        int | None,
        typer.Option(
            help="Serve metrics for Prometheus on this port of 127.0.0.1, as /metrics and "
            "/-/healthy. 0: any free port. Without this, there are no metrics.",
            min=0,
            max=65535,
        ),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Join the Ray cluster at this address, and build models on all of its nodes. This "
            "machine must be one of them. Without this, Ray is started on this machine alone. "
            "LATFARM_RAY_ADDRESS says the same for all commands.",
        ),
    ] = None,
) -> None:
    """Run the controller until it is interrupted. Meanwhile other commands of this home use it.

    Campaigns that ran when an earlier latfarm serve of this home was stopped or killed go on. With
    the settings group_socket and socket_group, a group of users of this machine may use it.

    \b
    Examples:
      latfarm serve
      latfarm --home /srv/latfarm serve -v
      latfarm serve --metrics-port 9180
      latfarm serve --listen 0.0.0.0:7450
      latfarm serve --ray-address 192.0.2.10:6379
    """
    import asyncio

    from latfarm_controller.config import load_config

    flags = {"metrics_port": metrics_port, "ray_address": ray_address}
    asyncio.run(_serve(load_config(flags), wait_s, listen))
    raise KeyboardInterrupt


async def _serve(config: ControllerConfig, wait_s: float, listen: str) -> None:
    """Run the controller until SIGINT or SIGTERM."""
    import asyncio
    import signal

    from latfarm_controller.api.server import ControllerServer
    from latfarm_controller.cli.farm.service_manager import tell_ready

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
        if config.group_socket is not None:
            group = f"the group {config.socket_group}"
            output.err().print(f"latfarm serves {group} on unix:{config.group_socket}")
        if server.metrics_url:
            output.err().print(f"latfarm answers {server.metrics_url}")
        if server.continued:
            output.err().print(f"latfarm continues: {', '.join(server.continued)}")
        tell_ready()
        await stop.wait()
    finally:
        await server.close()
