"""The charts of the page, as plotly figures in plain data: over the time of one stage, and over several stages.

Imports: profile, statistics, summary. Begin with `stage.py`.
"""
