"""Controllers: weights that follow the losses of the run.

`protocol.py` says what a controller is; `exp3.py`, `ado.py` and `threshold.py` are built in; `simulate.py`
runs one against losses that are known; `conformance.py` checks one of a plugin.
"""
