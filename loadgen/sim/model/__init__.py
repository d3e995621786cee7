"""The model: tokens, what comes next and how likely it is, as pure functions of the text so far and the seed.

Imports: nothing. Begin with `language.py`.
"""
