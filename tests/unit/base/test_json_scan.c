/* The tokenizer says the same of bytes at hand and of a stream, however it is cut. */
#include "base/json_scan.h"

#include "tap.h"

/* Text that comes step bytes at a time, always into the same place. */
struct stream {
    const char *rest;
    size_t step;
    char window[64];
};

static bool more(struct ap_json *s)
{
    struct stream *from = s->ctx;
    size_t left = strlen(from->rest), n = left < from->step ? left : from->step;

    memcpy(from->window, from->rest, n);
    from->rest += n;
    s->at = from->window;
    s->end = from->window + n;
    return n > 0;
}

/* What is wrong with the text, step bytes at a time or (0) all at once; "" if nothing. */
static const char *verdict(const char *text, size_t step)
{
    struct stream from = {text, step, ""};
    struct ap_json s = {.at = text, .end = text + strlen(text)};

    if (step)
        s = (struct ap_json){
            .at = from.window, .end = from.window, .more = more, .ctx = &from};
    if (ap_json_skip(&s, 0))
        return s.why;
    return ap_json_next(&s) < 0 ? "" : "more follows";
}

static void judge(const char *text, const char *why)
{
    int bad = 0;

    for (size_t step = 0; step < 20; step++)
        bad += strcmp(verdict(text, step), why) != 0;
    CHECK(!bad, "%s: %s", text, *why ? why : "is JSON");
}

static void test_copy(void)
{
    static const char text[] = " \"a\\u00e9\\\"longer than the room\" : 7";
    int bad = 0;

    for (size_t step = 1; step < 20; step++) {
        struct stream from = {text, step, ""};
        struct ap_json s = {
            .at = from.window, .end = from.window, .more = more, .ctx = &from};
        char key[12];
        bad += ap_json_key(&s, key, sizeof key) || strcmp(key, "a\\u00e9\\\"lo") != 0 ||
               ap_json_next(&s) != '7';
    }
    CHECK(!bad, "a name is copied as it is written, and cut");
}

static void test_plain(void)
{
    struct ap_json s = {0};
    long long v = 0;
    const char *text;

    s.at = "-12,";
    s.end = s.at + 4;
    CHECK(ap_json_int(&s, &v) && v == -12 && *s.at == ',', "a whole number");
    s.at = "1234567890123456789";
    s.end = s.at + 19;
    CHECK(!ap_json_int(&s, &v), "19 digits are left to others");
    s.at = "-1.50e+3]";
    s.end = s.at + 9;
    CHECK(ap_json_number(&s, &text) == 8 && *s.at == ']', "a number's text");
    s.at = "\"a\\n\"";
    s.end = s.at + 5;
    CHECK(ap_json_plain_string(&s, &text) < 0, "an escape is not plain");
}

int main(void)
{
    judge("{\"a\":[1,-0.5e3,{}],\"b\":[],\"c\":\"x\\\\y\\u00e9\",\"d\":true}", "");
    judge(" [ null , false ]\n", "");
    judge("\"gr\xc3\xbc\xc3\x9f\"", "");
    judge("[1,]", "expected a value");
    judge("{\"a\" 1}", "expected ':'");
    judge("{a:1}", "expected a member name in quotes");
    judge("[1 2]", "expected ',' or ']'");
    judge("{\"a\":1", "expected ',' or '}'");
    judge("[01]", "expected ',' or ']'");
    judge("[-]", "expected a digit");
    judge("[tru]", "expected true, false or null");
    judge("[NaN]", "NaN and infinities are not JSON numbers");
    judge("\"\\x\"", "expected an escape sequence");
    judge("\"\\u12g4\"", "expected four hexadecimal digits");
    judge("\"a\tb\"", "control character in a string");
    judge("\"a", "expected '\"'");
    judge("1 2", "more follows");
    test_copy();
    test_plain();
    return tap_done();
}
