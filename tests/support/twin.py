"""A planned model and its eager twin, taken through the same random actions.

Every training step of both starts from the same random state; results, gradients, buffers, inputs and random states must
then be equal bit for bit. A run is a list of (action, number) pairs, so that any run, or any part of it, can be replayed:

    replay("Blocks", {"minimize": "memory"}, [("set_scale", 3), ("forward_hook", 1)])

As a program it tries each action alone on each model: python tests/support/twin.py [--models A,B] [--actions a,b]
"""

from __future__ import annotations

import copy
import gc
import logging
import random
import time
import warnings
from typing import Any

import torch

import twin_models
import twin_steps  # noqa: F401  its actions join the others
from twin_changes import ACTIONS, unpatch_classes
from twin_models import MODELS
from twin_pair import GOALS, PATIENCE, Action, Fault, Hang, Pair, Step, in_time, plan_it

__all__ = ["ACTIONS", "GOALS", "MODELS", "Action", "Fault", "Pair", "Step", "check", "replay", "sequence", "shrink"]


def replay(name: str, goal: dict[str, Any], actions: list[Action]) -> Pair:
    """Take a new pair through the actions.

    Raises
    ------
    Fault : the first difference, with the actions up to it as a script.
    """
    if not gc.get_freeze_count():  # collections, of which every check makes two, then leave torch's own objects out
        gc.collect()
        gc.freeze()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            eager = MODELS[name]()
        pair = Pair(name, goal, [eager, copy.deepcopy(eager)], warned=warned)
        logger = logging.getLogger("rekindle")
        logger.addHandler(pair.lines)
        done: list[Action] = []
        try:
            if not plan_it(pair):
                raise Fault("was refused")
            pair.words_before = 0
            pair.step()
            for action, k in actions:
                done.append((action, k))
                with in_time():
                    ACTIONS[action](pair, k)
                    pair.step()
        except (Exception, Hang) as e:
            kind = e if isinstance(e, Fault) else f"raises {type(e).__name__}: {str(e).partition(chr(10))[0][:300]}"
            kind = f"takes more than {PATIENCE:.0f} s" if isinstance(e, Hang) else kind
            raise Fault(f"{kind}\nReplay: import twin; twin.replay({name!r}, {goal!r}, {done!r})") from e
        finally:
            logger.removeHandler(pair.lines)
            unpatch_classes(pair, 0)
            twin_models.SCALE = 1.0
    return pair


def sequence(seed: int, most: int) -> tuple[str, dict[str, Any], list[Action]]:
    """The model, the goal and the actions of a seed."""
    r = random.Random(seed)
    name = list(MODELS)[seed % len(MODELS)]
    names = list(ACTIONS)
    return name, r.choice(GOALS), [(r.choice(names), r.randrange(60)) for _ in range(r.randint(3, 20))][:most]


def shrink(
    name: str, goal: dict[str, Any], actions: list[Action], seconds: float = 20
) -> tuple[list[Action], Fault | None]:
    """Fewer actions that still end in a fault, and that fault."""
    end = time.monotonic() + seconds
    last: Fault | None = None
    size = max(1, len(actions) // 2)
    while time.monotonic() < end:
        for i in range(0, len(actions), size):
            fewer = actions[:i] + actions[i + size :]
            try:
                replay(name, goal, fewer)
            except Fault as e:
                actions, last = fewer, e
                break
            if time.monotonic() > end:
                return actions, last
        else:
            if size == 1:
                break
            size //= 2
    return actions, last


def check(seed: int, most: int) -> None:
    """Take the pair of a seed through its actions, or through the first `most` of them.

    Raises
    ------
    AssertionError : with the fewest actions found that show the difference.
    """
    name, goal, actions = sequence(seed, most)
    try:
        replay(name, goal, actions)
    except Fault as e:
        fewer, last = shrink(name, goal, actions)
        found = f"seed {seed}: {last or e}\nFewest actions found: {fewer}\nAll of them: {actions}"
        raise AssertionError(found) from None


def main() -> None:
    """Each action alone, on each model."""
    import argparse

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--actions", default=",".join(ACTIONS))
    parser.add_argument("--numbers", default="0,1,2,3,4,5")
    parser.add_argument("--steps", type=int, default=0, help="ordinary steps more after the action")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for action in given.actions.split(","):
        for name in given.models.split(","):
            seen: dict[str, int] = {}
            for k in map(int, given.numbers.split(",")):
                start = time.monotonic()
                try:
                    replay(name, GOALS[0], [(action, k)] + [("no_change", 0)] * given.steps)
                except Fault as e:
                    seen.setdefault(str(e).partition("\n")[0], k)
                if time.monotonic() - start > 10:
                    seen.setdefault(f"took {time.monotonic() - start:.0f} s", k)
            for what, k in seen.items():
                print(f"{action:26} {name:11} {k}  {what}", flush=True)


if __name__ == "__main__":
    main()
