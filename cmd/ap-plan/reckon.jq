# What the rows of a sweep cost, which of them another row beats, and what follows, in words.
# Input: the rows; $asked, $model, $tokens, $days, $price (a list of at most one).
def sum_of(f): reduce .[] as $x (0; . + ($x | f));
def n_devices: [.devices[]] | add;

# What an hour of a row's device costs: by the name of the cluster that was asked, of its kind of host, of the device,
# or of the device without its memory; a name of hosts is of all devices, which are of one kind. null: no price.
def price_of($per_hour; $device): .cluster as $asked
    | first((if .devices | length == 1 then $asked, ($asked | sub("x[0-9]+$"; "")) else empty end, ($device, ($device | without_memory)))
        | $per_hour[ascii_downcase] // empty) // null;

# Days, device-hours and money of the whole training.
def reckon($per_hour): .n_devices = n_devices
    | if $tokens == "" or .tokens == 0 then .
      else .days = .step_sec * ($tokens | tonumber) / .tokens / 86400
        | .device_hours = .days * 24 * .n_devices
        | if $per_hour == null then .
          else . as $row | [.devices | to_entries[] | .price = (.key as $d | $row | price_of($per_hour; $d))]
            | map(select(.price == null) | .key) as $unpriced
            | . as $each | $row
            | if $unpriced == [] then .money = .days * 24 * ($each | sum_of(.value * .price))
              else .unpriced = $unpriced end
          end
      end;

# Two descriptions of one device, such as a data sheet and what was measured.
def retold($a; $b): ($a.devices | keys) == ($b.devices | keys) and $a.kind != $b.kind;
# What a row costs beside time: money; without prices, devices, of the same kind alone.
def beats($a; $b): $a.samples == $b.samples and $a.seq == $b.seq and (retold($a; $b) | not)
    and (($a.money and $b.money) or ($a.devices | keys) == ($b.devices | keys))
    and ([$a, $b] | map(if $a.money and $b.money then .money else .n_devices end)) as $cost
    | ($a.step_sec <= $b.step_sec and $cost[0] <= $cost[1])
      and ($a.step_sec < $b.step_sec or $cost[0] < $cost[1]);

def least(f): map(select(f != null)) | if . == [] then null else min_by(f) end;
# A row's batch and length, where rows differ in them.
def sizes($all): (if $all | differ(.samples) then ", batch \(.samples)" else "" end)
    + (if $all | differ(.seq) then ", seq \(.seq)" else "" end);
def named($all): "\(.cluster) of \(.n_devices) devices\(sizes($all))";
def plural($n): if $n == 1 then "" else "s" end;

# Where more devices of a kind cease to pay: the first step up of which less than most_lost of the speed comes.
def bend_at: 0.8; # of what twice the devices could gain
def scaling: group_by([.kind, (.devices | keys), .samples, .seq])[] | sort_by(.n_devices) | unique_by(.n_devices)
    | select(length >= 3) as $curve
    | [range(1; $curve | length) as $i | $curve[$i - 1] as $a | $curve[$i] as $b
        | {a: $a, b: $b, gain: ($a.step_sec / $b.step_sec),
           share: (pow($a.step_sec / $b.step_sec; (2 | log) / ($b.n_devices / $a.n_devices | log)) / 2)}] as $steps
    | "\($curve[0].devices | keys[0]), a batch of \($curve[0].samples): " + (first($steps[] | select(.share < bend_at))
        | "the curve bends at \(.a.n_devices) devices: from there to \(.b.n_devices) the step is \(.gain | three) x as fast")
      // "the curve does not bend up to \($curve[-1].n_devices) devices: twice as many make the step at least \($steps | map(.share * 2) | min | three) x as fast";

# Rows of one batch and length whose order published runs leave open, by step, and rows without such runs.
def open_order: . as $all | (group_by([.samples, .seq])[] | map(select(.published)) | sort_by(.step_sec)
        | range(1; length) as $i | .[$i - 1] as $a | .[$i] as $b
        | select($a.step_sec * $a.published.high > $b.step_sec * $b.published.low)
        | "open: whether \($a.cluster) or \($b.cluster) is quicker; they differ by less than published runs from their prices\($a | sizes($all))"),
    (map(select(.published | not) | .cluster) | unique | select(. != [])
        | "no measured run is near the plan\(if length > 1 then "s" else "" end) of \(join(", "))");

# Descriptions of one device that are not weighed against each other.
def same_devices: map(select(.step_sec)) | group_by(.devices | keys)[] | select(map(.kind) | unique | length > 1)
    | "\(.[0].devices | keys | join(", ")) is described by several presets (\(map(.cluster) | unique | join(", "))): their prices differ, not the hardware, and none dominates another";

def words_of_choice: map(select(.step_sec)) as $planned
    | ($planned | least(.days)) as $quick | ($planned | least(.money)) as $cheap
    | (if $quick then "quickest: \($quick | named($planned)), \($quick.days | three) days" else empty end),
      (if $cheap then "cheapest: \($cheap | named($planned)), \($cheap.days | three) days" else empty end),
      (if $days == "" then empty
       else ($days | tonumber) as $most | ($planned | map(select(.days <= $most))) as $in
        | if $in == [] then "no row takes at most \($days) day\(plural($most))"
          else ($in | least(.money) // ($in | min_by(.device_hours))) as $best
            | "within \($days) day\(plural($most)): \($in | length) of \($planned | length), of which \($best | named($planned)) "
              + (if $best.money then "costs least" else "takes the fewest device-hours" end) end end),
      ($planned | scaling), ($planned | open_order), ($planned | same_devices);

($price[0] // {}) as $prices
| ($prices.per_device_hour | if . then with_entries(.key |= ascii_downcase) else . end) as $per_hour
| map(if .why then . else reckon($per_hour) end)
| . as $all
| map(. as $row | if .why then . else
    (first($all[] | select(.step_sec) | . as $a | select(beats($a; $row))) // null) as $by
    | if $by then .dominated_by = $by.cluster else . end end)
| {asked: $asked, model: $model}
  + (if $tokens == "" then {} else {tokens: ($tokens | tonumber), tokens_said: $tokens} end)
  + (if $days == "" then {} else {days: ($days | tonumber)} end)
  + (if $prices.per_device_hour then {currency: ($prices.currency // "money"), price_source: $prices.source} else {} end)
  + {rows: ., says: [words_of_choice]}
