"""`latfarm doctor`: what this machine has and lacks for latfarm, and the remedies."""

from __future__ import annotations

import typer

from latfarm_controller.cli.shell import inputs, output


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    as_json: inputs.Json = False,
) -> int:
    """Check what this machine has and lacks, with remedies.

    The exit code is 1 if something is missing.

    \b
    Examples:
      latfarm doctor
      latfarm doctor --json
    """
    from latfarm_controller.cli.farm.doctor_checks import MISSING, examine
    from latfarm_controller.config import load_config

    told = output.err()
    if told.is_terminal:
        # Loading each runtime takes seconds on an idle machine, and a minute on a busy one.
        told.print("asking the agent of this machine, which loads each runtime", style="dim")
    findings = list(examine(load_config()))
    if as_json:
        output.json_text([finding.to_json() for finding in findings])
    else:
        output.table(
            "",
            ["what", "state", "found", "remedy"],
            [[f.name, f.state, f.found, f.remedy] for f in findings],
        )
    return int(any(finding.state == MISSING for finding in findings))
