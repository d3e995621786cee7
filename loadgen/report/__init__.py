"""SHOWN: a summary, or a run that goes on, as console, page, files and charts. It computes nothing that the summary
lacks but the places of marks for the eye.

Imports: measure, profile, statistics, summary. Begin with `files.py`.
"""
