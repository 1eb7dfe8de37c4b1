"""Wrong calls: whether each is refused by name, and leaves everything as it was.

A case is drawn from a seed and a number: an entry point, one or two of its arguments, and for each a value
that is wrong in some way; or a training loop into which one to three wrong verbs are put. It is *right* when

- it raises a `TightropeError` whose message quotes one of the wrong values or names its argument, and says a
  next step; a command exits with 2 or 3 and one such line;
- or it raises what torch raises for the same call on the plain module: the same class, the same first line;
- or it does what torch does with it, to the bit, where torch takes it;
- or the value is one that may be taken, such as a damaged file that is still a file of its kind.

It is *wrong* when

- ``internal``: any other error comes out, or a traceback is printed;
- ``memory``: a ``torch.OutOfMemoryError`` that is no `TightropeError`;
- ``hang``, ``crash``: no answer in 60 s, or the process is gone;
- ``accepted``: a value that cannot mean anything is taken, or a call that torch refuses;
- ``differs``: results are others than torch's;
- ``message``: the message quotes nothing, or says no next step;
- ``state``: afterwards a small model that is known to be good does not compile and train to eager's bits, or
  a global setting is another, or the process is still held to a budget.
"""
