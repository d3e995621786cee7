"""Numbers without a run: histograms, confidence intervals of percentiles and shares, and when a series is stationary.

Imports: nothing. Begin with `histogram.py`.
"""
