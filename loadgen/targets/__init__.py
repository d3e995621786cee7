"""HOW requests reach what is loaded: one session with a target for each worker, and the check before the load.

Imports: measure, profile, sim, workload. Begin with `base.py`.
"""
