"""Machine profiles by name: the ones that come with the package, or any TOML file."""

import re
from importlib.resources import files

from tightrope.core import Machine, TightropeError

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


def names() -> list[str]:
    """List the profiles that come with the package."""
    folder = files("tightrope") / "machines"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if ".toml" in entry.name)


def find_machine(text: str | None) -> Machine:
    """Find a machine: a name such as ``laptop-16gb``, the path of a TOML file, or None for this one.

    Raises:
        TightropeError: there is no such profile, or it is malformed; lists the names.
    """
    if text is None:
        return Machine.here()
    if text in names():
        return Machine.parse((files("tightrope") / "machines" / f"{text}.toml").read_text(encoding="utf-8"))
    if _NAME.fullmatch(text):
        raise TightropeError(
            f"no machine {text!r}: there are {', '.join(names())}; or give the path of a TOML file."
        )
    return Machine.load(text)
