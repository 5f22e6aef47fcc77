#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times JAX's train step of a model of models.py, one step for each line of standard input.

    speed.py MODEL [OPTION]...      options as of export.py, but -o

Compiles the jitted step with its weights and states donated, runs it once, prints "ready" and then,
for each line read, two numbers: the seconds of one step on the clock and of the processor.
JAX takes the cores that it may run on: `taskset -c 0 speed.py ...` is one thread.
"""

import os
import sys
import time

import export  # sets XLA_FLAGS
import jax

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
if len(os.sched_getaffinity(0)) == 1:
    os.environ["XLA_FLAGS"] += " " + ONE_THREAD


def main():
    options = export.parse_options([*sys.argv[1:], "--donate", "-o", os.devnull])
    model = export.MODELS[options.model](options)
    step = export.make_step(model, options)
    arrays = export.arrays_of(export.specs_of(model), options.seed)
    params, state, batch = jax.tree.map(jax.numpy.array, arrays)

    def one():
        nonlocal params, state
        loss, params, state = step(params, state, batch)
        jax.block_until_ready((loss, params, state))

    one()
    print("ready", flush=True)
    for _ in sys.stdin:
        clock, cpu = time.perf_counter(), time.process_time()
        one()
        print(time.perf_counter() - clock, time.process_time() - cpu, flush=True)


if __name__ == "__main__":
    main()
