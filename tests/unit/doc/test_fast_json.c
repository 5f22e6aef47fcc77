/* Plain JSON is read as jansson reads it; all else is left to jansson. */
#include "doc/fast_json.h"

#include <stdlib.h>
#include <string.h>

#include "tap.h"

static void same(const char *text)
{
    json_t *want = json_loads(text, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, NULL);
    json_t *got = ap_fast_json_value(text, strlen(text));
    char *a = want ? json_dumps(want, JSON_ENCODE_ANY) : NULL;
    char *b = got ? json_dumps(got, JSON_ENCODE_ANY) : NULL;

    CHECK(a && b && strcmp(a, b) == 0 && json_equal(want, got), "%s: %s", text,
          b ? b : "not plain");
    free(a);
    free(b);
    json_decref(want);
    json_decref(got);
}

static void left(const char *text)
{
    json_t *got = ap_fast_json_value(text, strlen(text));
    CHECK(!got, "left to jansson: %s", text);
    json_decref(got);
}

/* What long text says again is one value, and still what it says. */
static void test_long(void)
{
    static char text[20000];
    size_t at = 0;

    for (int i = 0; i < 1000; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%c\"R,S%d\",%d",
                               i ? ',' : '[', i * i % 401, i * 7 % 300);
    snprintf(text + at, sizeof text - at, ",\"R,S0\",\"R,S0\"]");
    same(text);
    json_t *list = ap_fast_json_value(text, strlen(text));
    CHECK(json_array_get(list, 2000) == json_array_get(list, 2001), "said twice, once");
    json_decref(list);
}

int main(void)
{
    static const char *const plain[] = {"{}",
                                        "[]",
                                        "0",
                                        "-0",
                                        "-17",
                                        " [ 1 ,2\n\t] ",
                                        "\"\"",
                                        "\"a b/c\"",
                                        "999999999999999999",
                                        "-999999999999999999",
                                        "1.5",
                                        "-0.0",
                                        "[1e3,-2.5E-7,0e0,1e+5,1.7976931348623157e308]",
                                        "0.1",
                                        "123456789012345678901.0",
                                        "4.9406564584124654e-324",
                                        "true",
                                        "[false]",
                                        "{\"op\":\"dot\",\"shape\":\"bf16[16,4]{1,0}\"}",
                                        "{\"in\":[12,3],\"x\":{\"y\":[[],{}]}}"};
    static const char *const other[] = {
        "",
        " ",
        "{",
        "[1,]",
        "[1 2]",
        "{\"a\":1,}",
        "{\"a\" 1}",
        "{a:1}",
        "[1]x",
        "\"a",
        "01",
        "-",
        "1.",
        ".5",
        "-.5",
        "01.5",
        "1e",
        "1e+",
        "1.5.5",
        "1e400",
        "0.00000000000000000000000000000000000000001",
        "1000000000000000000",
        "null",
        "tru",
        "\"\\n\"",
        "\"\xc3\xa9\"",
        "\"\x7f\"",
        "\"\t\"",
        "{\"a\":1,\"a\":2}",
        "[1\f]",
        "{\"123456789012345678901234567890123456789012345678901234567890abcd\":1}"};
    char deep[400];

    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        same(plain[i]);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        left(other[i]);
    memset(deep, '[', 64);
    memset(deep + 64, ']', 64);
    deep[128] = '\0';
    same(deep);
    memset(deep, '[', 65);
    memset(deep + 65, ']', 65);
    deep[130] = '\0';
    left(deep);
    test_long();
    left("[1]\n\n,"); /* what follows is no blank */
    CHECK(!ap_fast_json_value("[1]", 2), "the text ends where it is said to");
    return tap_done();
}
