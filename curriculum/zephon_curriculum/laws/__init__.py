"""Which mixture is best, from a swarm of small runs: what they read, what they reached, the law, its optimum.

`designs.py` chooses the mixtures of the runs, `swarm.py` reads what they reached, `fit.py` fits a mixing law
to it and `optimum.py` looks for the mixture of the lowest loss.
"""
