/* Arena, buffers, errors, checked numbers, narrow floats. */
#include "base/base.h"

#include <math.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/float16.h"
#include "base/poison.h"
#include "tap.h"

static void test_err(void)
{
    struct ap_err err = {""};
    char text[3000];

    CHECK(ap_err_set(&err, "node %d", 7) == -1 && !strcmp(err.msg, "node 7"), "message");
    ap_err_set(&err, "later");
    CHECK(!strcmp(err.msg, "node 7"), "the first message wins");
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    err.msg[0] = '\0';
    ap_err_set(&err, "%s", text);
    CHECK(strlen(err.msg) == sizeof(err.msg) - 1 &&
              !strcmp(strrchr(err.msg, 'x') + 1, "..."),
          "a long message is cut with dots");
}

static bool is_zero(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i])
            return false;
    return true;
}

static void test_arena(void)
{
    struct ap_arena arena = {0};
    bool aligned = true, zero = true;

    ap_arena_strdup(&arena, "first");
    struct ap_mark mark = ap_arena_mark(&arena);
    for (int round = 0; round < 3; round++) {
        for (size_t size = 0; size < 3000000; size = size * 2 + 7) {
            char *p = ap_arena_alloc(&arena, size);
            aligned &= (uintptr_t)p % 16 == 0;
            zero &= is_zero(p, size);
            memset(p, 0xff, size);
        }
        ap_arena_rewind(&arena, mark);
    }
    CHECK(aligned, "memory is aligned");
    CHECK(zero, "memory is zero, also after a rewind");
    char *p = ap_arena_printf(&arena, "%s-%d", "a", 5),
         *q = ap_arena_strndup(&arena, "xyz", 2);
    CHECK(!strcmp(p, "a-5") && !strcmp(q, "xy"), "strings in an arena");
    struct ap_arena other = {0};
    mark = ap_arena_mark(&arena);
    ap_arena_join(&arena, &other);
    char *joined = ap_arena_strdup(&other, "joined");
    for (int i = 0; i < 100; i++)
        ap_arena_alloc(&other, 1000);
    ap_arena_join(&arena, &other);
    ap_arena_keep(&arena, strcpy(ap_xrealloc(NULL, 5), "kept"));
    CHECK(!strcmp(joined, "joined") && !other.head, "an arena takes over another");
    ap_arena_rewind(&arena, mark);
    CHECK(!strcmp(p, "a-5"), "and frees what it took over");
    ap_arena_free(&arena);
    CHECK(!arena.head, "a freed arena is empty");
}

/* Whether a process that writes there is ended. */
static bool dies(char *p)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        close(STDERR_FILENO);
        *(volatile char *)p = 1;
        _exit(0);
    }
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && status != 0;
}

/* With AddressSanitizer; elsewhere nothing is poisoned. */
static void test_gaps(void)
{
    struct ap_arena arena = {0};

    char *a = ap_arena_alloc(&arena, 13);
    struct ap_mark mark = ap_arena_mark(&arena);
    char *b = ap_arena_alloc(&arena, 16);
    CHECK(!ap_is_poisoned(a + 12) && !ap_is_poisoned(b) && !ap_is_poisoned(b + 15),
          "an allocation can be used");
    CHECK(ap_is_poisoned(a + 13) == AP_POISONS && ap_is_poisoned(b - 1) == AP_POISONS &&
              ap_is_poisoned(b + 16) == AP_POISONS,
          "what lies around it cannot");
    CHECK(dies(a + 13) == AP_POISONS && dies(b - 1) == AP_POISONS && !dies(b + 15),
          "who writes into the gap to a neighbour is ended");
    ap_arena_rewind(&arena, mark);
    CHECK(!ap_is_poisoned(a + 12) && ap_is_poisoned(b) == AP_POISONS,
          "what a rewind gives back cannot be used any more");
    ap_arena_free(&arena);
}

static void test_buf(void)
{
    struct ap_buf buf = {0};

    ap_buf_int(&buf, INT64_MIN);
    ap_buf_putc(&buf, ' ');
    ap_buf_int(&buf, 0);
    CHECK(!strcmp(buf.data, "-9223372036854775808 0"), "integers");
    for (int i = 0; i < 1000; i++)
        ap_buf_printf(&buf, "%*d", i, 1);
    CHECK(buf.len == 22 + 1 + 999 * 1000 / 2 && strlen(buf.data) == buf.len,
          "formatted text of any length");
    ap_buf_free(&buf);
    CHECK(!buf.data && !buf.len, "a freed buffer is empty");
}

