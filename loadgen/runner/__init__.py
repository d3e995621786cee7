"""One run, from its profile to its files: its stages on the targets and workers that they need, in real or virtual
time; going on with a run, and what comes of one. It is not called `run`, since `loadgen.run` is the function.

Imports: judge, load, measure, profile, report, search, sim, summary, targets, workers, workload. Begin with `run.py`.
"""
