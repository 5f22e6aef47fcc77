# A document without names and scopes: what a planner may not depend on.
.graph.name = "stripped" |
.graph.nodes |= (to_entries | map(.key as $k | .value | del(.scope) | .name = "n\($k)"))
