/* Documents as text: sections keep their bytes, broken input names its place. */
#include "doc/doc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tap.h"

static struct ap_arena arena;

static int parse(const char *text, size_t len, struct ap_doc *doc, struct ap_err *err)
{
    char *copy =
        malloc(len ? len : 1); /* exactly as long, so that reading on is caught */
    memcpy(copy, text, len);
    char *kept = len ? ap_arena_dup(&arena, copy, len) : "";
    int rc = ap_doc_parse(&arena, "f.json", copy, len, doc, err);
    free(copy);
    return rc ? rc : ap_doc_parse(&arena, "f.json", kept, len, doc, err);
}

static void refused(const char *text, const char *want)
{
    struct ap_doc doc;
    struct ap_err err = {""};

    CHECK(parse(text, strlen(text), &doc, &err) == -1 && !strcmp(err.msg, want),
          "%.40s: %s", text, err.msg);
}

static void test_refused(void)
{
    refused("", "f.json: the input is empty");
    refused(" \n ", "f.json: the input is empty");
    refused("[1]", "f.json:1:1: expected a JSON object");
    refused("{\"autopar\":1", "f.json:1:13: expected ',' or '}', but the input ends");
    refused("{\"autopar\":1}\n x", "f.json:2:2: something follows the document's end");
    refused("{\"graph\":{}}", "f.json: no member \"autopar\": not an autopar document");
    refused("{\"autopar\":2}",
            "f.json:1:12: format version 2, this autopar reads version 1");
    refused("{\"autopar\":\"1\"}",
            "f.json:1:12: \"autopar\" is not a format version (a whole number)");
    refused("{\"autopar\":1.5}",
            "f.json:1:12: \"autopar\" is not a format version (a whole number)");
    refused("{\"autopar\":1,\n \"x\":{\"a\":NaN}}",
            "f.json:2:11: NaN and infinities are not JSON numbers");
    refused("{\"autopar\":1,\"x\":-Infinity}", "f.json:1:19: expected a digit");
    refused("{\"autopar\":1,\"x\":01}", "f.json:1:19: expected ',' or '}'");
    refused("{\"autopar\":1,\"x\":1.}", "f.json:1:20: expected a digit");
    refused("{\"autopar\":1,\"x\":1e}", "f.json:1:20: expected a digit");
    refused("{\"autopar\":1,\"x\":[1,2}", "f.json:1:22: expected ',' or ']'");
    refused("{\"autopar\":1,\"x\":[1,]}", "f.json:1:21: expected a value");
    refused("{\"autopar\":1,\"x\":{\"a\"}}", "f.json:1:22: expected ':'");
    refused("{\"autopar\":1,\"x\":{a:1}}",
            "f.json:1:19: expected a member name in quotes");
    refused("{\"autopar\":1,\"x\":\"a\nb\"}",
            "f.json:1:20: control character in a string");
    refused("{\"autopar\":1,\"x\":\"\\q\"}", "f.json:1:20: expected an escape sequence");
    refused("{\"autopar\":1,\"x\":\"\\u12g4\"}",
            "f.json:1:23: expected four hexadecimal digits");
    refused("{\"autopar\":1,\"x\":\"abc",
            "f.json:1:22: expected '\"', but the input ends");
    refused("{\"autopar\":1,}", "f.json:1:14: expected a section name in quotes");
    refused("{\"autopar\":1,\"x\":2,\"y\":3,\"x\":4}",
            "f.json:1:30: section \"x\" occurs twice");
    refused("{\"autopar\":1,\"x\":2,\"\\u0078\":4}",
            "f.json:1:29: section \"x\" occurs twice");
    refused("{\"autopar\":1,\"history\":{}}", "f.json:1:24: \"history\" is no array");
    refused("{\"autopar\":1,\"x\":tru}", "f.json:1:21: expected true, false or null");
}

