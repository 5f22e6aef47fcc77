/* The smallest TAP producer: CHECK(condition, format, ...) prints ok or not ok. */
#ifndef AP_TAP_H
#define AP_TAP_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int tap_count, tap_failed;

#define CHECK(cond, ...)                                        \
    do {                                                        \
        tap_count++;                                            \
        int tap_ok_ = (cond) ? 1 : 0;                           \
        tap_failed += !tap_ok_;                                 \
        printf("%sok %d - ", tap_ok_ ? "" : "not ", tap_count); \
        printf(__VA_ARGS__);                                    \
        printf("%s\n", tap_ok_ ? "" : " # " __FILE__);          \
    } while (0)

/* How many of n random cases a run takes: all, or a third under sanitizers, where a case
 * takes five times as long; AP_TEST_ASAN=all: all of them there, too. */
static inline int tap_cases(int n)
{
#ifdef __SANITIZE_ADDRESS__
    const char *all = getenv("AP_TEST_ASAN");
    return all && !strcmp(all, "all") ? n : n / 3;
#else
    return n;
#endif
}

/* The plan line; main returns it. */
static inline int tap_done(void)
{
    printf("1..%d\n", tap_count);
    return tap_failed != 0;
}

#endif
