"""WHERE requests are sent from: worker processes, the channel to them, the parent's pool of them, and the dispatcher
that fires each job at its instant.

Imports: measure, profile, targets, workload. Begin with `pool.py`.
"""
