/* Arrays, hash indices, bit sets, heaps, disjoint sets and lists per row. */
#include "base/array.h"
#include "base/bit_set.h"
#include "base/csr.h"
#include "base/heap.h"
#include "base/names.h"
#include "base/index_map.h"
#include "base/names.h"
#include "base/union_find.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tap.h"

static uint64_t random_word(uint64_t *state)
{
    return *state = ap_hash_mix(*state, 1);
}

static void test_array(void)
{
    struct ap_arena arena = {0};
    int *a = NULL, *b = NULL, n = 0, cap = 0, cap_in = 0;
    bool kept = true;

    for (; n < 1000; n++) {
        AP_ROOM(a, n, cap);
        AP_ROOM_IN(&arena, b, n, cap_in);
        a[n] = b[n] = 3 * n;
    }
    for (int i = 0; i < n; i++)
        kept &= a[i] == 3 * i && b[i] == 3 * i;
    CHECK(kept && cap >= n && cap <= 2 * n && cap_in == cap,
          "arrays keep what they hold");
    AP_ROOM_FOR(a, n, cap, 5000);
    CHECK(cap >= n + 5000 && a[999] == 2997, "room for many at once");
    free(a);
    ap_arena_free(&arena);
}

/* Keys may share a hash: every key must be found, under its own position. */
static void test_index(uint64_t hash_mask)
{
    enum { N = 3000 };
    struct ap_index index = {0};
    struct ap_index_walk walk;
    static uint64_t key[N];
    bool found = true;
    int n_absent = 0;

    CHECK(ap_index_first(&index, 1, &walk) == -1, "an empty index has nothing");
    for (int i = 0; i < N; i++) {
        key[i] = (uint64_t)i * 7;
        ap_index_put(&index, ap_hash_mix(0, key[i]) & hash_mask, i);
    }
    for (int k = 0; k < 7 * N; k++) {
        int at = ap_index_first(&index, ap_hash_mix(0, (uint64_t)k) & hash_mask, &walk);
        while (at >= 0 && key[at] != (uint64_t)k)
            at = ap_index_next(&index, &walk);
        n_absent += at < 0;
        found &= at < 0 ? k % 7 != 0 : at == k / 7;
    }
    CHECK(found && n_absent == 6 * N, "keys found, others not");
    ap_index_clear(&index);
    CHECK(ap_index_first(&index, ap_hash_mix(0, 7) & hash_mask, &walk) == -1, "cleared");
    ap_index_free(&index);
}

static void test_bits(void)
{
    struct ap_arena arena = {0};
    uint64_t *set = ap_bits_new(&arena, 200);

    ap_bits_add(set, 0);
    ap_bits_add(set, 63);
    ap_bits_add(set, 64);
    ap_bits_add(set, 199);
    ap_bits_add(set, 100);
    ap_bits_drop(set, 100);
    CHECK(ap_bits_count(set, 200) == 4 && ap_bits_has(set, 64) && !ap_bits_has(set, 100),
          "members");
    CHECK(ap_bits_from(set, 200, 0) == 0 && ap_bits_from(set, 200, 1) == 63 &&
              ap_bits_from(set, 200, 65) == 199 && ap_bits_from(set, 199, 65) == 199 &&
              ap_bits_from(set, 200, 200) == 200,
          "the next member, or none");
    ap_arena_free(&arena);
}

struct entry {
    int key, id;
};

static bool before(const void *x, const void *y)
{
    const struct entry *a = x, *b = y;
    return a->key != b->key ? a->key < b->key : a->id < b->id;
}

static void test_heap(void)
{
    struct ap_heap heap = {.size = sizeof(struct entry), .before = before};
    struct entry last = {-1, -1}, e;
    uint64_t state = 5;
    int n_in = 0, n_out = 0;
    bool ordered = true;

    for (int i = 0; i < 2000; i++) {
        e = (struct entry){(int)(random_word(&state) % 50), i};
        ap_heap_push(&heap, &e);
        n_in++;
        if (i % 3 == 2)
            n_out += ap_heap_pop(&heap, &e);
    }
    while (ap_heap_top(&heap)) {
        e = *(const struct entry *)ap_heap_top(&heap);
        struct entry popped = {0};
        n_out += ap_heap_pop(&heap, &popped);
        ordered &= popped.id == e.id && before(&last, &e);
        last = e;
    }
    CHECK(ordered && n_in == n_out && !ap_heap_pop(&heap, &e), "items leave in order");
    ap_heap_free(&heap);
}

static void test_sets(void)
{
    struct ap_arena arena = {0};
    int *up = ap_sets_new(&arena, 100);

    for (int i = 99; i >= 2; i--)
        ap_sets_join(up, i, i - 2);
    CHECK(ap_sets_root(up, 98) == 0 && ap_sets_root(up, 99) == 1,
          "the least is the root");
    CHECK(!ap_sets_join(up, 4, 44) && ap_sets_join(up, 3, 44), "joined already, or not");
    CHECK(ap_sets_root(up, 99) == 0, "one set");
    ap_arena_free(&arena);
}

static void test_csr(void)
{
    struct ap_arena arena = {0};
    const int row[] = {2, 0, -1, 2, 0, 3}, item[] = {7, 8, 9, 10, 11, 12};
    struct ap_csr csr = ap_csr_new(&arena, 5, 6, row, item);
    struct ap_csr numbers = ap_csr_new(&arena, 5, 6, row, NULL);

    CHECK(ap_csr_count(&csr, 0) == 2 && ap_csr_count(&csr, 1) == 0 &&
              ap_csr_count(&csr, 2) == 2 && ap_csr_count(&csr, 4) == 0 &&
              csr.start[5] == 5,
          "counts, row -1 left out");
    CHECK(csr.item[0] == 8 && csr.item[1] == 11 && csr.item[2] == 7 && csr.item[3] == 10,
          "rows keep the order of the pairs");
    CHECK(numbers.item[0] == 1 && numbers.item[3] == 3 && numbers.item[4] == 5,
          "the pairs' numbers");
    ap_arena_free(&arena);
}

static void test_names(void)
{
    struct ap_names names = {0};
    static char text[1000][8];
    int bad = 0;

    for (int i = 0; i < 1000; i++) {
        int len = snprintf(text[i], sizeof text[i], "n%d", i);
        bad += ap_names_get(&names, text[i], (size_t)len) != -1;
        ap_names_put(&names, text[i], (size_t)len, 2 * i);
    }
    ap_names_set(&names, "n7", 2, 3);
    for (int i = 0; i < 1000; i++)
        bad += ap_names_get(&names, text[i], strlen(text[i])) != (i == 7 ? 3 : 2 * i);
    ap_names_clear(&names);
    CHECK(!bad && ap_names_get(&names, "n1", 2) == -1, "numbers by name");
    ap_names_free(&names);
}

int main(void)
{
    test_array();
    test_index(UINT64_MAX);
    test_index(0xff); /* collisions of whole hashes */
    test_bits();
    test_heap();
    test_sets();
    test_csr();
    test_names();
    return tap_done();
}
