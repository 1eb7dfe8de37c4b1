"""The packages of this checkout: the core in ``src``, and plug-ins and what these share in ``packages``."""

import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
CORE: Final = ROOT / "src" / "tightrope"


def distributions() -> list[Path]:
    """List the folders of all distributions but the core that are there."""
    return sorted(file.parent for file in ROOT.glob("packages/*/pyproject.toml"))


def plugins() -> list[Path]:
    """List the folders of the plug-ins that are there: they have entry points."""
    return [folder for folder in distributions() if "entry-points" in project(folder)]


def libraries() -> list[Path]:
    """List the folders of what plug-ins share."""
    return [folder for folder in distributions() if "entry-points" not in project(folder)]


def package_of(folder: Path) -> Path:
    """Find the one package that a distribution ships."""
    (found,) = (file.parent for file in folder.glob("src/*/__init__.py"))
    return found


def packages() -> list[Path]:
    """List the packages, the core first."""
    return [CORE, *map(package_of, distributions())]


def project(folder: Path) -> dict[str, Any]:
    """Read the table ``project`` of a folder's pyproject.toml."""
    return dict(tomllib.loads((folder / "pyproject.toml").read_text())["project"])
