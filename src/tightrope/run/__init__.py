"""Ways into a planned step: `compile`, `step`, `save`, `load` and `report`.

Its rooms, each of which imports only those before it: ``base``, ``ledger``, ``execute``, ``verify``,
``evict``, ``session``.
"""
