/*
 * "Did you mean": the edit distance with exchanged neighbours (optimal string alignment;
 * Damerau, CACM 7(3), 1964), row by row. Close is a distance of a third of the longer
 * name at most.
 */
#include "base/text.h"

#include <stdio.h>
#include <string.h>

/* Bytes of the UTF-8 character at s that may be printed, 0 for none. */
static size_t printable(const unsigned char *s, size_t len)
{
    if (*s < 0x80)
        return (*s >= 0x20 && *s != 0x7f) || *s == '\n';
    const size_t n = *s >= 0xc2 && *s < 0xe0   ? 2
                     : *s >= 0xe0 && *s < 0xf0 ? 3
                     : *s >= 0xf0 && *s < 0xf5 ? 4
                                               : 0;
    if (n == 0 || n > len)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xc2 && s[1] < 0xa0) || (s[0] == 0xe0 && s[1] < 0xa0) ||
        (s[0] == 0xed && s[1] >= 0xa0) || (s[0] == 0xf0 && s[1] < 0x90) ||
        (s[0] == 0xf4 && s[1] >= 0x90)) /* control, too long, or no character */
        return 0;
    return n;
}

void ap_text_shown(const char *s, size_t len, size_t most, struct ap_buf *out)
{
    for (size_t i = 0; i < len;) {
        const size_t n = printable((const unsigned char *)s + i, len - i);
        if (i + (n ? n : 1) > most) {
            ap_buf_puts(out, "...");
            return;
        }
        if (n)
            ap_buf_put(out, s + i, n);
        else
            ap_buf_printf(out, "\\x%02x", (unsigned)(unsigned char)s[i]);
        i += n ? n : 1;
    }
}

enum { LONGEST = 64 };

static int min3(int a, int b, int c)
{
    const int d = a < b ? a : b;
    return d < c ? d : c;
}

static int distance(const char *a, const char *b)
{
    int row[3][LONGEST + 1];
    const int n = (int)strlen(a), m = (int)strlen(b);
    for (int j = 0; j <= m; j++)
        row[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *now = row[i % 3];
        const int *last = row[(i - 1) % 3], *before = row[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= m; j++) {
            now[j] =
                min3(last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before[j - 2] + 1 < now[j])
                now[j] = before[j - 2] + 1;
        }
    }
    return row[n % 3][m];
}

void ap_nearest_try(struct ap_nearest *n, const char *name)
{
    const size_t a = strlen(n->want), b = strlen(name), longer = a > b ? a : b;
    if (a > LONGEST || b > LONGEST || a == 0)
        return;
    const int d = distance(n->want, name);
    if (3 * (size_t)d > longer || (n->name && n->distance <= d))
        return;
    n->name = name;
    n->distance = d;
}

const char *ap_nearest_meant(const struct ap_nearest *n, const char *prefix, char *buf)
{
    buf[0] = '\0';
    if (n->name)
        snprintf(buf, AP_MEANT, "; did you mean '%s%s'?", prefix, n->name);
    return buf;
}
