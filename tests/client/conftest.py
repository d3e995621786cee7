"""The client stands on aiohttp: its tests run on asyncio, and where it matters on uvloop too."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
