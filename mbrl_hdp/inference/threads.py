"""How many threads a fit takes in a program that said nothing about them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits


@contextmanager
def one_thread() -> Iterator[None]:
    """Work with one thread inside, unless OMP_NUM_THREADS says how many there are (`mbrl_hdp.runtime` sets it).

    With more, small matrices take several times as long, and their last digits depend on the machine.
    """
    if "OMP_NUM_THREADS" in os.environ:
        yield
        return
    before = torch.get_num_threads()
    with threadpool_limits(1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)
