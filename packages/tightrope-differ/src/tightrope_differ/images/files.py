"""Files of images in a folder, and their labels."""

from pathlib import Path
from typing import Final

from tightrope.core import TightropeError

_SUFFIXES: Final = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


def images_in(folder: Path, most: int = 0) -> tuple[list[Path], list[int] | None]:
    """List the images of a folder, and their labels where each lies in a folder of its class.

    Args:
        folder: searched with all folders below it.
        most: images, spread evenly over all; 0 = all.

    Returns:
        Paths in the order of their names, and classes numbered in the order of their folders.

    Raises:
        TightropeError: there is no folder, or no image.
    """
    found = sorted(one for one in folder.rglob("*") if one.suffix.lower() in _SUFFIXES and one.is_file())
    if not found:
        what = f"has no image ({', '.join(_SUFFIXES)})" if folder.is_dir() else "is no folder"
        raise TightropeError(f"{str(folder)!r:.300} {what}: give a folder with images.")
    inside = {one: one.relative_to(folder).parts for one in found}
    classes = sorted({parts[0] for parts in inside.values()})
    if 0 < most < len(found):
        found = [found[at * len(found) // most] for at in range(most)]
    if any(len(inside[one]) == 1 for one in found) or len(classes) < 2:
        return found, None
    return found, [classes.index(inside[one][0]) for one in found]