static void test_numbers(void)
{
    CHECK(ap_mul64(3037000499, 3037000499) == 9223372030926249001, "a product that fits");
    CHECK(ap_mul64(3037000500, 3037000500) == INT64_MAX, "a product saturates");
    CHECK(ap_add64(INT64_MAX, 1) == INT64_MAX && ap_add64(2, 3) == 5, "a sum saturates");
    CHECK(ap_ceil_div(7, 2) == 4 && ap_ceil_div(8, 2) == 4 && ap_ceil_div(0, 3) == 0,
          "division rounds up");
    CHECK(ap_hash("abc", 3, 0) == ap_hash("abc", 3, 0) &&
              ap_hash("abc", 3, 0) != ap_hash("abc", 3, 1) &&
              ap_hash("abc", 3, 0) != ap_hash("abc\0", 4, 0),
          "hash of bytes, length and seed");
    CHECK(ap_hash("0123456789", 10, 42) == 0xa3b01a49dfdf508eu,
          "hash is the same everywhere: %llx",
          (unsigned long long)ap_hash("0123456789", 10, 42));
}

/* One narrow type with its conversions, its largest finite pattern and sign bit. */
struct narrow {
    const char *name;
    float (*widen)(uint16_t);
    uint16_t (*narrow)(float);
    uint16_t max, sign;
};

static float widen_e5m2(uint16_t h)
{
    return ap_f8e5m2_to_f32((uint8_t)h);
}
static float widen_e4m3(uint16_t h)
{
    return ap_f8e4m3fn_to_f32((uint8_t)h);
}
static uint16_t narrow_e5m2(float x)
{
    return ap_f32_to_f8e5m2(x);
}
static uint16_t narrow_e4m3(float x)
{
    return ap_f32_to_f8e4m3fn(x);
}

static const struct narrow narrows[] = {
    {"bf16", ap_bf16_to_f32, ap_f32_to_bf16, 0x7f7f, 0x8000},
    {"f16", ap_f16_to_f32, ap_f32_to_f16, 0x7bff, 0x8000},
    {"f8e5m2", widen_e5m2, narrow_e5m2, 0x7b, 0x80},
    {"f8e4m3fn", widen_e4m3, narrow_e4m3, 0x7e, 0x80},
};

/* Every value, every midpoint of neighbours, and the floats around the midpoint. */
static void test_narrow(const struct narrow *t)
{
    int bad = 0;

    for (uint16_t h = 0; h <= t->max; h++) {
        float a = t->widen(h);
        bad += t->narrow(a) != h || t->narrow(-a) != (h | t->sign);
        bad += signbit(t->widen(h | t->sign)) == 0 || t->widen(h | t->sign) != -a;
        if (h == t->max)
            continue;
        float b = t->widen((uint16_t)(h + 1));
        double mid = ((double)a + (double)b) / 2;
        bad += !(a < b);
        bad += t->narrow((float)mid) != (h & 1 ? h + 1 : h);
        if ((double)(float)mid != mid)
            continue;
        bad += t->narrow(nextafterf((float)mid, 0)) != h;
        bad += t->narrow(nextafterf((float)mid, INFINITY)) != h + 1;
    }
    CHECK(bad == 0, "%s: every value and midpoint rounds right (%d wrong)", t->name, bad);
    CHECK(isnan(t->widen(t->narrow(NAN))) && isnan(t->widen(t->narrow(-NAN))), "%s: NaN",
          t->name);
    float over = t->widen(t->narrow(INFINITY));
    CHECK(t->max == 0x7e ? isnan(over) : isinf(over), "%s: infinity", t->name);
}

static void test_round_to_odd(void)
{
    double x = 1.0 + 0x1p-8 + 0x1p-40; /* above a bf16 midpoint, but not in float */
    CHECK(ap_f32_to_bf16(ap_f64_to_f32_odd(x)) == 0x3f81, "no double rounding upwards");
    x = 1.0 + 3 * 0x1p-8 - 0x1p-40;
    CHECK(ap_f32_to_bf16(ap_f64_to_f32_odd(x)) == 0x3f81, "no double rounding downwards");
    CHECK(ap_f64_to_f32_odd(-0x1p-200) == -0x1p-149f, "underflow stays non-zero");
    CHECK(ap_f64_to_f32_odd(0.25) == 0.25f && isnan(ap_f64_to_f32_odd(NAN)),
          "exact, NaN");
}

int main(void)
{
    test_err();
    test_arena();
    test_gaps();
    test_buf();
    test_numbers();
    for (size_t i = 0; i < sizeof(narrows) / sizeof(narrows[0]); i++)
        test_narrow(&narrows[i]);
    test_round_to_odd();
    return tap_done();
}
