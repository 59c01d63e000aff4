"""Large pictures share one budget of pixels: what runs at once is bounded, and nobody starves."""

from __future__ import annotations

import threading

from PIL import Image, PngImagePlugin

from clipfleet.operators import ImageLimits, decode_image
from clipfleet.operators._budget import Budget
from clipfleet.operators.image import _heavy
from support.pictures import save
from support.waiting import wait_until


def test_given_a_budget_then_what_runs_at_once_never_exceeds_it_and_nothing_starves():
    budget, running, most, done = Budget(), [], [], []
    guard = threading.Lock()

    def work(amount):
        for _ in range(50):
            with budget.hold(amount, 10):
                with guard:
                    running.append(min(amount, 10))
                    most.append(sum(running))
                with guard:
                    running.remove(min(amount, 10))
        done.append(amount)

    threads = [threading.Thread(target=work, args=(amount,)) for amount in (3, 4, 5, 10, 99)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(done) == [3, 4, 5, 10, 99]
    assert max(most) <= 10


def test_given_two_large_pictures_on_two_threads_then_the_second_waits_and_a_small_one_does_not(monkeypatch):
    """The first is held in the middle of its decode; nobody else may be in there but a small one."""
    limits = ImageLimits(max_pixels=100_000, heavy_pixels=1_000)
    large, small = save(Image.new("RGB", (300, 300)), "PNG"), save(Image.new("RGB", (20, 20)), "PNG")
    inside, release, loaded = threading.Event(), threading.Event(), []
    true_load, given_back = PngImagePlugin.PngImageFile.load, []

    def held(image):
        loaded.append(image.size)
        if image.size == (300, 300):
            inside.set()
            assert release.wait(10)
        return true_load(image)

    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", held)
    monkeypatch.setattr("clipfleet.operators.image.give_back", lambda: given_back.append(1))
    threads = [threading.Thread(target=decode_image, args=(large, limits)) for _ in range(2)]
    threads[0].start()
    assert inside.wait(10)
    threads[1].start()
    wait_until(lambda: len(_heavy._waiting) == 1, description="the second waits for its share")
    assert decode_image(small, limits).size == (20, 20)
    assert loaded.count((300, 300)) == 1
    assert not given_back
    release.set()
    for thread in threads:
        thread.join(10)
    assert loaded.count((300, 300)) >= 2
    assert len(given_back) == 2


def test_given_a_small_share_and_a_large_one_waiting_then_the_large_one_goes_before_a_later_small_one():
    budget, order = Budget(), []
    held, inside = threading.Event(), threading.Event()

    def holder():
        with budget.hold(1, 10):
            inside.set()
            held.wait(10)

    def take(name, amount):
        with budget.hold(amount, 10):
            order.append(name)

    def waiting(count):
        with budget._changed:
            return len(budget._waiting) == count

    first = threading.Thread(target=holder)
    first.start()
    assert inside.wait(10)
    large = threading.Thread(target=take, args=("large", 10))
    large.start()
    wait_until(lambda: waiting(1))
    small = threading.Thread(target=take, args=("small", 1))
    small.start()
    wait_until(lambda: waiting(2))
    held.set()
    for thread in (first, large, small):
        thread.join(10)
    assert order == ["large", "small"]
