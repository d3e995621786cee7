"""Tests of this room write files: each runs in an empty folder of its own."""

from tests.profile.reading import folder as folder
