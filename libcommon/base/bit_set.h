/* Sets of small numbers as bits, 64 to a word. */
#ifndef AP_BIT_SET_H
#define AP_BIT_SET_H

#include "base/base.h"

static inline size_t ap_bits_words(int n)
{
    return ((size_t)n + 63) / 64;
}
/* An empty set of numbers below n. */
static inline uint64_t *ap_bits_new(struct ap_arena *arena, int n)
{
    return AP_NEW_N(arena, ap_bits_words(n), uint64_t);
}
static inline bool ap_bits_has(const uint64_t *set, int i)
{
    return set[i / 64] >> (i % 64) & 1;
}
static inline void ap_bits_add(uint64_t *set, int i)
{
    set[i / 64] |= (uint64_t)1 << (i % 64);
}
static inline void ap_bits_drop(uint64_t *set, int i)
{
    set[i / 64] &= ~((uint64_t)1 << (i % 64));
}
static inline int ap_bits_count(const uint64_t *set, int n)
{
    int sum = 0;
    for (size_t w = 0; w < ap_bits_words(n); w++)
        sum += __builtin_popcountll(set[w]);
    return sum;
}
/* The first member from i on, in a set of numbers below n; n if there is none. */
static inline int ap_bits_from(const uint64_t *set, int n, int i)
{
    while (i < n) {
        uint64_t rest = set[i / 64] >> (i % 64);
        if (rest)
            return i + __builtin_ctzll(rest);
        i = (i / 64 + 1) * 64;
    }
    return n;
}

#endif
