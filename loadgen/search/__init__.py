"""Which stages a run has: given beforehand, or asked for one by one by a search. Pure functions of the stages
measured so far, without a clock.

Imports: judge, load, profile, statistics, summary. Begin with `program.py`.
"""
