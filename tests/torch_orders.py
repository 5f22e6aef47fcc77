#!/usr/bin/env python3
"""Loads orders of pipelines as PyTorch's runtime does, and runs its simulation of them: torch_orders.py CSV...

PyTorch checks that each pass comes after what it reads, and that no rank waits for ever. Prints a line for each
file: its name, the rank of each stage, microbatches, actions.
"""
import csv
import sys

from torch.distributed.pipelining import schedules


def main():
    for path in sys.argv[1:]:
        with open(path, newline="", encoding="utf-8") as file:
            rows = [[schedules._Action.from_str(word) for word in row] for row in csv.reader(file)]
        ranks = len(rows)
        stages = 1 + max(a.stage_index for row in rows for a in row)
        microbatches = 1 + max(a.microbatch_index for row in rows for a in row)
        order = dict(enumerate(rows))
        rank_of = schedules._validate_schedule(order, ranks, stages, microbatches)
        merged = {rank: schedules._merge_bw(list(row)) for rank, row in order.items()}
        with_sends = schedules._add_send_recv(merged, lambda stage: rank_of[stage], stages)
        schedules._simulate_comms_compute(with_sends, lambda stage: rank_of[stage], stages)
        print(path, [rank_of[s] for s in range(stages)], microbatches, sum(map(len, rows)))


if __name__ == "__main__":
    main()
