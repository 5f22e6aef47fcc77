# One row of scripts/bench/stage-table from a document with `stages` and `cost`. Columns: model,
# devices, coarsen, shards, algorithm, step, microbatches, schedule, stages, mfu, PFLOP/s, peak
# GB, bound, wall, CPU, planner seconds, MB, objective, coarsen with the row's own
# number of blocks, then the choices that plans may differ in: microbatches, schedule, cut, submeshes, recompute, sharding.
def alike: reduce .[] as $s ([]; if length > 0 and .[-1][0] == $s then .[-1][1] += 1 else . + [[$s, 1]] end);
def submesh: "\(.hosts // 1)x\(.devices_per_host // (.devices | length))";
def order: {"gpipe": "gpipe", "1f1b": "1f1b", "interleaved-1f1b": "inter", "inference": "infer"}[.];
.stages as $p
| ($stats | map(select(.tool == "ap-stage"))[0]) as $own
| ([.cost.peak_bytes, $needs] | max) as $peak
| [$model, $devices, $coarsen, $shard, $algorithm, .cost.step_sec, $p.microbatches,
   ($p.schedule | order),
   ($p.stages
    | map("\(.blocks | length)@\(submesh)"
          + (((.devices | length) / ((.hosts // 1) * (.devices_per_host // (.devices | length))))
             | if . > 1 then "/\(.)" else "" end)
          + (if (.recompute // "none") == "none" then "" else "r" end))
    | alike | map(.[0] + (if .[1] > 1 then "*\(.[1])" else "" end)) | join(" "))
   + (if $peak > .cluster.memory_bytes then " over memory" else "" end),
   .cost.mfu, .cost.flops_per_sec / 1e15, $peak / 1e9, $p.lower_bound_sec, $wall, $cpu,
   $own.sec - $own.wait_sec, ($stats | map(.peak_bytes) | add / 1e6), $p.objective_sec, $own_coarsen,
   "microbatches \($p.microbatches)", "schedule \($p.schedule)",
   "cut \($p.stages | map(.blocks | length | tostring) | join(","))",
   "submesh \($p.stages | map(submesh) | join(","))",
   "recompute \($p.stages | map(.recompute // "none") | join(","))",
   "sharding \($p.stages | map(.sharding | [.algorithm, (.mesh.shape // .mesh | tostring)]
                               + (if .groups then [.objective_sec // 0 | tostring] else [] end) | join(":")) | join(","))"]
| @tsv
