"""`latfarm boards set`: what is noted about a board, who may use it, and its hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latfarm_controller.cli.farm.boards_standing import Name
from latfarm_controller.cli.shell import audited, complete, output
from latfarm_controller.private_files import private_home

if TYPE_CHECKING:
    from latfarm_controller.board_hooks import Hook
    from latfarm_controller.board_profile import BoardProfile

_HOOK = (
    "A command with its arguments, which no shell reads, or an http:// or https:// URL, which is "
    "called with POST. An empty text removes the hook."
)
NewTags = Annotated[
    list[str] | None,
    typer.Option(
        "--tag",
        help="Give the board a tag, by which campaigns and lists choose boards. May be repeated.",
        autocompletion=complete.tags,
    ),
]
Location = Annotated[
    str | None, typer.Option(help="Where the board is. An empty text removes this.")
]
Owner = Annotated[
    str | None, typer.Option(help="Whom to ask about the board. An empty text removes this.")
]
Note = Annotated[
    str | None, typer.Option(help="What people should know about it. An empty text removes this.")
]
Access = Annotated[
    str | None,
    typer.Option(
        metavar="GROUP",
        help="Only campaigns and questions of the members of this group may measure on the board. "
        "The groups are in latfarm.toml, under [access_groups]. An empty text: everybody may.",
    ),
]
Untag = Annotated[
    list[str] | None,
    typer.Option(
        "--untag",
        help="Take a tag away from the board. May be repeated.",
        autocompletion=complete.tags,
    ),
]
ConsoleCommand = Annotated[
    str | None,
    typer.Option(
        metavar="COMMAND",
        help="The command that opens the serial console of the board, for latfarm boards console. "
        "No shell reads it. An empty text removes it.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("set")(set_board)


def set_board(
    name: Name,
    tags: NewTags = None,
    untag: Untag = None,
    location: Location = None,
    owner: Owner = None,
    note: Note = None,
    access: Access = None,
    console_command: ConsoleCommand = None,
    reboot_hook: Annotated[
        str | None, typer.Option(help=f"Lets the board start again. {_HOOK}")
    ] = None,
    power_off_hook: Annotated[
        str | None, typer.Option(help=f"Takes the power from the board. {_HOOK}")
    ] = None,
    power_on_hook: Annotated[
        str | None, typer.Option(help=f"Gives the power back. {_HOOK}")
    ] = None,
    power_cycle_hook: Annotated[
        str | None, typer.Option(help=f"Switches the power off and on again. {_HOOK}")
    ] = None,
) -> None:
    """Note what a board is, who may use it, and its hooks.

    A running controller uses the change within some seconds.

    latfarm boards power runs the hooks, and so does latfarm serve for a board that does not
    recover. A command gets the name of the board as LATFARM_BOARD and what to do as LATFARM_ACTION;
    a URL gets both as JSON. It must end within two minutes.

    \b
    Examples:
      latfarm boards set orin2 --tag jetson --tag lab2 --location "rack 3, shelf 1" --owner alice
      latfarm boards set orin2 --untag lab2 --note "its fan is loud"
      latfarm boards set orin2 --access vision
      latfarm boards set orin2 --console-command "picocom -b 115200 /dev/ttyUSB0"
      latfarm boards set pixel4 --power-cycle-hook "uhubctl -l 1-1 -p 3 -a cycle"
      latfarm boards set orin2 --power-cycle-hook http://192.0.2.5/outlet/4/cycle
      latfarm boards set orin2 --reboot-hook ""
    """
    from latfarm_controller.errors import UsageError

    texts = {"location": location, "owner": owner, "note": note, "access": access}
    change = profile_change(tags or (), untag or (), texts, console_command)
    hooks = _hooks(
        {
            "reboot": reboot_hook,
            "power_off": power_off_hook,
            "power_on": power_on_hook,
            "power_cycle": power_cycle_hook,
        }
    )
    if not hooks and change is None:
        raise UsageError("nothing is to be changed; give one of the options")
    if access:
        check_group(access)
    _write(name, change, hooks)


def profile_change(
    tags: Sequence[str],
    untag: Sequence[str],
    texts: Mapping[str, str | None],
    console: str | None = None,
) -> Callable[[BoardProfile], BoardProfile] | None:
    """What options change about the profile of a board; None: nothing.

    Args:
        tags: new tags.
        untag: tags to take away.
        texts: new values of the profile's fields by name; None: the field stays.
        console: the new console command as it was written; None: it stays.

    Raises:
        UsageError: a tag or the command is malformed.
    """
    from latfarm_controller.board_profile import checked_tags, console_command

    given: dict[str, Any] = {name: text for name, text in texts.items() if text is not None}
    if console is not None:
        given["console"] = console_command(console)
    added, removed = checked_tags(tags), set(checked_tags(untag))
    if not (given or added or removed):
        return None

    def change(profile: BoardProfile) -> BoardProfile:
        left = [tag for tag in (*profile.tags, *added) if tag not in removed]
        return replace(profile, tags=checked_tags(left), **given)

    return change


def checked_change(
    tags: Sequence[str], texts: Mapping[str, str | None]
) -> Callable[[BoardProfile], BoardProfile] | None:
    """The same for a board that is added, before anything is written.

    Raises:
        UsageError: a value is malformed, or there is no such access group.
    """
    from latfarm_controller.board_profile import BoardProfile

    change = profile_change(tags, (), texts)
    if change is not None:
        change(BoardProfile())
    if texts.get("access"):
        check_group(str(texts["access"]))
    return change


def check_group(group: str) -> None:
    """Check that an access group is configured.

    Raises:
        UsageError: it is not, or its name is malformed; names the groups that are.
    """
    from latfarm_controller.access_groups import checked_group
    from latfarm_controller.config import load_config
    from latfarm_controller.errors import UsageError
    from latfarm_controller.home import CONFIG_FILE
    from latfarm_controller.nearest_names import hint

    config = load_config()
    known = config.access_groups
    if checked_group(group) not in known:
        raise UsageError(
            f"there is no access group {group!r} in {config.home / CONFIG_FILE}; there are: "
            f"{', '.join(sorted(known)) or 'none'}{hint(group, known)}; write it there first, such "
            f'as: [access_groups] {group} = ["alice"]'
        )


def _hooks(given: Mapping[str, str | None]) -> dict[str, Hook | None]:
    """The hooks that options change, by name; None for one that is to be removed."""
    from latfarm_controller.board_hooks import Hook

    return {
        hook: Hook.of_text(text) if text.strip() else None
        for hook, text in given.items()
        if text is not None
    }


def _write(
    name: str,
    change: Callable[[BoardProfile], BoardProfile] | None,
    hooks: Mapping[str, Hook | None],
) -> None:
    """Write a change of a board into the inventory, and say what the board has now."""
    from latfarm_controller.agents.registry import Registry
    from latfarm_controller.config import load_config

    config = load_config()
    private_home(config.home)
    registry = Registry(config.boards_file)
    if change is not None:
        profile = registry.set_profile(name, change).profile.to_json()
        audited.note("board.profile", name, **profile)
        told = "; ".join(f"{key}: {_told(value)}" for key, value in profile.items())
        output.err().print(f"board {name}: {told or 'nothing is noted about it'}")
    if hooks:
        entry = registry.set_hooks(name, hooks)
        audited.note("board.hooks", name, hooks=sorted(hooks))
        output.err().print(
            f"board {name} has these hooks: {', '.join(entry.hooks.to_json()) or 'none'}"
        )


def _told(value: Any) -> str:
    """A value of a profile for people."""
    if isinstance(value, str):
        return value
    return ", ".join(str(item) for item in value)
