"""Messages of hypergraphs in two passes that write every row once, with bytes that a plan knows."""

from tightrope_forms.hypergraph.conv import HypergraphConv as HypergraphConv
from tightrope_forms.hypergraph.conv import hypergraph_conv as hypergraph_conv
from tightrope_forms.hypergraph.conv import propagate as propagate
from tightrope_forms.hypergraph.incidence import Incidence as Incidence
