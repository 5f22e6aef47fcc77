# Of a priced document, what a sweep says.
{cluster: $cluster,
 kind: .cluster.source,
 devices: (if .cluster.hosts
     then .cluster.levels[0].size as $each | reduce .cluster.hosts[] as $h ({}; .[$h.device] += $h.count * $each)
     else {(.cluster.device): ([.cluster.levels[].size] | reduce .[] as $n (1; . * $n))} end),
 words: .cost.plan.words,
 samples: .cost.plan.samples, tokens: .cost.plan.tokens,
 step_sec: .cost.step_sec, mfu: .cost.plan.mfu,
 peak_bytes: (.cost.peak_bytes // .cost.memory.peak_bytes),
 spare_bytes: .cost.plan.spare_bytes, largest_micro_batch: .cost.plan.largest_micro_batch,
 published: .cost.plan.published,
 bound_sec: (.stages.lower_bound_sec // .sharding.lower_bound_sec | if . == 0 then null else . end)}
| .seq = (if $seq == "" then (if .samples > 0 then .tokens / .samples else 0 end) else ($seq | tonumber) end)
