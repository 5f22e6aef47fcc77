/* The one place that knows the grammar of JSON. No recursion; linear. */
#include "base/json_scan.h"

enum { MAX_DIGITS = 18 };

/* ---- strings ---- */

static bool is_hex(int c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* Where a string's bytes go. */
struct copy {
    char *text;
    size_t n, cap;
};

static void copy_bytes(struct copy *to, const char *from, size_t n)
{
    if (!to->text)
        return;
    n = n < to->cap - 1 - to->n ? n : to->cap - 1 - to->n;
    memcpy(to->text + to->n, from, n);
    to->n += n;
}

/* Takes the byte that was peeked at. */
static void take_byte(struct ap_json *s, struct copy *to)
{
    copy_bytes(to, s->at, 1);
    s->at++;
}

static int scan_escape(struct ap_json *s, struct copy *to)
{
    take_byte(s, to); /* the backslash */
    int c = ap_json_peek(s);
    if (c <= 0 || !strchr("\"\\/bfnrtu", c))
        return ap_json_fail(s, "expected an escape sequence");
    take_byte(s, to);
    for (int i = 0; i < 4 && c == 'u'; i++) {
        if (!is_hex(ap_json_peek(s)))
            return ap_json_fail(s, "expected four hexadecimal digits");
        take_byte(s, to);
    }
    return 0;
}

int ap_json_string(struct ap_json *s, char *text, size_t cap)
{
    struct copy to = {text, 0, cap};

    if (!ap_json_take(s, '"'))
        return ap_json_fail(s, "expected a string");
    for (;;) {
        const char *end = ap_json_plain(s->at, s->end);
        copy_bytes(&to, s->at, (size_t)(end - s->at));
        s->at = end;
        int c = ap_json_peek(s);
        if (c == '"')
            break;
        if (c < ' ')
            return ap_json_fail(s, c < 0 ? "expected '\"'"
                                         : "control character in a string");
        if (c == '\\' && scan_escape(s, &to))
            return -1;
        if (c >= 127) /* another one: more text has come */
            take_byte(s, &to);
    }
    s->at++;
    if (text)
        text[to.n] = '\0';
    return 0;
}

int ap_json_key(struct ap_json *s, char *text, size_t cap)
{
    if (ap_json_next(s) != '"')
        return ap_json_fail(s, "expected a member name in quotes");
    if (ap_json_string(s, text, cap))
        return -1;
    return ap_json_take(s, ':') ? 0 : ap_json_fail(s, "expected ':'");
}

int ap_json_plain_string(struct ap_json *s, const char **text)
{
    if (!ap_json_take(s, '"'))
        return -1;
    *text = s->at;
    s->at = ap_json_plain(s->at, s->end);
    if (s->at == s->end || *s->at != '"' || s->at - *text > INT32_MAX)
        return -1;
    return (int)(s->at++ - *text);
}

/* ---- numbers ---- */

static bool is_digit(int c)
{
    return c >= '0' && c <= '9';
}

static int scan_digits(struct ap_json *s)
{
    if (!is_digit(ap_json_peek(s)))
        return ap_json_fail(s, "expected a digit");
    while (is_digit(ap_json_peek(s)))
        s->at++;
    return 0;
}

static int scan_number(struct ap_json *s)
{
    if (ap_json_peek(s) == '-')
        s->at++;
    if (ap_json_peek(s) == '0')
        s->at++;
    else if (scan_digits(s))
        return -1;
    if (ap_json_peek(s) == '.') {
        s->at++;
        if (scan_digits(s))
            return -1;
    }
    if (ap_json_peek(s) == 'e' || ap_json_peek(s) == 'E') {
        s->at++;
        if (ap_json_peek(s) == '+' || ap_json_peek(s) == '-')
            s->at++;
        if (scan_digits(s))
            return -1;
    }
    return 0;
}

int ap_json_number(struct ap_json *s, const char **text)
{
    ap_json_next(s);
    *text = s->at;
    return scan_number(s) || s->at - *text > INT32_MAX ? -1 : (int)(s->at - *text);
}

bool ap_json_int(struct ap_json *s, long long *value)
{
    bool negative = ap_json_take(s, '-');
    const char *digit = s->at;
    long long v = 0;

    while (s->at < s->end && is_digit(*s->at) && s->at - digit < MAX_DIGITS)
        v = 10 * v + (*s->at++ - '0');
    const char end = s->at < s->end ? *s->at : '\0';
    if (s->at == digit || (s->at - digit > 1 && *digit == '0') || is_digit(end) ||
        end == '.' || end == 'e' || end == 'E')
        return false;
    *value = negative ? -v : v;
    return true;
}

/* ---- values ---- */

static bool scan_word(struct ap_json *s, const char *word)
{
    while (*word && ap_json_peek(s) == *word) {
        s->at++;
        word++;
    }
    return !*word;
}

static int scan_scalar(struct ap_json *s)
{
    int c = ap_json_peek(s);

    if (c == '"')
        return ap_json_string(s, NULL, 0);
    if (c == '-' || is_digit(c))
        return scan_number(s);
    if (c == 'N' || c == 'I')
        return ap_json_fail(s, "NaN and infinities are not JSON numbers");
    if (c != 't' && c != 'f' && c != 'n')
        return ap_json_fail(s, "expected a value");
    return scan_word(s, c == 't'   ? "true"
                        : c == 'f' ? "false"
                                   : "null")
               ? 0
               : ap_json_fail(s, "expected true, false or null");
}

int ap_json_more(struct ap_json *s, char close)
{
    int c = ap_json_next(s);

    if (c != ',' && c != close)
        return ap_json_fail(s,
                            close == ']' ? "expected ',' or ']'" : "expected ',' or '}'");
    s->at++;
    return c == ',';
}

/* Takes closing brackets, then a comma and a key. *depth is 0 after the outermost. */
static int scan_between(struct ap_json *s, const char *open, int *depth)
{
    while (*depth) {
        bool object = open[*depth - 1] == '{';
        int more = ap_json_more(s, object ? '}' : ']');
        if (more)
            return more < 0 ? -1 : object ? ap_json_key(s, NULL, 0) : 0;
        --*depth;
    }
    return 0;
}

int ap_json_skip(struct ap_json *s, int levels)
{
    char open[AP_JSON_LEVELS];
    int depth = 0;

    do {
        int c = ap_json_next(s);
        if (c == '{' || c == '[') {
            if (levels + depth >= AP_JSON_LEVELS)
                return ap_json_fail(s, "nested deeper than 512 levels");
            open[depth++] = (char)c;
            s->at++;
            if (ap_json_next(s) != (c == '{' ? '}' : ']')) {
                if (c == '{' && ap_json_key(s, NULL, 0))
                    return -1;
                continue;
            }
        } else if (scan_scalar(s)) {
            return -1;
        }
        if (scan_between(s, open, &depth))
            return -1;
    } while (depth);
    return 0;
}
