/* Values of plain JSON, made fast. */
#ifndef AP_FAST_JSON_H
#define AP_FAST_JSON_H

#include <jansson.h>

/*
 * What jansson's json_loadb makes of text that is plain: members named once, names of at
 * most 63 bytes, strings of ASCII without escapes, numbers of at most 18 digits, or of at
 * most 40 bytes if they are not whole, 64 levels at most. NULL for all other text, right
 * or wrong: ask jansson. Equal strings and numbers may be one value, which is not to be
 * set. The caller decrefs.
 */
json_t *ap_fast_json_value(const char *text, size_t len);

#endif
