"""Schedules: how the weights of a mixture change over the steps of a run, as plugins and in Python.

Shapes (`Ramp`, `Wsd`, `CrossFade`, `Sawtooth`, CSV tables), easings of time, and what is made of other
schedules (`Then`, `Repeat`, `Bounds`). All compute with whole numbers, so they compile
to the same table everywhere.
"""
