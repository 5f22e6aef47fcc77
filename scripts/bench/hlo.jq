# A document's graph as HLO text, for the operators of GPT's train step: what the importer
# reads in `make bench`.

def braces: "{" + (map(tostring) | join(",")) + "}";

def path:
    if .op == "parameter" then
        {weight: "params", state: "opt_state"}[.role] // "batch" | . + "['"
    elif .phase == "forward" then "jit(step)/jvp("
    elif .phase == "backward" then "jit(step)/transpose(jvp("
    else "jit(step)/" end;
def rest:
    if .op == "parameter" then "']"
    else {forward: ")", backward: "))", update: ""}[.phase] + "/" + .op end;
def op_name: path + (if .op == "parameter" then .name else .scope end) + rest;

def attributes($reducers):
    (if .op == "iota" then {iota_dimension: 0} + . else . end)
    | (if .op == "gather" then {offset_dims: [], collapsed_slice_dims: []} + .
       elif .op == "scatter" then {update_window_dims: [], inserted_window_dims: []} + .
       else . end)
    | to_entries
    | map(select(.key | IN("op", "name", "in", "shape", "param", "role", "scope", "phase",
            "group", "value", "id") | not)
        | ", " + .key + "="
        + (.value | if type == "array" then braces else tostring end)
        | if startswith(", to_apply=") then ", to_apply=" + $reducers[ltrimstr(", to_apply=") | tonumber].name else . end)
    | add // "";

def line($reducers; $root):
    "  " + $root + "n\(.id) = \(.shape) \(.op)("
    + (if .op == "parameter" then "\(.param)" elif .op == "constant" then "\(.value)"
       else (.in // [] | map("n\(.)") | join(", ")) end)
    + ")" + attributes($reducers) + ", metadata={op_name=\"" + op_name + "\"}";

.graph
| .reducers as $reducers | .results as $results | .nodes as $nodes
| "HloModule jit_step, input_output_alias={"
  + ([$results | to_entries[] | select(.value.alias != null)
      | "{\(.key)}: (\($nodes[.value.alias].param), {}, may-alias)"] | join(", ")) + "}",
  ($reducers[] | "\(.name) { x = \(.name | split(".")[1])[] parameter(0) "
      + "y = \(.name | split(".")[1])[] parameter(1) "
      + "ROOT z = \(.name | split(".")[1])[] \({sum: "add", max: "maximum"}[.kind])(x, y) }"),
  "ENTRY main {",
  (foreach $nodes[] as $n (-1; . + 1; . as $i | $n + {id: $i}) | line($reducers; "")),
  "  ROOT r = (" + ([$results[] | $nodes[.node].shape] | join(", ")) + ") tuple("
      + ([$results[] | "n\(.node)"] | join(", ")) + ")",
  "}"
