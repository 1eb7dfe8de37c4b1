"""Commands of other distributions, which are found by entry points and imported when they are called.

A distribution adds a command with an entry point of the group ``tightrope.commands``. Its name is that of
the command, and its value names a function that adds the command to the `typer.Typer` that it is given, as
``register`` does in every module of commands here::

    [project.entry-points."tightrope.commands"]
    jobs = "tightrope_fleet.commands.jobs:register"

A command of the core has precedence over one of the same name.
"""

from difflib import get_close_matches
from importlib.metadata import EntryPoint
from typing import Any, Final, NamedTuple

import typer
import typer.core

from tightrope.core import TightropeError, printable
from tightrope.core.plugins import absent, installed, loaded, owner

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
    "demo": PluginCommand("demo", "Train small networks at several budgets."),
    "experts": PluginCommand("experts", "Forecast the bytes of a layer of experts."),
    "export": PluginCommand("export", "Write what to recompute for other engines."),
    "fleet": PluginCommand("fleet", "Forecast federated training on a fleet, and run it."),
    "graphs": PluginCommand("ranks", "Plan training on a graph over ranks."),
    "hypergraph": PluginCommand("forms", "Measure a convolution over a hypergraph."),
    "jobs": PluginCommand("fleet", "Place jobs whose ends are predicted."),
    "lock": PluginCommand("verify", "Write down what an environment holds."),
    "micro": PluginCommand("micro", "Training steps as C for microcontrollers."),
    "parity": PluginCommand("differ", "Find what differs between a model as trained and as run."),
    "place": PluginCommand("planners", "Place the buffers of a file at addresses."),
    "place-tasks": PluginCommand("assign", "Place tasks that wait for each other."),
    "predict": PluginCommand("fleet", "Answer for the rows of a table by a forest."),
    "quality": PluginCommand("differ", "Find how well an application has to be served by its nets."),
    "ranks": PluginCommand("ranks", "Forecast a training step on many ranks."),
    "record": PluginCommand("trace", "Run a training step and record it."),
    "select": PluginCommand("fleet", "Choose among candidates by noisy measurements."),
    "streams": PluginCommand("fleet", "Plan streams of frames with deadlines."),
    "tables": PluginCommand("assign", "Place embedding tables on devices."),
    "trace": PluginCommand("trace", "Ask and export a plan, a run or a profile."),
    "trees": PluginCommand("fleet", "Train boosted trees over parties that keep their data."),
    "verify": PluginCommand("verify", "Check that code is what was installed."),
}
"""Commands of the plug-ins of this project, installed or not."""


class CommandGroup(typer.core.TyperGroup):
    """The commands of the core, then those of plug-ins."""

    def list_commands(self, ctx: Any) -> list[str]:
        """List the names of all commands that can be called; no plug-in is imported."""
        return [*self.commands, *(name for name in installed(GROUP) if name not in self.commands)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Find a command, and import the plug-in that has it.

        Raises:
            TightropeError: its plug-in is not installed, or does not load.
        """
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        entries = installed(GROUP)
        if cmd_name in entries:
            return _loaded(cmd_name, entries[cmd_name])
        if ctx.resilient_parsing:  # a shell completes words
            return None
        if cmd_name in KNOWN:
            raise absent(cmd_name, KNOWN[cmd_name].extra)
        if alike := get_close_matches(cmd_name, entries):
            raise TightropeError(
                f"No such command {cmd_name!r:.100}. Did you mean {alike[0]!r}? See tightrope --help."
            )
        return None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands; those of plug-ins are described without importing them."""
        entries = installed(GROUP)
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


def _help(name: str, entry: EntryPoint) -> str:
    named = owner(entry)
    if name in KNOWN and KNOWN[name].distribution == named:
        return KNOWN[name].help
    summary = entry.dist.metadata["Summary"] if entry.dist is not None else ""
    return f"Of {named}: {printable(summary or '')}".removesuffix(": ")


def _loaded(name: str, entries: tuple[EntryPoint, ...]) -> Any:
    """Import a plug-in and take its command."""
    register = loaded(f"the command {name}", entries)
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    register(app)
    command = typer.main.get_group(app).commands.get(name)
    if command is None:
        named = owner(entries[0])
        raise TightropeError(f"{named} names a command {name} and adds none: install {named} again.")
    return command
