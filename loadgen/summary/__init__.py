"""From the journal to what was measured: the summary as data, field for field what `summary.json` holds, and the
readings of a stage's journal that fill it.

Imports: measure, profile, statistics. Begin with `summary.py`.
"""
