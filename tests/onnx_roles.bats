#!/usr/bin/env bats
# ap-import: the metadata "autopar.roles" of an ONNX model; every fault is refused with its
# place.

load helpers

# roles VALUE [CHANGE]: writes $m, a layer of weight w with scale c and counter s (next value
# t), loss y, and outputs of other kinds; VALUE is the metadata's; CHANGE is jq's of the model
roles() {
    m=$BATS_TEST_TMPDIR/model.onnx
    jq -cn --argjson value "$1" '{inputs: {x: [1, [2, 2]]},
        weights: {w: [1, [2, 2], [1, 2, 3, 4]], c: [1, [1], [0.5]], n: [7, [1], [3]],
            s: [1, [1], [0]]},
        outputs: {y: [1, []], z: [1, [2, 2]], i: [7, [1]], t: [1, [1]]},
        nodes: [["MatMul", ["x", "w"], ["a"]], ["Mul", ["a", "c"], ["z"]],
            ["ReduceSum", ["z"], ["y"], {keepdims: 0}], ["Add", ["n", "n"], ["i"]],
            ["Add", ["s", "c"], ["t"]]],
        metadata: [["producer", "test"], ["autopar.roles", $value]]} | '"${2:-.}" >"$m.json"
    "$AP_TOP/tests/onnx_model.py" "$(cat "$m.json")" >"$m"
}

GOOD='{"weights": ["w"], "constants": ["c", "n"], "states": {"s": "t"}, "loss": "y"}'

# faulty CHANGE PLACE-AND-MESSAGE: the good roles changed by jq
faulty() {
    roles "$(jq -c "$1" <<<"$GOOD")"
    refuses 1 "$m: metadata \"autopar.roles\": $2" ap-import "$m"
}

@test "onnx roles: weights, states and the loss are what the metadata says" {
    roles "$GOOD"
    ap-import "$m" | jq -e '
        ([.graph.nodes[] | select(.op == "parameter") | {(.name): .role}] | add
            | . == {x: "input", w: "weight", s: "state"})
        and ([.graph.results[].role] == ["loss", "aux", "aux", "state"])' ||
        { ap-import "$m" | jq -c '.graph | .results, .nodes[]'; return 1; }
}

@test "onnx roles: text that is not a JSON object" {
    roles '"{\"weights\": [\"w\"], "'
    refuses 1 'metadata "autopar.roles": byte 19: ' ap-import "$m"
    roles '"{\"weights\": [], \"weights\": [\"w\"]}"'
    refuses 1 'duplicate object key' ap-import "$m"
    roles '["w"]'
    refuses 1 'metadata "autopar.roles": expected a JSON object' ap-import "$m"
    roles "$GOOD" '.metadata += [.metadata[1]]'
    refuses 1 'metadata "autopar.roles" is there twice' ap-import "$m"
}

@test "onnx roles: members that are not known or of another type" {
    faulty '.frozen = ["c"]' '/frozen: expected weights, states, constants or loss'
    faulty '.weights = "w"' '/weights: expected a list of names'
    faulty '.constants = {}' '/constants: expected a list of names'
    faulty '.states = ["s"]' '/states: expected an object'
    faulty '.weights = [1]' '/weights/0: expected a string'
    faulty '.states.s = 3' '/states/s: expected the name of an output'
    faulty '.loss = null' '/loss: expected the name of an output'
}

@test "onnx roles: names of initialisers" {
    faulty '.weights += ["v"]' "/weights/1: 'v' is not an initialiser"
    faulty '.states.x = "z"' "/states/x: 'x' is not an initialiser"
    faulty '.constants += ["w"]' "/constants/2: 'w' has two roles"
    faulty '.weights += ["w"]' "/weights/1: 'w' has two roles"
    faulty '.states.c = "z"' "/states/c: 'c' has two roles"
    faulty '.weights += ["n"] | .constants = ["c"]' "/weights/1: 'n' is not of floats"
    roles "$(jq -c '.constants = ["c"]' <<<"$GOOD")"
    refuses 1 "metadata \"autopar.roles\" says nothing of initialiser 'n'" ap-import "$m"
}

@test "onnx roles: names and shapes of outputs" {
    faulty '.loss = "w"' "/loss: 'w' is not an output"
    faulty '.states.s = "next"' "/states/s: 'next' is not an output"
    faulty '.loss = "t"' "/loss: 't' is there twice"
    faulty '.loss = "z"' "/loss: 'z' is f32[2,2]: expected a floating-point scalar"
    faulty '.loss = "i"' "/loss: 'i' is s64[1]: expected a floating-point scalar"
    faulty '.states.s = "z"' "output 'z' has not the shape of state 's'"
    # the shape that the operators give counts, not that the file may leave out
    roles "$(jq -c '.loss = "z"' <<<"$GOOD")" '.outputs.z[1] = null'
    refuses 1 "/loss: 'z' is f32[2,2]: expected a floating-point scalar" ap-import "$m"
}
