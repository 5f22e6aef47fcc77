# What bench.py has to know of a model: the parameters of its document as ap-exec numbers them, and the rest of a row.
# Arguments: name, type, optimizer; as JSON peak (TFLOP/s), lr, heads, keys, top, range (random integers are below it).
[.graph.nodes[] | select(.op == "parameter")] as $params
| {name: $name, type: $type, peak: $peak, optimizer: $optimizer, lr: $lr, heads: $heads, kv_heads: $keys, top: $top,
   int_range: $range, flops: .cost.flops_per_device, losses: [],
   root: ($params | map(select(.role == "weight"))[0].name | split("/")[0]),
   params: [$params | sort_by(.param)[] | (.shape | capture("(?<type>[a-z0-9]+)\\[(?<dims>[0-9,]*)")) as $s
            | {name, role, dtype: $s.type, dims: ($s.dims | split(",") | map(tonumber))}]}
