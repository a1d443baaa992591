"""The mailbox: who posts, who works, and when answers are given."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.virtual_time import virtually

from pypto_serving_router.errors import PoolFull, RouterError
from pypto_serving_router.fleet.mailbox import Mailbox


@virtually
async def test_an_answer_is_held_back_until_the_pass_is_over() -> None:
    """Spec 7.12: who hears of a change can rely on it."""
    mailbox = Mailbox()
    call = asyncio.ensure_future(mailbox.do(lambda: 42))
    await asyncio.sleep(0)
    mailbox.work_off()
    await asyncio.sleep(1)
    assert not call.done()
    mailbox.send_answers()
    assert await call == 42


@virtually
async def test_an_error_is_an_answer() -> None:
    """Spec 6.3: it is raised where the caller waits."""
    mailbox = Mailbox()
    call: asyncio.Future[None] = asyncio.ensure_future(
        mailbox.call(lambda waiter: mailbox.answer(waiter, PoolFull("full")))
    )
    await asyncio.sleep(0)
    mailbox.work_off()
    mailbox.send_answers()
    with pytest.raises(PoolFull):
        await call


@virtually
async def test_an_answer_to_someone_who_has_left_is_nobodys() -> None:
    """Spec 6.4: the work is done all the same."""
    mailbox = Mailbox()
    done: list[int] = []
    call = asyncio.ensure_future(mailbox.do(lambda: done.append(1)))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.sleep(0)
    mailbox.work_off()
    mailbox.answer(None, 1)
    mailbox.send_answers()
    assert done == [1]


@virtually
async def test_work_is_done_in_order_with_what_it_posts() -> None:
    """Spec 7.1: one after the other, and a pass leaves nothing behind."""
    mailbox = Mailbox()
    order: list[int] = []

    def first() -> None:
        order.append(1)
        mailbox.post(lambda: order.append(3))

    mailbox.post(first)
    mailbox.post(lambda: order.append(2))
    await mailbox.wait()
    mailbox.work_off()
    assert (order, mailbox.empty) == ([1, 2, 3], True)


@virtually
async def test_nobody_waits_at_a_closed_mailbox() -> None:
    """Spec 7.11: after the end there is an error, not silence."""
    mailbox = Mailbox()
    mailbox.close()
    with pytest.raises(RouterError, match="shut down"):
        await mailbox.do(lambda: 1)
