"""Commands of other distributions, which are found by entry points and imported when they are called.

A distribution adds a command with an entry point of the group ``tightrope.commands``. Its name is that of
the command, and its value names a function that adds the command to the `typer.Typer` that it is given, as
``register`` does in every module of commands here::

    [project.entry-points."tightrope.commands"]
    jobs = "tightrope_fleet.commands.jobs:register"

A command of the core has precedence over one of the same name.
"""

import importlib.metadata
from difflib import get_close_matches
from importlib.metadata import EntryPoint
from typing import Any, Final, NamedTuple

import typer
import typer.core

from tightrope.core import TightropeError, printable

GROUP: Final = "tightrope.commands"


class PluginCommand(NamedTuple):
    """A command of a plug-in that belongs to this project.

    Attributes:
        extra: of tightrope that brings the plug-in; its distribution is ``tightrope-<extra>``.
        help: one line for the list of commands, where nothing is imported for.
    """

    extra: str
    help: str

    @property
    def distribution(self) -> str:
        """The name of what is installed."""
        return f"tightrope-{self.extra}"


KNOWN: Final = {
    "fleet": PluginCommand("fleet", "Forecast federated training on a fleet, and run it."),
    "jobs": PluginCommand("fleet", "Place jobs whose ends are predicted."),
    "micro": PluginCommand("micro", "Training steps as C for microcontrollers."),
    "place": PluginCommand("planners", "Place the buffers of a file at addresses."),
    "predict": PluginCommand("fleet", "Answer for the rows of a table by a forest."),
    "ranks": PluginCommand("ranks", "Forecast a training step on many ranks."),
    "select": PluginCommand("fleet", "Choose among candidates by noisy measurements."),
    "streams": PluginCommand("fleet", "Plan streams of frames with deadlines."),
    "trees": PluginCommand("fleet", "Train boosted trees over parties that keep their data."),
}
"""Commands of the plug-ins of this project, installed or not."""


def installed() -> dict[str, tuple[EntryPoint, ...]]:
    """List the commands that installed plug-ins add, by name; more than one of a name is a mistake."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in importlib.metadata.entry_points(group=GROUP):
        found[entry.name] = (*found.get(entry.name, ()), entry)
    return dict(sorted(found.items()))


class CommandGroup(typer.core.TyperGroup):
    """The commands of the core, then those of plug-ins."""

    def list_commands(self, ctx: Any) -> list[str]:
        """List the names of all commands that can be called; no plug-in is imported."""
        return [*self.commands, *(name for name in installed() if name not in self.commands)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Find a command, and import the plug-in that has it.

        Raises:
            TightropeError: its plug-in is not installed, or does not load.
        """
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        entries = installed()
        if cmd_name in entries:
            return _loaded(cmd_name, entries[cmd_name])
        if ctx.resilient_parsing:  # a shell completes words
            return None
        if cmd_name in KNOWN:
            part = KNOWN[cmd_name]
            raise TightropeError(
                f"{cmd_name} is part of {part.distribution}: pip install 'tightrope[{part.extra}]'."
            )
        if alike := get_close_matches(cmd_name, entries):
            raise TightropeError(
                f"No such command {cmd_name!r:.100}. Did you mean {alike[0]!r}? See tightrope --help."
            )
        return None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands; those of plug-ins are described without importing them."""
        entries = installed()
        names = self.list_commands(ctx)
        room = formatter.width - 6 - max(map(len, names))
        rows = [
            (
                name,
                self.commands[name].get_short_help_str(room)
                if name in self.commands
                else _help(name, entries[name][0]),
            )
            for name in names
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _owner(entry: EntryPoint) -> str:
    return printable(entry.dist.name) if entry.dist is not None else "a package without a name"


def _help(name: str, entry: EntryPoint) -> str:
    owner = _owner(entry)
    if name in KNOWN and KNOWN[name].distribution == owner:
        return KNOWN[name].help
    summary = entry.dist.metadata["Summary"] if entry.dist is not None else ""
    return f"Of {owner}: {printable(summary or '')}".removesuffix(": ")


def _loaded(name: str, entries: tuple[EntryPoint, ...]) -> Any:
    """Import a plug-in and take its command."""
    owners = [_owner(entry) for entry in entries]
    if len(owners) > 1:
        raise TightropeError(
            f"the command {name} is of {' and of '.join(owners)}: uninstall all of them but one."
        )
    try:
        register = entries[0].load()
    except (ImportError, AttributeError) as error:
        raise TightropeError(
            f"the command {name} of {owners[0]} does not load ({error}): install {owners[0]} again."
        ) from error
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    register(app)
    command = typer.main.get_group(app).commands.get(name)
    if command is None:
        raise TightropeError(f"{owners[0]} names a command {name} and adds none: install {owners[0]} again.")
    return command