static void test_depth(void)
{
    enum { N = 1000000 };
    char *text = malloc(N + 40);
    struct ap_doc doc;
    struct ap_err err = {""};

    size_t start = (size_t)sprintf(text, "{\"autopar\":1,\"x\":");
    memset(text + start, '[', N);
    CHECK(parse(text, start + N, &doc, &err) &&
              !strcmp(err.msg, "f.json:1:529: nested deeper than 512 levels"),
          "a million brackets: %s", err.msg);
    memset(text + start + 511, ']', 511);
    text[start + 1022] = '}';
    err.msg[0] = '\0';
    CHECK(!parse(text, start + 1023, &doc, &err), "512 levels are fine%s", err.msg);
    json_t *x = ap_doc_load(&doc, ap_doc_find(&doc, "x"), &err);
    CHECK(x != NULL, "and can be loaded");
    json_decref(x);
    free(text);
}

static void test_truncated(void)
{
    const char *whole = "{\"autopar\": 1, \"a\":{\"b\":[1,-2.5e3,true,\"\\u00e9\\n\"],"
                        "\"c\":{}}, \"history\":[]}";
    size_t len = strlen(whole);
    struct ap_doc doc;
    int bad = 0;

    for (size_t n = 0; n < len; n++) {
        struct ap_err err = {""};
        bad += parse(whole, n, &doc, &err) != -1 || !err.msg[0];
    }
    CHECK(bad == 0, "every truncation of a document is refused");
    struct ap_err err = {""};
    CHECK(!parse(whole, len, &doc, &err) && doc.n_sections == 3, "the whole is not");
}

/* ap_doc_write's text. */
static struct ap_buf written(const struct ap_doc *doc, struct ap_new_section *sections,
                             int n, const char *history)
{
    struct ap_buf out = {0};
    FILE *file = open_memstream(&out.data, &out.len);

    ap_doc_write(doc, sections, n, history, file);
    fclose(file);
    return out;
}

static void test_sections(void)
{
    const char *text =
        "\n{ \"tail\" : [ 1,2 ],\n\"autopar\" : 1 ,\"hist\":null, "
        "\"history\":[ {\"tool\":\"x\"} \n] , \"gr\\u0061ph\":{ \"a\" : 1.0 } }";
    struct ap_doc doc;
    struct ap_err err = {""};

    CHECK(!parse(text, strlen(text), &doc, &err), "a document reads%s", err.msg);
    CHECK(doc.n_sections == 5 && !strcmp(doc.sections[0].name, "autopar") &&
              !strcmp(doc.sections[1].name, "tail"),
          "autopar comes first");
    const struct ap_section *graph = ap_doc_find(&doc, "graph");
    CHECK(graph && graph->len == 13 && !memcmp(graph->text, "{ \"a\" : 1.0 }", 13),
          "a section is its bytes, escapes in its name are decoded");
    CHECK(!ap_doc_find(&doc, "none"), "no such section");

    struct ap_new_section news[2] = {{.name = "new"}, {.name = "tail"}};
    ap_buf_puts(&news[0].json, "5");
    ap_buf_puts(&news[1].json, "[]");
    struct ap_buf out = written(&doc, news, 2, "{\"tool\":\"y\"}");
    CHECK(!strcmp(out.data, "{\"autopar\":1,\n\"tail\":[],\n\"hist\":null,\n"
                            "\"graph\":{ \"a\" : 1.0 },\n\"new\":5,\n"
                            "\"history\":[ {\"tool\":\"x\"},{\"tool\":\"y\"}]}\n"),
          "kept sections keep place and bytes: %s", out.data);
    ap_buf_free(&out);
    struct ap_doc none = {0};
    out = written(&none, news, 1, "{}");
    CHECK(!strcmp(out.data, "{\"autopar\":1,\n\"new\":5,\n\"history\":[{}]}\n"),
          "a document from nothing");
    ap_buf_free(&out);
    const char *empty = "{\"autopar\":1,\"history\":[ ]}";
    parse(empty, strlen(empty), &doc, &err);
    out = written(&doc, NULL, 0, "{}");
    CHECK(!strcmp(out.data, "{\"autopar\":1,\n\"history\":[{}]}\n"), "an empty history");
    ap_buf_free(&out);
    out = written(&doc, NULL, 0, NULL);
    CHECK(!strcmp(out.data, "{\"autopar\":1,\n\"history\":[ ]}\n"), "no new entry");
    ap_buf_free(&out);
    ap_buf_free(&news[0].json);
    ap_buf_free(&news[1].json);
}

