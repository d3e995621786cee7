"""MEASURED: what became of each request, folded to sums in the worker, merged in the parent, and appended to the
journal as it comes.

Imports: profile, statistics. Begin with `outcome.py`.
"""
