"""The builder of what workers tell, which several rooms share."""

from tests.measured import build as build
