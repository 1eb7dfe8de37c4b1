"""What a command works on: a graph file, or ``FILE.py:FUNCTION`` that builds a model and one batch.

A graph file is data.
"""

from dataclasses import replace
from typing import Any

import typer

from tightrope.cli.target import Built, build, is_function
from tightrope.core import Machine, Plan, TightropeError, parse_bytes
from tightrope.formats import Source, read_source


def source_of(target: str, machine: Machine | None = None) -> Source:
    """Read a graph file of any known format, or capture ``FILE.py:FUNCTION`` and price its ops.

    Args:
        target: see above.
        machine: prices come from its table; None = every op is measured here.

    Raises:
        TightropeError: there is no graph; the model is on the meta device, and no machine is given; or a
            machine is given for a file that has its own times.
    """
    if is_function(target):
        return _captured(target, build(target), machine)
    found = read_source(target)
    if machine is None:
        return found
    if found.format != "tightrope":
        raise TightropeError(
            f"{target!r} has times and no kernels that a machine could price: leave out --machine."
        )
    from tightrope.price import price_graph

    return replace(found, graph=price_graph(found.graph, machine))


def rewritten_source(
    target: str, machine: Machine | None, budget: str, seconds: float | None
) -> tuple[Source, str]:
    """Capture ``FILE.py:FUNCTION`` after a plug-in rewrote the model.

    Returns:
        The source, and the budget: a share is one of what the model as it was needs.

    Raises:
        TightropeError: as `source_of`; or the target is a graph, or nothing can rewrite it.
    """
    if not is_function(target):
        raise TightropeError(f"--rewrite rewrites models, and {target!r} is a graph: give FILE.py:FUNCTION.")
    from tightrope.cli.capturing import captured, priced, provenance_of_program
    from tightrope.plan import solve, whole_bytes
    from tightrope.run.session.equal_forms import finder

    choose = finder("--rewrite")
    program, real = captured(target, build(target))
    before = priced(target, program, real, machine)
    asked = parse_bytes(budget, whole=whole_bytes(before.graph, machine))

    def planned(one: Any, most: int) -> Plan:
        graph = (before if one is program else priced(target, one, real, machine)).graph
        return solve(graph, budget=min(asked, most or asked), machine=machine, seconds=seconds)

    form, said, most = choose(program, real, planned)
    typer.echo(said, err=True)
    graph, known = priced(target, form, real, machine).graph, provenance_of_program(program)
    return Source(graph, tuple(range(len(graph.ops))), "tightrope", known), str(min(asked, most or asked))


def _captured(target: str, built: Built, machine: Machine | None) -> Source:
    from tightrope.cli.capturing import priced_program, provenance_of_program

    program = priced_program(target, built, machine)
    known = provenance_of_program(program)
    return Source(program.graph, tuple(range(len(program.graph.ops))), "tightrope", known)
