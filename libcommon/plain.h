/* Plain JSON, read fast. */
#ifndef AP_PLAIN_H
#define AP_PLAIN_H

#include <jansson.h>
#include <stdbool.h>

/*
 * What jansson's json_loadb makes of text that is plain: members named once, names of at
 * most 63 bytes, strings of ASCII without escapes, numbers of at most 18 digits, or of at
 * most 40 bytes if they are not whole, 64 levels at most. NULL for all other text, right
 * or wrong: ask jansson. The caller decrefs.
 */
json_t *ap_plain_json(const char *text, size_t len);

/* The same text, token by token. Blanks before a token are skipped. */
struct ap_plain {
    const char *at, *end;
};
/* The next byte that is no blank, '\0' at the end; it stays. */
char ap_plain_next(struct ap_plain *p);
/* Takes c if it is next. */
bool ap_plain_take(struct ap_plain *p, char c);
/* The length of the string that is next, which is taken; -1: it is not plain. */
int ap_plain_string(struct ap_plain *p, const char **text);
/* Takes a value of any kind that stands in valid JSON; false if a string in it is not
 * plain. */
bool ap_plain_skip(struct ap_plain *p);
/* Takes a whole number; false if it is not plain. */
bool ap_plain_int(struct ap_plain *p, long long *value);

#endif
