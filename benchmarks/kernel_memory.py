"""The memory that the CPU's kernels take, as a share of their inputs and results: the figures in `kernel_memory.SHARES`.

    python benchmarks/kernel_memory.py --models unet,resnet18

Each distinct call of one step of each model that may take memory, and whose tensors take 0.1 MiB to 1 GiB, runs once on made-up
tensors. Prints, by operator, the number of calls, and the median and the largest share.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict

from estimate_models import MODELS

from rekindle.estimates.estimate import as_it_is
from rekindle.torch import accept
from rekindle.torch.costs import devices
from rekindle.torch.estimate.eager_step import StepOptions, step_of_twin
from rekindle.torch.estimate.kernel_memory import KernelMemory

LEAST_BYTES = 10**5
SECONDS = 20.0  # of kernels, for each model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="names, separated by commas")
    shares: dict[str, list[float]] = defaultdict(list)
    options = StepOptions(None, None, False, devices.get("cpu"), as_it_is)
    memory, seen = KernelMemory(), set()
    for name in parser.parse_args().models.split(","):
        model, sample = MODELS[name]()
        memory.again(SECONDS)
        for m in step_of_twin(model, accept.sample(sample), options, memory).moments:
            size = 0 if m.call is None else sum(t.bytes for t in m.call.tensors)
            if m.call is None or size < LEAST_BYTES or m.call.key in seen:
                continue
            seen.add(m.call.key)
            if (ran := memory.run(m.call)) is not None:
                shares[f"{m.op}{' (plain)' if m.call.plain else ''}"].append(max(0, ran[1]) / size)
    for op, found in sorted(shares.items(), key=lambda row: -max(row[1])):
        print(f"{op:70} {len(found):4}  median {statistics.median(found):6.3f}  largest {max(found):7.3f}", flush=True)


if __name__ == "__main__":
    main()
