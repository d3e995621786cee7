"""WHEN requests start: arrival processes as pure numbers, the stages that a load means, and the producer that hands
their jobs to the workers ahead of time.

Imports: measure, profile, workers. Begin with `stages.py`.
"""
