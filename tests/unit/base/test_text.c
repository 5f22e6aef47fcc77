/* Text for people: what is escaped, and which name was meant. */
#include "base/text.h"

#include <string.h>

#include "tap.h"

static void shown(const char *s, size_t len, size_t most, const char *want)
{
    struct ap_buf out = {0};
    ap_text_shown(s, len, most, &out);
    CHECK(!strcmp(out.data ? out.data : "", want), "%zu bytes are shown as they should",
          len);
    ap_buf_free(&out);
}

static const char *meant(const char *want)
{
    static const char *const names[] = {"megatron", "megatron-sp", "mesh", "memory",
                                        "zero2",    "zero3",       NULL};
    struct ap_nearest n = {.want = want};
    for (int i = 0; names[i]; i++)
        ap_nearest_try(&n, names[i]);
    return n.name ? n.name : "";
}

int main(void)
{
    char buf[AP_MEANT];
    struct ap_nearest none = {.want = "x"}, some = {.want = "mess", .name = "mesh"};

    shown("plain\ntext", 10, 100, "plain\ntext");
    shown("\033[31m\x7f\0z", 7, 100, "\\x1b[31m\\x7f\\x00");
    shown("h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", 12, 100,
          "h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
    shown("\xc3(\xc0\xaf\xed\xa0\x80\xc2\x9b", 9, 100,
          "\\xc3(\\xc0\\xaf\\xed\\xa0\\x80\\xc2\\x9b");
    shown("\xe2\x82", 2, 100, "\\xe2\\x82");
    shown("abcdef", 6, 4, "abcd...");
    shown("abc\xc3\xa9", 5, 4, "abc...");

    CHECK(!strcmp(meant("mess"), "mesh") && !strcmp(meant("mehs"), "mesh"),
          "another letter, two exchanged");
    CHECK(!strcmp(meant("megtron"), "megatron") &&
              !strcmp(meant("megatronsp"), "megatron-sp"),
          "a letter missing");
    CHECK(!strcmp(meant("zero1"), "zero2"), "of two that are as close, the first");
    CHECK(!strcmp(meant("batch"), "") && !strcmp(meant(""), "") &&
              !strcmp(meant("x"), ""),
          "nothing is close");
    char lengthy[200];
    memset(lengthy, 'm', sizeof lengthy - 1);
    lengthy[sizeof lengthy - 1] = '\0';
    CHECK(!strcmp(meant(lengthy), ""), "long names are not compared");
    CHECK(!strcmp(ap_nearest_meant(&none, "--", buf), ""), "nothing to say");
    CHECK(!strcmp(ap_nearest_meant(&some, "--", buf), "; did you mean '--mesh'?"),
          "what was meant");
    return tap_done();
}
