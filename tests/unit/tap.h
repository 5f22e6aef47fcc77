/* The smallest TAP producer: CHECK(condition, format, ...) prints ok or not ok. */
#ifndef AP_TAP_H
#define AP_TAP_H

#include <stdio.h>

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

/* The plan line; main returns it. */
static inline int tap_done(void)
{
    printf("1..%d\n", tap_count);
    return tap_failed != 0;
}

#endif
