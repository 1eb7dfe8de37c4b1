"""The reference of the public names, from their docstrings: ``python -m tests.api_reference`` writes it."""

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import tightrope

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
HEAD = """# Reference

Every public name, from its docstring, without examples. `python -m tests.api_reference` writes this page.
"""


def reference() -> str:
    """Write the page as text."""
    public = [(name, getattr(tightrope, name)) for name in tightrope.__all__]
    errors = [(name, value) for name, value in public if _is_error(value)]
    others = [(name, value) for name, value in public if not _is_error(value)]
    return "\n".join([HEAD, *(_entry(*one) for one in others), "## Errors\n", *map(_error, errors)])


def _is_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, BaseException)


def _error(one: tuple[str, Any]) -> str:
    """One item of the list of errors: its parent, its first sentence, its attributes."""
    name, value = one
    text, _, attributes = (inspect.getdoc(value) or "").partition("\n\nAttributes:\n")
    found = re.findall(r"(?m)^    (\w+):", attributes)
    fields = f" Fields: {', '.join(f'`{field}`' for field in found)}." if found else ""
    return f"- `{name}({value.__bases__[0].__name__})`: {' '.join(text.split())}{fields}"


def _entry(name: str, value: Any) -> str:
    text = _shortened(inspect.getdoc(value) or "")
    signature = f"class {name}" if "\nAttributes:\n" in text else _signature(name, value)
    lines = [f"## tightrope.{name}", "", "```text", signature, "", text]
    if inspect.isclass(value):
        members = [(key, member) for key, member in vars(value).items() if not key.startswith("_")]
        said = [(key, inspect.getdoc(member)) for key, member in members if _is_documented(member)]
        lines += [
            "",
            *(f"{key}: {one.splitlines()[0]}" for key, one in said if one and f" {key}:" not in text),
        ]
    return "\n".join(lines).rstrip() + "\n```\n"


def _shortened(text: str) -> str:
    """Leave out examples, which tests of docstrings run, and say of errors their names alone."""
    text = re.sub(r"(?ms)^Example:\n.*?(?=^\S|\Z)", "", text)
    text = re.sub(r"(?ms)\n\n>>> .*\Z", "", text)
    return re.sub(r"(?ms)^Raises:\n(.*?)(?=^\S|\Z)", _names_of_errors, text).rstrip()


def _names_of_errors(found: re.Match[str]) -> str:
    names = ", ".join(re.findall(r"(?m)^    ([\w.]+):", found[1]))
    return f"Raises: {names}.\n\n"


def _is_documented(member: object) -> bool:
    return inspect.isfunction(member) or isinstance(member, property | staticmethod | classmethod)


def _signature(name: str, value: Any) -> str:
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
