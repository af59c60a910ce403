"""Fusion rules as commands name them: read from files, campaigns and bundles, changed, written."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, cast

from latfarm_predictors.whole_file import written_whole

from latfarm_controller.cli.shell import inputs
from latfarm_controller.errors import UsageError
from latfarm_controller.private_files import callers_umask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from latfarm_predictors.kernels.fusion import FusionRules


def edited(rules: FusionRules, target: Path) -> FusionRules:
    """The rules as a person changes them in $VISUAL or $EDITOR, else in an editor that is there.

    Args:
        rules: the rules to change.
        target: the file that the changed rules are for. A text that holds no fusion rules is kept
            beside it, so that no work is lost.

    Raises:
        UsageError: there is no editor, it fails, or the text that it leaves holds no fusion rules.
    """
    import click

    try:
        text = click.edit(rules.dumps(), extension=".json")
    except (click.ClickException, ValueError) as error:  # ValueError: $EDITOR is no command line
        raise UsageError(
            f"the rules cannot be edited: {error}; set EDITOR to an editor, or name the changes "
            "with --set"
        ) from error
    if text is None:
        return rules
    try:
        return inputs.parse_rules(text, "the edited text")
    except UsageError as error:
        raise UsageError(f"{error}; {_kept(text, target)}") from error


def _kept(text: str, target: Path) -> str:
    """Keep a text beside a file, under a name that no other file has, and say where it is."""
    try:
        with tempfile.NamedTemporaryFile(
            "w",
            encoding="utf-8",
            dir=target.parent,
            prefix=f"{target.stem}-edited-",
            suffix=".json",
            delete=False,
        ) as file:
            file.write(text)
    except OSError as error:
        return f"the text could not be kept: {error.strerror}"
    return f"the text is kept: correct {file.name}, then copy it to {target}"


def load(source: str, wait_s: float) -> FusionRules:
    """Rules of a file, of a campaign (`NAME@used`, `NAME@detected`) or of a platform.

    Raises:
        UsageError: there are no rules of that name.
    """
    if Path(source).is_file():
        return inputs.read_rules(Path(source))
    name, at, which = source.rpartition("@")
    if not at:
        try:
            return of_platform(source)
        except UsageError as error:
            raise UsageError(f"{source}: there is no such file, and {error}") from error
    if which not in ("used", "detected"):
        raise UsageError(f"{source}: after @ write used or detected")
    from latfarm_controller.cli.shell.connect import controller

    with controller(wait_s) as client:
        outcome = client.campaign(name).outcome
    found = outcome.get("fusion", outcome)
    key = "rules" if which == "used" else "detected"
    if key not in found:
        raise UsageError(
            f"campaign {name!r} has found no fusion rules yet; wait until it is finished"
        )
    return inputs.parse_rules(json.dumps(found[key]), source)


def of_platform(platform: str) -> FusionRules:
    """The fusion rules in the bundle in use of a platform.

    Raises:
        UsageError: there is no such bundle.
    """
    from latfarm_controller.config import load_config
    from latfarm_controller.training.bundles import open_bundle

    return open_bundle(load_config().bundles_dir, platform).rules


def changed(
    rules: FusionRules, changes: Sequence[str], inbound: int | None, outbound: int | None
) -> FusionRules:
    """The rules with changes such as `Conv+Relu=fused`, and with other branch rules.

    Raises:
        UsageError: a change has another form.
    """
    from dataclasses import replace

    from latfarm_predictors.errors import FusionRulesError
    from latfarm_predictors.kernels.fusion import Branch, Verdict

    pairs: dict[tuple[str, str], Verdict] = {}
    for text in changes:
        pair, equals, verdict = text.partition("=")
        first, plus, second = pair.partition("+")
        if not (equals and plus and first and second):
            raise UsageError(f"--set {text}: a change is written as Conv+Relu=fused")
        pairs[first, second] = cast("Verdict", verdict)
    try:
        changed = rules.replace_pairs(pairs)
        if inbound is not None:
            changed = replace(changed, multi_inbound=cast("Branch", inbound))
        if outbound is not None:
            changed = replace(changed, multi_outbound=cast("Branch", outbound))
    except FusionRulesError as error:
        raise UsageError(f"--set: {error}") from error
    return changed


def write(rules: FusionRules, path: Path) -> None:
    """Write rules to a file.

    Raises:
        UsageError: the file cannot be written; an older file of that name is unchanged.
    """
    try:
        with callers_umask(), written_whole(path, make_folder=True) as part:
            part.write_text(rules.dumps(), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
