/* Plain JSON, read fast. */
#ifndef AP_PLAIN_H
#define AP_PLAIN_H

#include <jansson.h>

/*
 * What jansson's json_loadb makes of text that is plain: members named once, names of at
 * most 63 bytes, strings of ASCII without escapes, numbers that are whole and of at most
 * 18 digits, 64 levels at most. NULL for all other text, right or wrong: ask jansson. The
 * caller decrefs.
 */
json_t *ap_plain_json(const char *text, size_t len);

#endif
