# Whether rows differ in what a filter makes of them, where it makes something.
def differ(f): map(f | select(. != null)) | unique | length > 1;
# A number with three digits that count.
def three: if . == 0 then "0" else (fabs | log10 | floor) as $e
    | if $e >= 3 then round else pow(10; 2 - $e) as $p | . * $p | round / $p end | tostring end;
# H100-80GB: H100, as people say it.
def without_memory: sub("-[0-9]+GB$"; "");
