"""JUDGED: what the measured stages are worth. Whether the generator was the bottleneck, whether the SLO was kept, what
repeats have in common, and the summary of a run with its verdict.

Imports: measure, profile, statistics, summary. Begin with `verdict.py`.
"""
