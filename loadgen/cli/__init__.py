"""The verbs of the command line, and a run as a person sees it: live view, Ctrl-C, closing table, exit code.

Imports: load, measure, profile, report, runner, search, sim, summary. Begin with `commands.py`.
"""
