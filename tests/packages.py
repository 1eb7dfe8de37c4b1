"""The packages of this checkout: the core in ``src``, and one of each plug-in in ``packages``."""

import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
CORE: Final = ROOT / "src" / "tightrope"


def plugins() -> list[Path]:
    """List the folders of the plug-ins that are there."""
    return sorted(file.parent for file in ROOT.glob("packages/*/pyproject.toml"))


def package_of(plugin: Path) -> Path:
    """Find the one package that a plug-in ships."""
    (found,) = (file.parent for file in plugin.glob("src/*/__init__.py"))
    return found


def packages() -> list[Path]:
    """List the packages, the core first."""
    return [CORE, *map(package_of, plugins())]


def project(folder: Path) -> dict[str, Any]:
    """Read the table ``project`` of a folder's pyproject.toml."""
    return dict(tomllib.loads((folder / "pyproject.toml").read_text())["project"])
