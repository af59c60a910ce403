"""What can be done with a store as a whole, by name, with plain JSON options and outcomes.

A command does it to the file itself. While `latfarm serve` holds the file, the same functions run
in the server, and the command asks for them (`api/database_service.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from latfarm_controller.errors import UsageError
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.store.exchange.exporting import Selection, export
from latfarm_controller.store.exchange.form import Origin
from latfarm_controller.store.exchange.importing import Imported, Importer
from latfarm_controller.store.exchange.readers.kinds import LATFARM, open_reader
from latfarm_controller.store.platform_copy import copy_platform
from latfarm_controller.store.upkeep.copy import copy_store
from latfarm_controller.store.upkeep.gc import collect_garbage
from latfarm_controller.store.upkeep.info import describe
from latfarm_controller.store.upkeep.verify import verify

OnProgress = Callable[[str, int, int], None]
"""Is told what is done, how much of it is finished, and how much there is; 0: unknown. What it
raises ends the action; an import can be continued later."""
Options = Mapping[str, Any]
NO_ACTION = "there is no action"
"""How the error about an unknown action begins; servers of older versions know fewer actions."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What an action works with.

    Attributes:
        store: the open store.
        protected: gives the ids of the campaigns that the provenances of bundles name.
        on_progress: is told how far the action is.
    """

    store: DuckDBStore
    protected: Callable[[], Iterable[str]]
    on_progress: OnProgress = lambda _stage, _done, _total: None


def perform(action: str, options: Options, desk: Desk) -> dict[str, Any]:
    """Do something with a store.

    Args:
        action: one of `ACTIONS`.
        options: the action's own options.
        desk: what it works with.

    Returns:
        What was found or done, as plain JSON types.

    Raises:
        UsageError: the action or an option is unknown, or names what is not there.
        StoreError: the store cannot be read or written.
    """
    do = ACTIONS.get(action)
    if do is None:
        raise UsageError(f"{NO_ACTION} {action!r}; known: {', '.join(ACTIONS)}")
    try:
        return do(desk, options)
    except (KeyError, TypeError) as error:
        raise UsageError(f"{action}: the options are incomplete or wrong: {error!r}") from error


def _info(desk: Desk, _options: Options) -> dict[str, Any]:
    return describe(desk.store.file)


def _verify(desk: Desk, _options: Options) -> dict[str, Any]:
    found = verify(desk.store.file, desk.on_progress)
    return {
        "sound": found.sound,
        "measurements": found.measurements,
        "graphs": found.graphs,
        "faults": found.faults,
        "more_faults": found.more,
        "losses": found.losses,
    }


def _snapshot(desk: Desk, options: Options) -> dict[str, Any]:
    folder = Path(options["folder"])
    return {"folder": str(folder), "rows": desk.store.snapshot(folder)}


def _copy(desk: Desk, options: Options) -> dict[str, Any]:
    target = Path(options["file"])
    copy_store(desk.store.file, target)
    return {"file": str(target)}


def _copy_platform(desk: Desk, options: Options) -> dict[str, Any]:
    path = Path(options["path"])
    return {"path": str(path), "rows": copy_platform(desk.store, str(options["platform"]), path)}


def _export(desk: Desk, options: Options) -> dict[str, Any]:
    folder, selection = Path(options["folder"]), Selection(**options["selection"])
    campaign = desk.store.get_campaign(selection.campaign_id) if selection.campaign_id else None
    if campaign is not None:  # it may be named by its name
        selection = replace(selection, campaign_id=campaign.campaign_id)
    origin = Origin(**options["origin"])
    written = export(desk.store.file, folder, origin, selection, options["form"])
    return {"folder": str(folder), **written.to_json()}


def _import(desk: Desk, options: Options) -> dict[str, Any]:
    reader = open_reader(Path(options["folder"]), options["format"])
    if options["own"] and reader.kind != LATFARM:
        raise UsageError(
            f"{options['folder']}: these files are of the format {reader.kind}; only what latfarm "
            "exported can be this farm's own"
        )
    given = {name: text for name, text in options["origin"].items() if text}
    importer = Importer(
        desk.store.file,
        reader,
        replace(reader.origin, **given),
        own=bool(options["own"]),
        rehearse=bool(options["dry_run"]),
        on_progress=desk.on_progress,
    )
    found = importer.run()
    if found.added and not found.rehearsed:
        desk.store.refresh()
    return {"format": reader.kind, "origin": asdict(importer.origin), **imported_json(found)}


def imported_json(found: Imported) -> dict[str, Any]:
    """What an import did, as plain JSON types."""
    return {
        "import_id": found.import_id,
        "own": found.own,
        "measurements": found.told,
        "added": found.added,
        "known": found.known,
        "graphs": found.graphs,
        "refused": [
            {"file": each.file, "line": each.line, "reason": each.reason} for each in found.refused
        ],
        "refused_rows": found.refused_rows,
        "warnings": found.warnings,
        "imported_before": found.again,
        "dry_run": found.rehearsed,
    }


def _gc(desk: Desk, options: Options) -> dict[str, Any]:
    remove, store = bool(options["remove"]), desk.store
    with store.file.alone():  # no graph may be used again before the store knows that it is gone
        found = collect_garbage(store.file, desk.protected(), remove=remove)
        if remove:
            store.refresh()
    return {**asdict(found), "removed": remove}


ACTIONS: Mapping[str, Callable[[Desk, Options], dict[str, Any]]] = {
    "info": _info,
    "verify": _verify,
    "snapshot": _snapshot,
    "copy": _copy,
    "copy_platform": _copy_platform,
    "export": _export,
    "import": _import,
    "gc": _gc,
}
"""What can be done, by name."""
WRITING = frozenset({"import", "gc"})
"""The actions that change the store; only one of them may run at a time."""