/* A graph of n nodes whose node `bad` names an operand that is no number. */
static struct ap_buf long_graph(int n, int bad)
{
    struct ap_buf out = {0};

    ap_buf_puts(&out, "{\"autopar\":1,\"graph\":{\"name\":\"g\",\"nodes\":[\n");
    for (int i = 0; i < n; i++)
        ap_buf_printf(&out,
                      i == 0     ? "{\"op\":\"parameter\",\"param\":0,"
                                   "\"shape\":\"f32[2]\",\"scope\":\"s%d\"}"
                      : i == bad ? ",\n{\"op\":\"negate\",\"in\":[true],"
                                   "\"shape\":\"f32[2]\",\"scope\":\"s%d\"}"
                                 : ",\n{\"op\":\"negate\",\"in\":[0],"
                                   "\"shape\":\"f32[2]\",\"scope\":\"s%d\"}",
                      i / 100 % 7);
    ap_buf_puts(&out, "],\"results\":[{\"node\":0}]}}");
    return out;
}

static void test_long_graph(void)
{
    const int n = 45000;
    struct ap_buf text = long_graph(n, -1);
    struct ap_doc doc;
    struct ap_graph g;
    struct ap_err err = {""};
    int other = 0;

    CHECK(!ap_doc_parse(&arena, "f.json", text.data, text.len, &doc, &err) &&
              !ap_doc_graph(&arena, &doc, &g, &err) && g.n_nodes == n,
          "a graph that is read in parts%s", err.msg);
    for (int i = 0; i < n; i++)
        other += strcmp(g.nodes[i].scope + 1, g.nodes[i / 100 % 7 * 100].scope + 1) ||
                 g.nodes[i].scope != g.nodes[i / 100 % 7 * 100].scope;
    CHECK(other == 0, "equal scopes are one string");
    ap_buf_free(&text);
    for (int bad = 1; bad < n; bad += n / 3) {
        char want[80];
        text = long_graph(n, bad);
        err.msg[0] = '\0';
        snprintf(want, sizeof want, "f.json: /graph/nodes/%d/in/0: expected a node id",
                 bad);
        CHECK(!ap_doc_parse(&arena, "f.json", text.data, text.len, &doc, &err) &&
                  ap_doc_graph(&arena, &doc, &g, &err) && !strcmp(err.msg, want),
              "the node that is wrong is named: %s", err.msg);
        ap_buf_free(&text);
    }
}

/* As ap_doc_parse, but every read of standard input gives one byte. */
static int read_bytes(const char *text, size_t len, struct ap_doc *doc,
                      struct ap_err *err)
{
    int end[2], kept = dup(STDIN_FILENO);

    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, end) || dup2(end[0], STDIN_FILENO) < 0)
        return ap_err_set(err, "no sockets");
    for (size_t i = 0; i < len; i++)
        if (write(end[1], text + i, 1) != 1)
            return ap_err_set(err, "no room");
    close(end[0]);
    close(end[1]);
    int rc = ap_doc_read(&arena, "-", doc, err);
    dup2(kept, STDIN_FILENO);
    close(kept);
    return rc;
}

/* What comes in pieces, cut anywhere, is what it is as a whole. */
static void test_pieces(void)
{
    static const char *const text[] = {
        ("{\"autopar\":1,\"a\":{\"n\":[{\"k\\n\\u00e9\":[-1.5e+3,true]}, {} "
         "],\"m\":[1,{}]}}\n"),
        "{ \"autopar\" : 1 , \"\\u0062\":\"\xc3\xa9\x7f text of more than eight\" }",
        "{\"autopar\":1,\"a\":[null,\"cut",
        "{\"autopar\":1,\"a\":[truf]}",
        "{\"autopar\":1,\"a\":1} x and more that nobody reads",
        "",
    };

    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        struct ap_err want = {""}, err = {""};
        struct ap_doc whole, pieces;
        int rc = ap_doc_parse(&arena, "<stdin>", text[i], strlen(text[i]), &whole, &want);
        bool same = read_bytes(text[i], strlen(text[i]), &pieces, &err) == rc &&
                    !strcmp(err.msg, want.msg) && pieces.n_sections == whole.n_sections;
        for (int k = 0; same && rc == 0 && k < whole.n_sections; k++) {
            const struct ap_section *a = &whole.sections[k], *b = &pieces.sections[k];
            same = !strcmp(a->name, b->name) && a->len == b->len &&
                   a->offset == b->offset && !memcmp(a->text, b->text, a->len);
        }
        CHECK(same, "byte by byte, document %zu: %s, %s", i, want.msg, err.msg);
    }
}

