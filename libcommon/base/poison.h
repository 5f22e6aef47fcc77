/*
 * Marks memory that must not be accessed, in builds with AddressSanitizer; other builds
 * do nothing. It is for memory that is allocated at once and used in parts, whose borders
 * the sanitizer does not know.
 */
#ifndef AP_POISON_H
#define AP_POISON_H

#include <stddef.h>

#if defined(__has_feature) /* clang */
#if __has_feature(address_sanitizer)
#define AP_POISONS 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) /* gcc */
#define AP_POISONS 1
#endif

#ifdef AP_POISONS
#include <sanitizer/asan_interface.h>
static inline void ap_poison(const void *p, size_t size)
{
    ASAN_POISON_MEMORY_REGION(p, size);
}
static inline void ap_unpoison(const void *p, size_t size)
{
    ASAN_UNPOISON_MEMORY_REGION(p, size);
}
static inline int ap_is_poisoned(const void *p)
{
    return __asan_address_is_poisoned(p);
}
#else
#define AP_POISONS 0
static inline void ap_poison(const void *p, size_t size)
{
    (void)p, (void)size;
}
static inline void ap_unpoison(const void *p, size_t size)
{
    (void)p, (void)size;
}
static inline int ap_is_poisoned(const void *p)
{
    (void)p;
    return 0;
}
#endif

#endif
