"""Equal forms of a model, of which the one is chosen whose plan is the smallest."""

from tightrope_forms.rewrite.api import RewrittenModel as RewrittenModel
from tightrope_forms.rewrite.api import rewrite as rewrite