static void test_load(void)
{
    const char *text = "{\"autopar\":1,\n\"a\":{\"k\":1,\n  \"k\":2},\n\"b\":[1,\n1e999],"
                       "\"c\":123456789012345678901234567890,\"d\":\"\xff\"}";
    struct ap_doc doc;
    struct ap_err err = {""};

    parse(text, strlen(text), &doc, &err);
    CHECK(!ap_doc_load(&doc, ap_doc_find(&doc, "a"), &err) &&
              !strncmp(err.msg, "f.json:3:3: duplicate object key", 32),
          "a duplicate member: %s", err.msg);
    err.msg[0] = '\0';
    CHECK(!ap_doc_load(&doc, ap_doc_find(&doc, "b"), &err) &&
              !strncmp(err.msg, "f.json:5:", 9) && strstr(err.msg, "overflow"),
          "a number that is too large: %s", err.msg);
    err.msg[0] = '\0';
    CHECK(!ap_doc_load(&doc, ap_doc_find(&doc, "c"), &err) && strstr(err.msg, "too big"),
          "an integer that is too large: %s", err.msg);
    err.msg[0] = '\0';
    CHECK(!ap_doc_load(&doc, ap_doc_find(&doc, "d"), &err) &&
              strstr(err.msg, "decode byte 0xff"),
          "bytes that are no UTF-8: %s", err.msg);
}

static void test_get(void)
{
    json_t *o =
        json_loads("{\"i\":5,\"n\":0.5,\"s\":\"x\",\"a\":[1,2.5],\"l\":[3,-4]}", 0, NULL);
    struct ap_at up = {NULL, "a/b~c", 0}, at = {&up, NULL, 3};
    struct ap_err err = {""};
    struct ap_ints ints;
    int64_t i = 0;
    double n = 0;
    const char *s = NULL;
    json_t *a = NULL;

    CHECK(!ap_get_int(o, &at, "i", 0, 5, &i, &err) && i == 5, "integer");
    CHECK(!ap_get_num(o, &at, "n", &n, &err) && n == 0.5, "number");
    CHECK(!ap_get_num(o, &at, "i", &n, &err) && n == 5, "integer as number");
    CHECK(!ap_get_str(o, &at, "s", &s, &err) && !strcmp(s, "x"), "string");
    CHECK(!ap_get_arr(o, &at, "a", &a, &err) && json_array_size(a) == 2, "array");
    CHECK(!ap_get_ints(&arena, o, &at, "l", &ints, &err) && ints.n == 2 &&
              ints.v[1] == -4,
          "integers");
    CHECK(!ap_get_ints(&arena, o, &at, "none", &ints, &err) && ints.n == 0,
          "absent list");
    CHECK(ap_get_int(o, &at, "i", 6, 9, &i, &err) &&
              !strcmp(err.msg, "/a~1b~0c/3/i: expected an integer from 6 to 9, got 5"),
          "range: %s", err.msg);
    err.msg[0] = '\0';
    CHECK(ap_get_int(o, &at, "n", 6, 9, &i, &err) &&
              !strcmp(err.msg,
                      "/a~1b~0c/3/n: expected an integer, got a number that is no "
                      "integer"),
          "type: %s", err.msg);
    err.msg[0] = '\0';
    CHECK(ap_get_str(o, &at, "zz", &s, &err) &&
              !strcmp(err.msg, "/a~1b~0c/3: member \"zz\" (a string) is missing"),
          "missing: %s", err.msg);
    err.msg[0] = '\0';
    CHECK(ap_get_ints(&arena, o, &at, "a", &ints, &err) &&
              !strncmp(err.msg, "/a~1b~0c/3/a/1: expected an integer", 35),
          "list: %s", err.msg);
    err.msg[0] = '\0';
    CHECK(ap_get_num(a, NULL, "x", &n, &err) &&
              !strcmp(err.msg, "expected an object, got an array"),
          "no object: %s", err.msg);
    json_decref(o);
}

