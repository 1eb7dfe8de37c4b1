"""Add the libraries that ``native_wheel.py`` built to a wheel; without them it is one of pure Python."""

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Libraries(BuildHookInterface[Any]):
    """Bring the native part."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name what is added, and the platform that it is built for."""
        folder = os.environ.get("TIGHTROPE_LIBRARIES")
        if folder is None or version == "editable":
            return
        build_data["pure_python"] = False
        build_data["tag"] = os.environ["TIGHTROPE_TAG"]
        files = (file for file in Path(folder).iterdir() if file.suffix in (".so", ".json"))
        build_data["force_include"] |= {
            str(file): f"tightrope/native/libraries/{file.name}" for file in files
        }
