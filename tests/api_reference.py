"""The reference of the public names, from their docstrings: ``python -m tests.api_reference`` writes it."""

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import tightrope

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
HEAD = """# Reference

Every public name, from its docstring. `python -m tests.api_reference` writes this page; a test compares it.
"""


def reference() -> str:
    """Write the page as text."""
    return "\n".join([HEAD, *(_entry(name, getattr(tightrope, name)) for name in tightrope.__all__)])


def _entry(name: str, value: Any) -> str:
    lines = [f"## tightrope.{name}", "", "```text", _signature(name, value), "", inspect.getdoc(value) or ""]
    if inspect.isclass(value):
        members = [(key, member) for key, member in vars(value).items() if not key.startswith("_")]
        said = [(key, inspect.getdoc(member)) for key, member in members if _is_documented(member)]
        lines += ["", *(f"{key}: {text.splitlines()[0]}" for key, text in said if text)]
    return "\n".join(lines).rstrip() + "\n```\n"


def _is_documented(member: object) -> bool:
    return inspect.isfunction(member) or isinstance(member, property | staticmethod | classmethod)


def _signature(name: str, value: Any) -> str:
    if inspect.isclass(value) and issubclass(value, BaseException):
        return f"class {name}({value.__bases__[0].__name__})"
    try:
        text = str(inspect.signature(value))
    except ValueError:
        text = "(...)"
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", re.sub(r"<factory>|<object object at \w+>", "...", text))
    return (
        ("class " if inspect.isclass(value) else "")
        + name
        + re.sub(r"\b(tightrope|torch)(\.\w+)*\.", "", text)
    )


if __name__ == "__main__":
    PAGE.write_text(reference())
    sys.stdout.write(f"{PAGE}\n")