/* What the C library prints with as few of 15 to 17 digits as read back equal. */
static const char *exact(double v, char text[40])
{
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, 40, "%.*g", digits, v);
        if (strtod(text, NULL) == v)
            break;
    }
    return text;
}

static uint64_t any_bits(uint64_t *seed)
{
    return *seed = ap_hash(seed, sizeof *seed, 1);
}

/* Of a size 10^low to 10^high, some with few digits, some near others. */
static double any_number(uint64_t *seed, int low, int high)
{
    double size = pow(10, low + (double)(any_bits(seed) % 1000) / 1000 * (high - low));
    double v = size * (1 + 9 * (double)(any_bits(seed) >> 11) / 0x1p53);
    char text[40];

    switch (any_bits(seed) % 4) {
    case 0:
        snprintf(text, sizeof text, "%.*g", 1 + (int)(any_bits(seed) % 17), v);
        v = strtod(text, NULL);
        break;
    case 1:
        v = ldexp(1, (int)(log(v) / log(2)));
        break;
    }
    if (any_bits(seed) % 4 == 0)
        v = nextafter(v, any_bits(seed) % 2 ? 0 : INFINITY);
    return any_bits(seed) % 2 ? v : -v;
}

static void test_shortest(void)
{
    uint64_t seed = 1;
    int bad = 0, n = 40000;
    char was[40];

    for (int i = 0; i < n; i++) {
        double v = i % 4 ? any_number(&seed, -9, 3) : any_number(&seed, -12, 17);
        struct ap_buf is = {0};
        ap_json_num(&is, v);
        if (v != floor(v) && strcmp(is.data, exact(v, was)) && bad++ < 5)
            printf("# %s, not %s\n", is.data, was);
        ap_buf_free(&is);
    }
    CHECK(bad == 0, "numbers are as short as they read back equal (%d are not)", bad);
}

static void test_write(void)
{
    static const double nums[] = {
        0,      -0.0, 1,          -5,   0.1,    1.0 / 3, 1e15,   1e300,
        5e-324, 1e-9, 123456.789, 2e15, 0x1p53, -1e22,   3.5e-5, 1.7976931348623157e308};
    struct ap_buf out = {0};
    int bad = 0;

    for (size_t i = 0; i < sizeof(nums) / sizeof(nums[0]); i++) {
        struct ap_buf one = {0};
        ap_json_num(&one, nums[i]);
        json_t *v = json_loadb(one.data, one.len, JSON_DECODE_ANY, NULL);
        double back = json_number_value(v);
        bad += !v || memcmp(&back, &nums[i], sizeof(back)) != 0;
        json_decref(v);
        ap_buf_free(&one);
    }
    CHECK(bad == 0, "numbers read back bit-equal (%d do not)", bad);
    ap_json_num(&out, 0.1);
    CHECK(!strcmp(out.data, "0.1"), "shortest form");
    ap_buf_free(&out);
    ap_json_str(&out, "a\"b\\c\nd\x01\xc3\xa9/");
    CHECK(!strcmp(out.data, "\"a\\\"b\\\\c\\nd\\u0001\xc3\xa9/\""), "a string: %s",
          out.data);
    ap_buf_free(&out);
    ap_json_str(&out, "a\xff"
                      "b\xe2\x82"
                      "c\xed\xa0\x80\xc0\x80\xf0\x9f\x98\x80");
    json_t *v = json_loadb(out.data, out.len, JSON_DECODE_ANY, NULL);
    CHECK(v && strstr(json_string_value(v), "\xf0\x9f\x98\x80"),
          "bytes that are no UTF-8 are replaced: %s", out.data);
    json_decref(v);
    ap_buf_free(&out);
}

int main(void)
{
    test_refused();
    test_depth();
    test_truncated();
    test_sections();
    test_long_graph();
    test_pieces();
    test_load();
    test_get();
    test_shortest();
    test_write();
    ap_arena_free(&arena);
    return tap_done();
}
