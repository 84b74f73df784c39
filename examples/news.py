# SPDX-License-Identifier: Apache-2.0
"""One publisher and three subscribers, in tasks: each message goes once, by multicast; one of ten is lost.

A subscriber READs what it has lost from the publisher's ring. One of the three is slow, so the ring overtakes
it; it is told how many messages it has missed, and goes on.
"""

import asyncio

import rnic
import rnic.aio
from rnic.patterns.pubsub import AsyncSubscriber, MissedError, Publisher

COUNT = 200


async def subscribe(name: str, port: int, joined: asyncio.Semaphore, pause: float) -> None:
    """Receive to the end, and say what came."""
    heard = missed = 0
    async with (
        await rnic.aio.connect("127.0.0.1", port) as conn,
        await AsyncSubscriber.over(conn, receives=8) as subscriber,
    ):
        joined.release()
        while True:
            try:
                await subscriber.get()
                heard += 1
                await asyncio.sleep(pause)
            except MissedError as error:
                missed += error.count
            except EOFError:
                break
        repaired = subscriber.statistics().repaired
        print(f"{name}: {heard} of {heard + missed} messages, some of them repaired: {repaired > 0}")


async def main() -> None:
    """The publisher, and its subscribers."""
    async with rnic.aio.listen("127.0.0.1", 0) as listener:
        with Publisher(listener, slots=16, size=100) as publisher:
            serving = asyncio.create_task(listener.serve(publisher.serve_async))
            joined = asyncio.Semaphore(0)
            pauses = {"first": 0.0, "second": 0.0, "slow": 0.01}
            tasks: list[asyncio.Task[None]] = []
            for name, pause in pauses.items():
                tasks.append(asyncio.create_task(subscribe(name, listener.port, joined, pause)))
                await joined.acquire()
            publisher.context.set_faults(rnic.Faults(loss=0.1, seed=1))
            for number in range(COUNT):
                publisher.publish(b"message %d" % number)
                await asyncio.sleep(0.002)
            publisher.context.set_faults(None)
            publisher.end()
            await asyncio.gather(*tasks)
            listener.close()
            await serving


asyncio.run(main())
