/* Classes of identical items: the first stands for its class, whatever the hash. */
#include "problem/classes.h"
#include "tap.h"

static bool same_number(const void *ctx, int a, int b)
{
    const int *v = ctx;
    return v[a] == v[b];
}

int main(void)
{
    enum { N = 1000 };
    int v[N];
    bool first = true, any_hash = true;

    for (int i = 0; i < N; i++)
        v[i] = i * i % 97;
    for (int kind = 0; kind < 3; kind++) { /* a good hash, a poor one, none */
        struct ap_classes classes = {.same = same_number, .ctx = v};
        for (int i = 0; i < N; i++) {
            uint64_t hash = kind == 0   ? ap_hash(&v[i], sizeof v[i], 0)
                            : kind == 1 ? (uint64_t)v[i] % 5
                                        : 0;
            int want = 0, got = ap_class_of(&classes, hash, i);
            while (v[want] != v[i])
                want++;
            *(kind == 0 ? &first : &any_hash) &= got == want;
        }
        ap_classes_free(&classes);
    }
    CHECK(first, "the first of the identical items stands for them");
    CHECK(any_hash, "also where hashes collide");
    return tap_done();
}
