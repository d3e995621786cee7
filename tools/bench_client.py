"""What a call of the client costs beside the wait: CPU of this process, against a server that answers canned bytes.

The server is `tools/sink.py` in a process of its own; what is counted is all that this process does for a call, its
threads and its event loop included. Prints microseconds a call.

usage: python tools/bench_client.py [--calls N]
"""

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from loadgen import VLLMClient
from loadgen.client import ChatMessage

SINK = Path(__file__).with_name("sink.py")
MESSAGES = [ChatMessage("system", "Be brief."), ChatMessage("user", "word " * 64)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    calls = parser.parse_args().calls
    command = [sys.executable, str(SINK), "--port", "0", "--tokens", "0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as sink:
        assert sink.stdout is not None
        assert sink.stdin is not None
        url = f"http://127.0.0.1:{int(sink.stdout.readline())}"
        show("await achat, client open", lambda: asyncio.run(asynchronous(url, calls)))
        show("await achat, client not open", lambda: asyncio.run(opened_each_time(url, calls // 4)))
        show("chat, client open", lambda: synchronous(url, calls))
        show("chat, client not open", lambda: never_opened(url, calls))
        sink.stdin.close()


def show(what: str, measure: Callable[[], float]) -> None:
    print(f"{what:28} {min(measure() for _ in range(3)):6.0f} us of CPU a call")


async def asynchronous(url: str, calls: int) -> float:
    """CPU of a call, in us, each waiting for the one before."""
    async with VLLMClient("sink", url) as client:
        await client.achat(MESSAGES)
        start_ns = time.process_time_ns()
        for _ in range(calls):
            await client.achat(MESSAGES)
        return (time.process_time_ns() - start_ns) / 1000 / calls


async def opened_each_time(url: str, calls: int) -> float:
    """The same, where each call opens a connection of its own and closes it."""
    client = VLLMClient("sink", url)
    await client.achat(MESSAGES)
    start_ns = time.process_time_ns()
    for _ in range(calls):
        await client.achat(MESSAGES)
    return (time.process_time_ns() - start_ns) / 1000 / calls


def synchronous(url: str, calls: int) -> float:
    """The same, without async."""
    with VLLMClient("sink", url) as client:
        client.chat(MESSAGES)
        return blocking_calls(client, calls)


def never_opened(url: str, calls: int) -> float:
    """The same without `with`: the first call, which is not counted, starts the thread that the others share."""
    client = VLLMClient("sink", url)
    client.chat(MESSAGES)
    return blocking_calls(client, calls)


def blocking_calls(client: VLLMClient, calls: int) -> float:
    start_ns = time.process_time_ns()
    for _ in range(calls):
        client.chat(MESSAGES)
    return (time.process_time_ns() - start_ns) / 1000 / calls


if __name__ == "__main__":
    main()
